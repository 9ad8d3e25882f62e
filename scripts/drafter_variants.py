"""The draft model under other options than its defaults: what drafter_tables.py measures and audit_matrix.py audits by a name.

Three parts: `lengths`, each length policy with up to eight drafted tokens, beside blocks of that length; `quantised`, a target that
verifies its own full-precision draft in int8, and the other way round; `trained`, drafts that the training named here writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAIR = ("model=llama-tiny", "task=gsm8k-tiny")
ITSELF = "model.draft=embedded:llama-tiny/target"
POLICIES = ("constant", "heuristic", "confidence", "adaptive", "value")
LONGEST = "num_draft=8"  # long enough that a policy matters
HEADINGS = {  # of the parts that have tables of their own; `trained` stands among the drafters
    "lengths": "Length policies, up to eight drafted tokens",
    "quantised": "A target and its own weights in int8",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """`drafter=model` with more words of `python -m sdbench`."""

    part: str
    words: tuple[str, ...]  # what makes it another drafter
    measured: tuple[str, ...] = ()  # further words of the runs that measure it
    training: tuple[str, ...] = ()  # of `python -m sdbench.train`, which writes the draft
    folder: str = ""  # below results/drafts, where it does
    policy: str = ""  # of its blocks; records of all policies share a folder, in which baselines are decoded once

    @property
    def records(self) -> str:
        """Return the end of its folder of records, without which it is called by its name."""
        return self.part if self.policy else ""

    def has_cell(self, drafter: Mapping[str, Any]) -> bool:
        """Return whether a cell with this drafter is one of its cells, in a folder that it shares."""
        return not self.policy or drafter.get("length", POLICIES[0]) == self.policy

    def words_in(self, records: Path) -> list[str]:
        """Return its words; `records` is the folder with `drafts`."""
        return [*self.words, *([f"model.draft={(records / 'drafts' / self.folder).resolve()}"] if self.folder else [])]


VARIANTS: Mapping[str, Variant] = {
    **{
        f"model ({policy})": Variant("lengths", (f"drafter.length={policy}",), (LONGEST,), policy=policy)
        for policy in POLICIES
    },
    "itself (int8)": Variant("quantised", (ITSELF, "model.draft_quantization=int8")),
    "itself (target in int8)": Variant("quantised", (ITSELF, "model.quantization=int8")),
    "healed": Variant("trained", (), (), ("pruned", *PAIR, "keep_layers=3"), "llama-tiny-gsm8k-tiny-pruned-3"),
    "distilled": Variant("trained", (), (), ("draft", *PAIR), "llama-tiny-gsm8k-tiny-forward_kl"),
}
AUDITED = {  # by audit_matrix.py, with its draft length; blocks of a constant length are those of `model`
    "model (int8)": Variant("int8", ("model.draft_quantization=int8",)),
    **{name: VARIANTS[name] for name in [*(f"model ({policy})" for policy in POLICIES[1:]), "healed", "distilled"]},
}


def variants_of(parts: Sequence[str]) -> dict[str, Variant]:
    """Return the variants of some parts, or of those called by name, by their names."""
    return {name: variant for name, variant in VARIANTS.items() if {variant.part, name} & set(parts)}
