"""Rules that judge a block as a whole. The law that they emit at a single position is not known in closed form."""

import torch
from torch import Tensor

from sdbench.types import Evidence, Measures
from sdbench.verify.rule import Rule
from sdbench.verify.tokenwise import measured_tv, measures_of


class Joint(Rule):
    """A rule whose acceptance probability and bias are not known: both are NaN."""

    def measure(self, evidence: Evidence) -> Measures:
        return measures_of(evidence, measured_tv(evidence.p[:, :-1], evidence.draft.q), **unknown_measures(evidence))


def unknown_measures(evidence: Evidence) -> dict[str, Tensor]:
    """Return NaN for the measures that need the law of one position."""
    nan = torch.full(evidence.draft.tokens.shape, torch.nan, dtype=torch.float64, device=evidence.draft.tokens.device)
    return {"expected": nan, "bias": nan.clone()}
