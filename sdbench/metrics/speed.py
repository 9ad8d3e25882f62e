"""Speed from one latency pass: ratios of Σtokens/Σseconds to the fastest target-alone baseline of that same pass.

The unit of every interval is the example: its repeats are summed first, because they time the same text again. Limits are
conditional on this machine and this process. Modelled speed-ups multiply the recorded rounds of a cell by the measured costs of
a draft call and a verify call; the time of anything else is left out.
"""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdbench.metrics.cells import drafting_of
from sdbench.metrics.stats import NAN, Estimate, mean_interval, median_interval, rates_interval, ratio_interval
from sdbench.records import Results

DRIFT = 0.1  # relative change of the machine's speed within a pass from which on the report warns
ALONE = ("target", "generate")  # the target alone, by this engine and by transformers
UNIT = ["example", "repeat"]
TIMES = ["tokens", "decoded_tokens", "prefill_s", "decode_s"]
PARTS = ("draft_s", "verify_s", "rest_s")
SPLITS = (*PARTS, "split_s")
SPLIT_KINDS = ("draft", "verify")  # calls whose costs come from the split repeat
# How much narrower or wider than all measured blocks a setting's blocks may be on average. Such blocks get the cost of the nearest
# measured width, which is too low for wider blocks.
NARROWER, WIDER = 0.5, 1.25
FIRST_TOKEN = ("first_token_s", "cached_first_token_s")  # of prompts that were read, or that the server may have cached
COLUMNS = ["pass_id", *UNIT, *TIMES]


def latest_pass(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the complete repeats of each cell's newest pass that also has a target-alone baseline."""
    whole = timings[~timings["is_split"].astype(bool)]
    bases = set(whole.loc[whole["verifier"].isin(ALONE), "pass_id"])
    whole = whole[whole["pass_id"].isin(bases)]
    if whole.empty:
        return whole
    return of_newest_pass(whole)


def of_newest_pass(timings: pd.DataFrame) -> pd.DataFrame:
    """Return of each cell the rows of the newest pass that timed it."""
    if timings.empty:
        return timings
    last = timings.groupby(["cell", "pass_id"])["started_at"].max().fillna(0.0)  # unknown in old records
    newest = last.groupby(level=0).idxmax().map(lambda pair: pair[1])
    return timings[timings["pass_id"].to_numpy() == timings["cell"].map(newest).to_numpy()]


def with_decoded(rows: pd.DataFrame) -> pd.DataFrame:
    """Return timings or loads with `decoded_tokens`, those that came in `decode_s`: not the first chunk of a server's answer."""
    return rows.assign(decoded_tokens=rows["tokens"] - rows["first_tokens"])


def against_baseline(timings: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return {cell: one row per (example, repeat), its times beside those (`_base`) of the fastest target-alone baseline}."""
    timings = with_decoded(timings)
    pairs: dict[str, pd.DataFrame] = {}
    newest = latest_pass(timings)
    for cell, rows in newest.groupby("cell", sort=True):
        rivals = newest if newest["pass_id"].nunique() == 1 else timings[~timings["is_split"].astype(bool)]
        # Not matched by the pair's name: if a folder has two names for one target, the target alone has the older name.
        alone = rivals[(rivals["pass_id"] == rows["pass_id"].iloc[0]) & rivals["verifier"].isin(ALONE)]
        rate = alone.groupby("cell")[["decoded_tokens", "decode_s"]].sum()
        base = alone[alone["cell"] == (rate["decoded_tokens"] / rate["decode_s"]).fillna(0).idxmax()]
        pairs[str(cell)] = rows[COLUMNS].merge(base[[*UNIT, *TIMES]], on=UNIT, suffixes=("", "_base"))
    return pairs


def speeds(timings: pd.DataFrame, **options: Any) -> dict[str, dict[str, Estimate]]:
    """Return {cell: tokens_per_s, speedup, speedup_end_to_end, time_ratio} of all cells that were timed."""
    return {cell: _against(pair, **options) for cell, pair in against_baseline(timings).items()}


def by_example(pair: pd.DataFrame) -> pd.DataFrame:
    """Return one row per example of one cell of `against_baseline`: tokens and seconds, summed over its repeats."""
    sums = [name for name in pair.columns if name.removesuffix("_base") in TIMES]
    return pair.groupby("example", sort=True)[sums].sum()


def _against(pair: pd.DataFrame, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> dict[str, Estimate]:
    """Return every speed of one cell; `speedup_median` is that of the middle example, which a single slow one does not change."""
    rows = by_example(pair)
    whole = rows.assign(
        decoded_tokens=rows["tokens"],
        decoded_tokens_base=rows["tokens_base"],
        decode_s=rows["prefill_s"] + rows["decode_s"],
        decode_s_base=rows["prefill_s_base"] + rows["decode_s_base"],
    )
    paced = rows[(rows["decode_s"] > 0) & (rows["decode_s_base"] > 0)]  # an answer in one piece has no decoding time
    typical = paced["decoded_tokens"] / paced["decode_s"] / (paced["decoded_tokens_base"] / paced["decode_s_base"])
    rate, ratio = ["decoded_tokens", "decode_s"], ["decoded_tokens", "decode_s", "decoded_tokens_base", "decode_s_base"]
    return {
        "tokens_per_s": rates_interval(rows[rate].to_numpy(np.float64), (1, -1), level=level),
        "speedup": rates_interval(rows[ratio].to_numpy(np.float64), (1, -1, -1, 1), level=level),
        "speedup_end_to_end": rates_interval(whole[ratio].to_numpy(np.float64), (1, -1, -1, 1), level=level),
        "speedup_median": median_interval(typical, level=level),
        "time_ratio": _geometric(
            paced["decode_s_base"] / paced["decode_s"], level=level, resamples=resamples, seed=seed
        ),
    }


def _geometric(ratios: pd.Series, **options: float) -> Estimate:
    """Return the geometric mean of the ratio of times for the same request, whatever the lengths of the two answers."""
    logs = np.log(ratios.to_numpy(dtype=np.float64))
    if len(logs) > 1 and np.ptp(logs) == 0:  # a baseline against itself
        return Estimate(*[float(np.exp(logs[0]))] * 3, n=len(logs))
    mean = mean_interval(logs, **options)  # type: ignore[arg-type]
    return Estimate(*(float(np.exp(log)) for log in (mean.value, mean.low, mean.high)), n=mean.n)


def cost(calls: pd.DataFrame, kind: str, tokens: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the seconds of a call of this kind at `tokens` tokens, interpolated linearly between the measured sizes."""
    mine = calls[calls["kind"] == kind].groupby("tokens")["seconds"].median().sort_index()
    return np.interp(tokens, mine.index.to_numpy(dtype=np.float64), mine.to_numpy(dtype=np.float64))


def prices(
    calls: pd.DataFrame, timings: pd.DataFrame, model: str, task: str, drafter: str | None = None
) -> pd.DataFrame:
    """Return the calls of the newest pass of one pair and task that timed drafts of this drafter; None: of any drafter.

    Costs of another pair or another drafter do not apply. A pass that names no drafter had only one.
    """
    if drafter is not None:
        is_others = (calls["kind"] == "draft") & ~calls["drafter"].isin(["", drafter])
        priced = calls.loc[(calls["kind"] == "draft") & ~is_others, "pass_id"]
        calls = calls[~is_others & calls["pass_id"].isin(set(priced))]
    rows = timings[(timings["model"] == model) & (timings["task"] == task)]
    rows = rows[rows["pass_id"].isin(set(calls["pass_id"]))]
    newest = rows.groupby("pass_id")["started_at"].max().sort_index() if len(rows) else pd.Series(dtype="float64")
    if not newest.notna().any():
        return calls.iloc[:0]
    last = newest.idxmax()
    latest, pace = calls[calls["pass_id"] == last], pace_of_splits(rows[rows["pass_id"] == last])
    is_split = latest["kind"].isin(SPLIT_KINDS)
    return latest.assign(seconds=latest["seconds"].where(~is_split, latest["seconds"] / pace))


def pace_of_splits(timings: pd.DataFrame) -> float:
    """Return how much slower a round was in the split repeat of a pass than in its other repeats; 1 if unknown.

    The split repeat comes last and reads the clock more often, so the model divides the costs from it by this ratio.
    """
    pairs = timings[(timings["rounds"] > 0) & timings["num_draft"].fillna(0).gt(0)]
    round_s = pairs["decode_s"] / pairs["rounds"]
    cells = [pairs["cell"], pairs["is_split"].astype(bool)]
    paces = round_s.groupby(cells).median().unstack().reindex(columns=[False, True])
    pace = (paces[True] / paces[False]).median()
    return 1.0 if np.isnan(pace) else float(pace)


def modelled_speedup(generations: pd.DataFrame, calls: pd.DataFrame, **options: float) -> Estimate:
    """Return the speed-up of one cell's recorded rounds at the costs of one pass, over examples; NaN without a cost, and where
    its blocks are much wider or narrower than those whose verification was measured.
    """
    unknown = Estimate(NAN, NAN, NAN, 0)
    if calls.empty:
        return unknown
    kinds, n = set(calls["kind"]), generations["example"].nunique()
    verifier = generations["verifier"].iloc[0]
    if verifier in ("draft", *ALONE) or not {"draft", "verify", "target"} <= kinds:
        return Estimate(1.0, 1.0, 1.0, n) if verifier == "target" and "target" in kinds else unknown
    sums = generations.groupby("example", sort=True)[["tokens", "rounds", "drafted"]].sum()
    sums = sums[sums["rounds"] > 0]  # a server may not report the rounds of a text
    if sums.empty:
        return unknown
    width = 1 + (sums["drafted"] / sums["rounds"]).to_numpy(np.float64)  # what was drafted, not the draft length
    mean_width = 1 + sums["drafted"].sum() / sums["rounds"].sum()
    measured = calls.loc[calls["kind"] == "verify", "tokens"]
    if not NARROWER * measured.min() <= mean_width <= WIDER * measured.max():
        return unknown
    seconds = sums["drafted"] * cost(calls, "draft", 1.0) + sums["rounds"] * cost(calls, "verify", width)
    return ratio_interval(sums["tokens"] * cost(calls, "target", 1.0), seconds, **options)  # type: ignore[arg-type]


def prices_of(results: Results, generations: pd.DataFrame) -> pd.DataFrame:
    """Return the costs that apply to the texts of one cell, from the newest pass over the same prompts, or else over other prompts
    of its task. In either case a pass that timed the cell's draft length is preferred.

    Only passes that timed the cell's target with its draft and its drafter, with all options equal, are used.
    """
    first = generations.iloc[0]
    drafter = str(first["drafter"]) if isinstance(first["drafter"], str) else None
    cells, timings = results.cells.set_index("cell"), results.timings
    cell, of_pair = cells.loc[first["cell"]], (str(first["model"]), str(first["task"]), drafter)
    known = cells[cells.index.isin(timings["cell"])]
    if drafter is not None:
        known, drafting = known[known["drafter"] == drafter], drafting_of(cell)
        known = known.loc[[drafting_of(each) == drafting for each in known.to_dict("records")]]
    same_length = known[known["num_draft"] == cell["num_draft"]]
    # A call costs more after a longer prompt.
    is_alike = timings["cell"].map(cells["asked"]) == cell["asked"]
    calls = results.calls.iloc[:0]
    for rows, timed in product((timings[is_alike], timings), (same_length, known)):
        passes = rows.loc[rows["cell"].isin(timed.index), "pass_id"]
        calls = prices(results.calls, rows[rows["pass_id"].isin(passes)], *of_pair)
        if len(calls):
            break
    return calls


def splits(timings: pd.DataFrame, **options: float) -> dict[str, dict[str, Estimate]]:
    """Return {cell: seconds per token in draft calls, verify calls, the rest and in total} from its newest split repeats."""
    split = timings[timings["is_split"].astype(bool)].dropna(subset=list(PARTS))  # plain generate has no split
    seconds_of = {}
    for cell, part in split.groupby("cell", sort=True):
        is_timed = bool(part["started_at"].notna().any())
        rows = part[part["pass_id"] == part.loc[part["started_at"].idxmax(), "pass_id"]] if is_timed else part
        rows = rows.assign(split_s=rows[list(PARTS)].sum(axis=1))
        sums = rows.groupby("example", sort=True)[["tokens", *SPLITS]].sum()
        seconds_of[str(cell)] = {
            name: rates_interval(sums[[name, "tokens"]].to_numpy(np.float64), (1, -1), level=options.get("level", 0.95))
            for name in SPLITS
        }
    return seconds_of


def percentiles(timings: pd.DataFrame, *, level: float = 0.95) -> dict[str, dict[str, Estimate]]:
    """Return {cell: medians over the examples of its newest pass of the time to the first token and of percentiles of a round,
    repeats averaged}.
    """
    names = ("round_p50_s", "round_p90_s", "round_p99_s")
    medians = {}
    for cell, part in of_newest_pass(timings[~timings["is_split"].astype(bool)]).groupby("cell", sort=True):
        means = part.groupby("example", sort=True)[list(names)].mean()
        columns = first_token_of(part) | {name: means[name] for name in names}
        medians[str(cell)] = {name: median_interval(column.dropna(), level=level) for name, column in columns.items()}
    return medians


def first_token_of(part: pd.DataFrame) -> dict[str, pd.Series]:
    """Return by name the mean time to the first token of each example, separately for prompts that may be cached."""
    is_cached = part["is_cached"].astype(bool)
    parts = zip(FIRST_TOKEN, (part[~is_cached], part[is_cached]), strict=True)
    return {name: rows.groupby("example", sort=True)["first_token_s"].mean() for name, rows in parts}


def drift(timings: pd.DataFrame) -> float:
    """Return how much slower the last third of a pass was than the first, as a ratio of seconds per round, within cells."""
    whole = timings[~timings["is_split"].astype(bool)].sort_values("started_at")
    whole = whole[whole["pass_id"] == whole["pass_id"].iloc[-1]] if len(whole) else whole
    if len(whole) < 9:
        return NAN
    pace = whole["decode_s"] / whole["rounds"]
    pace = pace / pace.groupby(whole["cell"]).transform("median")
    third = len(pace) // 3
    return float(pace.iloc[-third:].median() / pace.iloc[:third].median())


def mixed_sentence(timings: pd.DataFrame) -> str | None:
    """Return a sentence if the settings' speeds come from several latency passes; None if they come from one."""
    newest = latest_pass(timings)
    count, machines = newest["pass_id"].nunique(), sorted(set(newest["machine"]))
    if count < 2:
        return None
    where = f" on {len(machines)} machines ({'; '.join(machines)})" if len(machines) > 1 else ""
    return (
        f"The speeds are those of {count} latency passes{where}. Each speed-up is measured within a pass; tokens per second and "
        "seconds can differ between passes for other reasons than the setting."
    )


def drift_sentence(timings: pd.DataFrame) -> str | None:
    """Return a sentence if the machine was slower or faster at the end of a pass than at its start; otherwise None."""
    pace = drift(timings)
    if not abs(pace - 1) >= DRIFT:  # NaN where the pass is too short to tell
        return None
    return (
        f"The latency pass drifted: a round in its last third took {pace:.2f}× as long as in its first. Settings took turns, so "
        "speed-ups hold on average, but their intervals are wide: time again on a quiet machine."
    )
