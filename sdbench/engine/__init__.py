"""The decode loop: draft, score, verify, commit, for rows that come and go.

`generate` decodes prompts × verifiers × samples and returns them in that order; an `Engine` keeps what outlives a call, and its
`stream` decodes any list of requests and yields each generation as it ends.
"""

from sdbench.engine.engine import Engine
from sdbench.engine.generate import generate
from sdbench.engine.loop import Options
from sdbench.engine.row import Request

__all__ = ["Engine", "Options", "Request", "generate"]
