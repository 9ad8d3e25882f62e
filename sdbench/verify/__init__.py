"""Verification rules, a file per family."""

from sdbench.types import DraftBlock, Evidence, Measures, Verdict, Verifier
from sdbench.verify.ensemble import Ensemble
from sdbench.verify.exact import Exact
from sdbench.verify.families import family, stack
from sdbench.verify.tokenwise import Tokenwise

__all__ = [
    "DraftBlock",
    "Ensemble",
    "Evidence",
    "Exact",
    "Measures",
    "Tokenwise",
    "Verdict",
    "Verifier",
    "family",
    "stack",
]
