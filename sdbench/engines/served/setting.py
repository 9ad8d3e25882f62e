"""What a server cannot change while it runs."""

from __future__ import annotations

from dataclasses import dataclass

PLUGIN = "sdbench"


@dataclass(frozen=True)
class ServerSetting:
    """Who decodes, how many tokens are drafted, and by which rule the server verifies."""

    role: str
    num_draft: int = 0
    rule: str = ""  # JSON of its command line; PLUGIN: with each request

    @property
    def label(self) -> str:
        return self.role if self.role != "pair" else f"num_draft={self.num_draft} {self.rule}"
