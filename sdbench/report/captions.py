"""What the report makes: every figure and table by the name of its file, with a title and one sentence. No plotting here.

`figures/NAME.svg` (and .pdf, .png), or `figures/NAME-SUFFIX.svg` where the records hold several sweeps: NAME never has a
hyphen, SUFFIX tells the sweeps apart (pair, task, temperature, folder: what differs). A figure whose numbers were not
measured is not made. The order here is the order of reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caption:
    """A title for a heading, and a sentence for below the figure."""

    title: str
    text: str


FIGURES: Mapping[str, Caption] = {
    "pareto": Caption(
        "Quality against acceptance",
        "Each point is one setting, bars are 95 % intervals by example both ways, the grey area is what the Pareto front "
        "dominates; the fuller a mark, the surer it is on the front, and tables/front.csv says how sure.",
    ),
    "pareto_speed": Caption(
        "Quality against measured speed-up",
        "The same plane with the measured ratio of tokens a second to the fastest target-alone baseline of the same "
        "latency pass; only settings that were timed are shown.",
    ),
    "load": Caption(
        "Quality against speed under load",
        "A panel for each number of requests under way: tokens a second of a user over those of the target alone on a server "
        "with as many; left of the dotted line speculation costs more than it saves.",
    ),
    "against_knob": Caption(
        "Quality and acceptance against the knob",
        "Both over each rule's own knob, with 95 % intervals; the axis names the strict end, dashed lines are the baselines, "
        "small crosses the exact expected acceptance.",
    ),
    "speed_against_knob": Caption(
        "Speed-up against the knob",
        "Filled marks were measured (intervals over example × repeat, on this machine and in this process); hollow marks "
        "are modelled: the recorded rounds at the measured price of a draft and of a verify call.",
    ),
    "time_split": Caption(
        "Where the time goes",
        "Milliseconds an emitted token spends in draft calls, in verify calls and in the rest, from a few repeats that were "
        "synchronised after each call; lines are 95 % intervals of the whole.",
    ),
    "positions": Caption(
        "Acceptance by position in the draft",
        "How often the token in slot 1 … K is kept, of all that were drafted (marginal) and of those that were examined "
        "(conditional), with 95 % intervals by example, at the longest draft length.",
    ),
    "lengths": Caption(
        "Length, truncation and loops against the knob",
        "Mean emitted tokens an answer, and the share of answers that are cut at the length limit, empty, without an "
        "answer to extract, or end in a loop; a lenient rule that changes them changes more than the score shows.",
    ),
    "divergence": Caption(
        "Divergence from the target's own greedy text",
        "Share of answers that still equal the target's greedy text after so many tokens, and the mean number of tokens "
        "before the first difference with its 95 % interval.",
    ),
    "laws": Caption(
        "Theory beside data",
        "Measured acceptance against 1 − w·E[TV] and measured bias against (1 − w)·E[TV], E over the positions that the "
        "setting itself visited; on the diagonal theory and measurement agree.",
    ),
    "bound": Caption(
        "The token-wise bound",
        "Acceptance against the bias of what is emitted at a drafted position: no rule that judges one token at a time "
        "gets above the line of its own contexts (the short dashes), and the static ensemble lies on it at every w.",
    ),
    "predicted": Caption(
        "Acceptance for every w, predicted and measured",
        "The curve follows for every w from the probabilities recorded in the lossless run, at the contexts of the lossless "
        "run; the points were measured, each at the contexts that its own setting reached.",
    ),
    "grid": Caption(
        "Quality against acceptance, pairs × tasks",
        "One panel a pair and task, the same axes of acceptance; bars are 95 % intervals by example.",
    ),
    "grid_speed": Caption(
        "Quality against measured speed-up, pairs × tasks",
        "One panel a pair and task, the same axes of speed-up; bars are 95 % intervals.",
    ),
}

TABLES: Mapping[str, Caption] = {
    "summary.csv": Caption("Summary", "One row a cell, every measure with its interval; empty is not measured."),
    "summary.parquet": Caption("Summary, Parquet", "The same rows with their types."),
    "summary.md": Caption("Summary, Markdown", "The columns that people quote."),
    "summary.tex": Caption("Summary, LaTeX", "The same as a booktabs tabular."),
    "model-index.yaml": Caption("Model index", "The block for a model card on the hub."),
    "results.json": Caption("Results", "Every metric in the shape of lm-eval's results.json."),
    "tables/metrics.csv": Caption("Metrics", "Every metric of every cell with its interval, pass@k included."),
    "tables/front.csv": Caption(
        "Pareto fronts", "Each cell's place in both planes, whether it is on the front, and with what probability."
    ),
    "tables/volume.csv": Caption(
        "Hypervolumes",
        "Area that the front of each rule dominates, with its interval, and the bias that was taken off.",
    ),
    "tables/areas.csv": Caption(
        "Areas between rules", "Mean gain of one curve over another, and the area between them, with intervals."
    ),
    "tables/order.csv": Caption(
        "Acceptance and time",
        "For each rule, whether the setting that accepts more was the faster one, beyond noise or not.",
    ),
    "tables/retention.csv": Caption(
        "Retention",
        "Quality of each setting over lossless with its interval, and whether 30, 100 or 250 examples would have told it from 1.",
    ),
    "tables/positions.csv": Caption("Acceptance by position", "Marginal and conditional rates of each slot."),
    "tables/load.csv": Caption(
        "Load",
        "Each cell at each number of requests under way: tokens a second of a user and in all, and the first token.",
    ),
    "tables/laws.csv": Caption("Laws", "Measured acceptance and bias beside what the mathematics says."),
    "tables/predicted.csv": Caption("Prediction", "Tokens a round for every w, at the contexts of the lossless run."),
    "tables/divergence.csv": Caption("Divergence", "How far each cell's texts follow the target's own greedy text."),
    "tables/recommendation.csv": Caption("Tests", "Every non-inferiority test behind the recommendation, in order."),
    "tables/together.csv": Caption("Together", "The summaries of all folders that were given, with the folder's name."),
}


def caption_of(stem: str) -> Caption:
    """The caption of figures/STEM.svg; the suffix, if there is one, is told in the title."""
    name, _, suffix = stem.partition("-")
    caption = FIGURES[name]
    return Caption(f"{caption.title}: {suffix}", caption.text) if suffix else caption


def in_order(stems: list[str]) -> list[str]:
    """File stems in the order of reading, sweep by sweep within a figure."""
    places = {name: place for place, name in enumerate(FIGURES)}
    return sorted(stems, key=lambda stem: (places[stem.partition("-")[0]], stem))
