"""Named variants of the draft model, with options other than the defaults, for drafter_tables.py and audit_matrix.py.

There are three parts. `lengths`: each length policy with up to eight drafted tokens, and blocks of exactly that length.
`quantised`: a target that verifies the drafts of its own copy, where one of the two is in int8 and the other in full precision.
`trained`: drafts that the training named here writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAIR = ("model=llama-tiny", "task=gsm8k-tiny")
ITSELF = "model.draft=embedded:llama-tiny/target"
POLICIES = ("constant", "heuristic", "confidence", "adaptive", "value")
LONGEST = "num_draft=8"  # long enough that a policy matters
HEADINGS = {  # headings of the parts with separate tables; `trained` is listed among the drafters
    "lengths": "Length policies, up to eight drafted tokens",
    "quantised": "A target and its own weights in int8",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """`drafter=model` with further options of `python -m sdbench`."""

    part: str
    words: tuple[str, ...]  # options that define the variant
    measured: tuple[str, ...] = ()  # further options of the runs that measure it
    training: tuple[str, ...] = ()  # options of `python -m sdbench.train`, which writes the draft
    folder: str = ""  # folder of the draft below results/drafts
    policy: str = ""  # length policy; records of all policies share a folder, so that baselines are decoded once

    @property
    def records(self) -> str:
        """Return the suffix of its folder of records."""
        return self.part if self.policy else ""

    def has_cell(self, drafter: Mapping[str, Any]) -> bool:
        """Return whether a cell with this drafter, in a shared folder of records, belongs to this variant."""
        return not self.policy or drafter.get("length", POLICIES[0]) == self.policy

    def words_in(self, records: Path) -> list[str]:
        """Return its options; `records` is the folder that contains `drafts`."""
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
AUDITED = {  # by audit_matrix.py, with that script's draft length; a constant length is not listed, since `model` has it
    "model (int8)": Variant("int8", ("model.draft_quantization=int8",)),
    **{name: VARIANTS[name] for name in [*(f"model ({policy})" for policy in POLICIES[1:]), "healed", "distilled"]},
}


def variants_of(parts: Sequence[str]) -> dict[str, Variant]:
    """Return {name: variant} for the variants of some parts, or for variants given by name."""
    return {name: variant for name, variant in VARIANTS.items() if {variant.part, name} & set(parts)}
