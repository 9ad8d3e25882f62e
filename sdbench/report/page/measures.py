"""Every measure of the page: its name among the columns of summary.csv, its title, unit and definition.

The tables take their headings from here and the page prints the definitions, so that no number stands without its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """`kind` says how a value is written: rate, points, ratio, count, p, seconds (as ms), per_s, share (as %) or word."""

    title: str
    kind: str
    text: str
    formula: str = ""


MEASURES: Mapping[str, Measure] = {
    "acceptance": Measure(
        "Acceptance",
        "rate",
        "Share of the examined drafted tokens that were kept, pooled over all rounds. A position is examined when its token, "
        "or the token that replaced it, reached the text. For rules that judge one token at a time and sample, it estimates "
        "the mean acceptance probability over the positions that the rule itself visited.",
        "accepted / examined",
    ),
    "acceptance_expected": Measure(
        "Acceptance, exact",
        "rate",
        "The same quantity without the coins: the mean over examined positions of the exact probability of acceptance. Far "
        "less noise. Empty where no such identity holds (joint rules, the greedy blend).",
        "mean of Σ q·a",
    ),
    "block_acceptance": Measure(
        "Block acceptance",
        "rate",
        "What transformers and most papers report. It counts as lost the drafted tokens behind a rejection, which nobody "
        "judged, and so falls with the draft length.",
        "accepted / drafted",
    ),
    "pooled_block_acceptance": Measure(
        "Block acceptance, pooled",
        "rate",
        "The same of a server that tells no rounds: sums over all texts of a setting, and so without an interval.",
        "accepted / drafted",
    ),
    "pooled_tokens_per_step": Measure(
        "Tokens a step, pooled",
        "ratio",
        "Emitted tokens for each step of a server that tells no rounds, over all texts of a setting.",
        "tokens / steps",
    ),
    "pooled_from": Measure(
        "Pooled from",
        "word",
        "Where pooled counts come from: sums that came with each text, or the server's own counters before and after.",
    ),
    "tokens_per_round": Measure(
        "Tokens a round",
        "ratio",
        "Emitted tokens for each call of the target: accepted drafts and the one token that ends the round.",
        "tokens / rounds",
    ),
    "accepted_per_round": Measure(
        "Accepted a round", "ratio", "Accepted drafts for each call of the target.", "accepted / rounds"
    ),
    "tv": Measure(
        "TV",
        "rate",
        "Mean total variation between the draft's and the target's law at the examined positions: how far apart the models are "
        "where this rule went.",
        "mean of ½ Σ |p − q|",
    ),
    "bias": Measure(
        "Bias",
        "rate",
        "Mean total variation between what the rule emits at a drafted position and the target's law. 0 is lossless; for the "
        "static ensemble it is (1 − w)·TV.",
        "mean of ½ Σ |out − p|",
    ),
    "bias_per_token": Measure(
        "Bias a token",
        "rate",
        "The same sum over all emitted tokens; tokens that the target drew by itself count 0.",
        "Σ bias / tokens",
    ),
    "quality": Measure(
        "Quality",
        "points",
        "The task's headline metric by the task's own rules, shares in percent. Corpus metrics (BLEU, chrF) are recomputed from "
        "summed statistics, not averaged over sentences.",
    ),
    "difference": Measure(
        "Against lossless",
        "points",
        "Quality minus that of the lossless rule on the same examples, paired by example.",
        "quality − quality(lossless)",
    ),
    "difference_from_target": Measure(
        "Against the target alone",
        "points",
        "Quality minus that of the target decoding by itself, paired by example.",
        "quality − quality(target)",
    ),
    "p_value": Measure(
        "p",
        "p",
        "Two-sided p of no difference from lossless: McNemar's test for pass/fail, otherwise a paired t test.",
    ),
    "p_holm": Measure(
        "p, Holm", "p", "The same after Holm's correction over the settings of the sweep that are not lossless."
    ),
    "detectable": Measure(
        "Detectable",
        "points",
        "The smallest true difference from lossless that this n finds with 80 % power, two-sided 5 %. A smaller loss would "
        "mostly go unseen.",
    ),
    "p_value_from_target": Measure("p against the target", "p", "Two-sided p of no difference from the target alone."),
    "p_holm_from_target": Measure("p against the target, Holm", "p", "The same after Holm's correction."),
    "detectable_from_target": Measure(
        "Detectable against the target",
        "points",
        "The smallest true difference from the target alone that this n finds.",
    ),
    "speedup": Measure(
        "Speed-up",
        "ratio",
        "Tokens a second over those of the fastest target-alone baseline of the same latency pass, decoding only, on this "
        "machine and in this process. Examples are the unit, their repeats added up; limits are Student's on the log scale.",
        "(Σ tokens / Σ s) / (Σ tokens / Σ s)(target)",
    ),
    "speedup_median": Measure(
        "Speed-up, median",
        "ratio",
        "The speed-up of the middle example of the latency pass: no single slow one moves it.",
        "median of (tokens / s) / (tokens / s)(target)",
    ),
    "speedup_over_lossless": Measure(
        "Over lossless",
        "ratio",
        "Tokens a second over those of the best lossless setting of the same latency pass: what leniency gains on top of what "
        "costs no quality. Examples are the unit, their repeats added up; limits are Student's on the log scale.",
        "(Σ tokens / Σ s) / (Σ tokens / Σ s)(best lossless)",
    ),
    "speedup_end_to_end": Measure(
        "Speed-up, end to end", "ratio", "The same with the prompt's prefill in the seconds."
    ),
    "speedup_modelled": Measure(
        "Speed-up, modelled",
        "ratio",
        "What the recorded rounds would take at the measured price of a draft and a verify call: an estimate for settings that "
        "were not timed, not a measurement.",
    ),
    "tokens_per_s": Measure("Tokens a second", "per_s", "Emitted tokens over decoding seconds.", "Σ tokens / Σ s"),
    "time_ratio": Measure(
        "Time ratio",
        "ratio",
        "Geometric mean over the same requests of the target's seconds over this setting's. It differs from the speed-up where "
        "a lossy rule changes the length of the answers.",
    ),
    "first_token_s": Measure(
        "First token", "seconds", "From the start of the prefill to the end of the first round; median."
    ),
    "round_p50_s": Measure("Round, p50", "seconds", "Seconds of a round: median over generations of their medians."),
    "round_p90_s": Measure("Round, p90", "seconds", "The same of the 90th percentile."),
    "round_p99_s": Measure("Round, p99", "seconds", "The same of the 99th percentile."),
    "draft_s": Measure(
        "Draft", "seconds", "Seconds an emitted token spends in draft calls, from synchronised repeats."
    ),
    "verify_s": Measure("Verify", "seconds", "… in calls of the target."),
    "rest_s": Measure("Rest", "seconds", "… in everything else: the rule itself, sampling, bookkeeping."),
    "split_s": Measure(
        "In all", "seconds", "Draft, verify and rest together, a token: synchronising makes it slower than the speed."
    ),
    "num_timed": Measure("Timed", "count", "Example × repeat of the latency pass behind the speeds."),
    "num_split": Measure("Split", "count", "Example × repeat behind the split into draft, verify and rest."),
    "num_generations": Measure("Generations", "count", "Texts: examples × samples."),
    "mean_tokens": Measure("Length", "count", "Mean emitted tokens a generation."),
    "repeated_4grams": Measure(
        "Repeated 4-grams",
        "share",
        "Of a text's 4-grams of tokens, the share that it had before, a mean over texts: what repeats itself is easy to foresee.",
    ),
    "loop_rate": Measure(
        "Loops",
        "share",
        "Texts that end in the same stretch four times in a row or more, at least 16 tokens. A setting with more loops than "
        "lossless by more than the margin is not recommended.",
    ),
    "truncated_rate": Measure(
        "Truncated", "share", "Generations that the length limit ended before an answer was complete."
    ),
    "empty_rate": Measure("Empty", "share", "Generations without any text before the first stop string."),
    "extraction_failed_rate": Measure(
        "No answer found",
        "share",
        "Generations in which the task's rules found no answer to compare (extraction failed).",
    ),
    "prompt_cut_rate": Measure(
        "Prompt cut", "share", "Examples whose prompt was too long and was cut by the task's rule."
    ),
    "n": Measure(
        "n", "count", "Examples. Intervals are 95 % and by example: the samples of one example stay together."
    ),
}

WORDS: Mapping[str, str] = {
    "p, q": "The target's and the draft's probability of a token, given the text so far.",
    "knob": "The number that a rule is swept over, such as w, the weight of the target in v = w·p + (1 − w)·q. At its strict "
    "end a rule is as careful as it can be; there w = 1 is lossless. w = 0 keeps every drafted token.",
    "K": "How many tokens the draft proposes a round.",
    "accepted draft": "A token that the draft proposed and the rule kept.",
    "replacement": "The token that was emitted where the first drafted token of a round was refused.",
    "bonus": "The target's own token after a fully kept draft, or where no draft was made.",
    "lossless": "Speculative sampling that keeps the target's law exactly (Leviathan et al. 2023).",
    "target alone, draft alone": "Each model decoding by itself, a token a call.",
}
