"""Verification rules, a file per family."""

from sdbench.types import DraftBlock, Evidence, Measures, Verdict, Verifier
from sdbench.verify.ensemble import Ensemble
from sdbench.verify.exact import Exact
from sdbench.verify.families import at_slots, family, refuse_tensors, stack
from sdbench.verify.tokenwise import Tokenwise, knob

__all__ = [
    "DraftBlock",
    "Ensemble",
    "Evidence",
    "Exact",
    "Measures",
    "Tokenwise",
    "Verdict",
    "Verifier",
    "at_slots",
    "family",
    "knob",
    "refuse_tensors",
    "stack",
]
