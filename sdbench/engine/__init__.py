"""The decode loop: draft, score, verify, commit, for rows that come and go."""

from sdbench.engine.engine import Engine
from sdbench.engine.generate import generate
from sdbench.engine.loop import Options
from sdbench.engine.row import Request

__all__ = ["Engine", "Options", "Request", "generate"]
