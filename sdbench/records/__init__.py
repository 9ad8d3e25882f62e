"""The boundary in the package: torch writes records on one side, numpy and pandas read them on the other. This package stores
them.

The life of a record

1. `Store.open(folder, config=…, provenance=…)` creates or extends `results/<name>/`, writes who runs (`run-*.json`) and
   starts this job's heartbeat; `store.add_cells(cells)` writes one `cell-<key>.json` per point of the sweep.
2. `plan.missing(…)` subtracts what `store.held()` has; `plan.share(store, items)` claims work, a few prompts at a time.
3. `store.append_generations(records)` writes two immutable parts of one name, each tmp + fsync + rename: first
   `tokens-*` (arrays per token and per round), then `generations-*` (one row each, counts). The second rename *is* the
   commit: before it nothing is stored, after it the record is permanent. Then the claims are released.
4. `store.compact()` merges small parts into one that names the parts it replaces; only then are those deleted.
5. `sdbench.read(folder)` reads every complete part, drops duplicates (newest epoch, then the first written), joins the
   knobs from the cells, and lists in `.problems` what it could not read. `force` starts an epoch and deletes nothing.

A folder: `config.json`, `records/{cell,run,subset,server,force,failure}-*.json`,
`records/{generations,tokens,timings,calls,loads,open_loads,pooled,partings,vocabulary,examples}-*.parquet`, `claims/`.
Part names are UTC time and random bits: ordered in time, never equal in two jobs. Hosts, processes and loads are in timings
and in provenance only. Imports: stdlib; pyarrow, numpy and pandas when used; no torch.

Writers:   Store, Cell, cell_key, asked_of, GenerationRecord, Rounds, TimingRecord, CallRecord, LoadRecord,
           OpenLoadRecord, PooledRecord, PartingRecord
Readers:   read, Results, Problem
Errors, one sentence each: StoreError (cannot write), SchemaError (a newer sdbench wrote it), ValueError (nothing there)
"""

from sdbench.records.keys import Cell, asked_of, cell_key
from sdbench.records.measured import CallRecord, LoadRecord, OpenLoadRecord, PartingRecord, PooledRecord, TimingRecord
from sdbench.records.parts import SCHEMA, SchemaError, StoreError
from sdbench.records.results import Problem, Results, read
from sdbench.records.schema import GenerationRecord, Rounds
from sdbench.records.store import Store
