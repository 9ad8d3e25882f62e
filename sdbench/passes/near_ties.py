"""At T = 0, measure the difference of logits at the first token where a lossless text differs from the target's.

Only texts that differ and have no such record are scored, with one forward pass over each. To learn what rounding explains, the
engine and the model itself score one text in blocks and token by token. The records keep the result, so reports need no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdbench.config import NATIVE
from sdbench.prepare.progress import warn
from sdbench.records import PartingRecord

if TYPE_CHECKING:
    from sdbench.engines.job import Job, Models
    from sdbench.records import Store

MOST = 64  # most texts that are scored in a run; the next run scores others


def measure_near_ties(job: Job, store: Store, models: Models) -> None:
    """Record this difference for each lossless text of this job that differs from the target's."""
    if job.run.temperature > 0 or job.run.engine.name != NATIVE.name:
        return
    from sdbench.metrics.cells import table_of
    from sdbench.metrics.divergence import first_differences
    from sdbench.records import read

    results, prompts = read(job.run.folder), job.prompts.ids
    cells = table_of(results.cells)
    cells = cells[cells.index.isin([point.cell.key for point in job.planned])]
    frames = first_differences(results, cells) if len(cells) else {}
    held = set(results.partings[["cell", "example", "sample", "token"]].itertuples(index=False, name=None))
    keys = [
        (key, str(row.example), int(row.sample), int(row.token), int(row.epoch), row.ids_target, row.ids)  # type: ignore[arg-type]
        for key, part in frames.items()
        for row in part.merge(results.epochs, on=["cell", "example", "sample"]).itertuples()
    ]
    new = [each for each in keys if each[:4] not in held and len(prompts.get(each[1], ())) > 1]
    if len(new) > MOST:
        warn(
            f"{len(new)} lossless texts differ from the target's own, and it is checked for only {MOST} of them whether rounding "
            "explains the first difference; run the command again for the others"
        )
    if not new:
        return
    from sdbench.engines.native.decode import Decoder
    from sdbench.engines.native.margins import PartingTexts, margins_of

    assert isinstance(models.decoder, Decoder), "the native engine"
    texts = [PartingTexts(prompts[example], target, ids, token) for _, example, _, token, _, target, ids in new[:MOST]]
    decoder = models.decoder
    width = 1 + max(point.num_draft for point in job.planned)  # the widest rows of a batch decide
    margins, explained = margins_of(decoder.engine.target, texts, rows=decoder.batch_size, width=width)
    store.append(
        [
            PartingRecord(*each[:4], margin, explained, epoch=each[4])
            for each, margin in zip(new[:MOST], margins, strict=True)
        ]
    )
