"""The decode loop: propose, judge, verify, commit, for rows that come and go.

`generate` decodes prompts × verifiers × samples and returns them in that order; `stream` decodes any list of requests and
yields each generation as it ends.
"""

from sdbench.engine.generate import generate
from sdbench.engine.loop import Options, stream
from sdbench.engine.row import Request

__all__ = ["Options", "Request", "generate", "stream"]
