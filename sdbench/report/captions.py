"""What the report makes: every figure and table by the name of its file, with a title and a sentence. No plotting here.

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
        "Each point is a setting, bars are 95 % intervals by example, and the grey area is what the Pareto front dominates; "
        "the fuller a mark, the likelier it is on the front (probabilities in tables/front.csv).",
    ),
    "pareto_speed": Caption(
        "Quality against measured speed-up",
        "The same plane with measured speed: tokens a second over those of the fastest target-alone baseline of the same "
        "latency pass; only timed settings are shown, and horizontal bars rest on the timed texts alone.",
    ),
    "load": Caption(
        "Quality against speed under load",
        "A panel for each number of concurrent requests: tokens a second of a user over those of the target alone at the same "
        "number; left of the dotted line speculation is slower than no speculation.",
    ),
    "against_knob": Caption(
        "Quality and acceptance against the knob",
        "Both over each rule's own knob, with 95 % intervals; the axis names the lossless end, dashed lines are the baselines, "
        "and small crosses, where rules sample, the exact expected acceptance.",
    ),
    "speed_against_knob": Caption(
        "Speed-up against the knob",
        "Filled marks were measured on this machine in this process, with 95 % intervals by text (repeats of a text are added "
        "up); hollow marks are modelled: the recorded rounds at the measured cost of a draft and of a verify call.",
    ),
    "time_split": Caption(
        "Where the time goes",
        "Milliseconds per emitted token in draft calls, in verify calls and in the rest, from a few repeats that were "
        "synchronised after each call; lines are 95 % intervals of the sum.",
    ),
    "positions": Caption(
        "Acceptance by position in the draft",
        "How often the token in slot 1 … K is kept, out of all drafted ones (marginal) and out of the examined ones "
        "(conditional), with 95 % intervals by example, at the longest draft length.",
    ),
    "lengths": Caption(
        "Length, truncation and loops against the knob",
        "Mean emitted tokens per answer, and where there are any, the shares of answers that are cut at the length limit, "
        "empty, without a result to extract, or end in a loop.",
    ),
    "divergence": Caption(
        "Divergence from the target's own greedy text",
        "Share of answers that still equal the target's greedy text after so many tokens, and the mean number of tokens "
        "before the first difference, with its 95 % interval.",
    ),
    "laws": Caption(
        "Theory beside data",
        "Measured acceptance against 1 − w·E[TV] and measured bias against (1 − w)·E[TV], where E is the mean over the "
        "positions that the setting itself visited; on the diagonal theory and measurement agree.",
    ),
    "bound": Caption(
        "The token-wise bound",
        "Acceptance against the bias of what is emitted at a drafted position: no rule that judges one token at a time "
        "can lie above the bound at its own contexts (short dashes), and the static ensemble reaches it at every w.",
    ),
    "predicted": Caption(
        "Acceptance for every w, predicted and measured",
        "The curve is computed for every w from the probabilities recorded in the lossless run, at the contexts of that run; "
        "the points were measured, each at the contexts that its own setting reached.",
    ),
    "grid": Caption(
        "Quality against acceptance, pairs × tasks",
        "A panel for each pair and task on a shared acceptance axis; bars are 95 % intervals by example.",
    ),
    "grid_speed": Caption(
        "Quality against measured speed-up, pairs × tasks",
        "A panel for each pair and task on a shared speed-up axis; bars are 95 % intervals.",
    ),
}

TABLES: Mapping[str, Caption] = {
    "summary.csv": Caption(
        "Summary", "A row for each cell with every measure and its interval; an empty entry was not measured."
    ),
    "summary.parquet": Caption("Summary, Parquet", "The same rows with their types."),
    "summary.md": Caption("Summary, Markdown", "The most quoted columns."),
    "summary.tex": Caption("Summary, LaTeX", "The same as a LaTeX table (booktabs)."),
    "model-index.yaml": Caption("Model index", "The block for a model card on the hub."),
    "results.json": Caption("Results", "Every metric in the shape of lm-eval's results.json."),
    "tables/metrics.csv": Caption("Metrics", "Every metric of every cell with its interval, pass@k included."),
    "tables/front.csv": Caption(
        "Pareto fronts", "Where each cell lies in both planes, whether it is on the front, and with what probability."
    ),
    "tables/volume.csv": Caption(
        "Hypervolumes",
        "The area that the front of each rule dominates, with its interval, and the bias that was taken off.",
    ),
    "tables/areas.csv": Caption(
        "Areas between rules", "Mean gain of one curve over another, and the area between them, with intervals."
    ),
    "tables/order.csv": Caption(
        "Acceptance and time",
        "For each rule, whether settings that accept more were also faster, beyond noise.",
    ),
    "tables/retention.csv": Caption(
        "Retention",
        "Quality of each setting over lossless with its interval, and whether 30, 100 or 250 examples would show a difference.",
    ),
    "tables/positions.csv": Caption("Acceptance by position", "Marginal and conditional rates of each slot."),
    "tables/load.csv": Caption(
        "Load",
        "Each cell at each number of concurrent requests: tokens a second of a user and in all, and the first token.",
    ),
    "tables/laws.csv": Caption("Theory", "Measured acceptance and bias beside what theory says."),
    "tables/predicted.csv": Caption(
        "Prediction", "Acceptance and accepted tokens a round for every w, at the contexts of the lossless run."
    ),
    "tables/divergence.csv": Caption("Divergence", "How far each cell's texts follow the target's own greedy text."),
    "tables/recommendation.csv": Caption(
        "Tests", "Every non-inferiority test behind the recommendation, in its order."
    ),
    "tables/together.csv": Caption("Together", "The summaries of all folders, with the folder's name."),
}


def caption_of(stem: str) -> Caption:
    """Return the caption of figures/STEM.svg; a suffix stands in the title."""
    name, _, suffix = stem.partition("-")
    caption = FIGURES[name]
    return Caption(f"{caption.title}: {suffix}", caption.text) if suffix else caption


def in_order(stems: list[str]) -> list[str]:
    """Return file stems in the order of reading, sweep by sweep within a figure."""
    order = list(FIGURES)
    return sorted(stems, key=lambda stem: (order.index(stem.partition("-")[0]), stem))
