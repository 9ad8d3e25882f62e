"""The shared types and protocols. Tensors are imported for type checkers only, so importing this package does not load torch."""

from sdbench.types.engine import (
    DraftBlock,
    EngineError,
    Evidence,
    Finish,
    Generation,
    Measures,
    Origin,
    PartialForward,
    Timing,
    Verdict,
)
from sdbench.types.metric import HARNESS_SHARES, RANGES, Axis, Metric
from sdbench.types.protocols import DRAFTER_NEEDS, NEEDS, Context, Drafter, DraftSetup, Limits, Verifier, needs_of
from sdbench.types.task import Example, Message, Prompt, Score

__all__ = [
    "DRAFTER_NEEDS",
    "HARNESS_SHARES",
    "NEEDS",
    "RANGES",
    "Axis",
    "Context",
    "DraftBlock",
    "DraftSetup",
    "Drafter",
    "EngineError",
    "Evidence",
    "Example",
    "Finish",
    "Generation",
    "Limits",
    "Measures",
    "Message",
    "Metric",
    "Origin",
    "PartialForward",
    "Prompt",
    "Score",
    "Timing",
    "Verdict",
    "Verifier",
    "needs_of",
]
