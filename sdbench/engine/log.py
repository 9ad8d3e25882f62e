"""What happened to one text, round by round, until it is a Generation."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from sdbench.engine.request import Request
from sdbench.types import Finish, Generation, Origin, Timing

ShouldStop = Callable[[list[int]], bool]


@dataclass(slots=True)
class Log:
    """The new text of a request and its counts."""

    request: Request
    place: int  # in the stream
    budget: int
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    drafted: list[int] = field(default_factory=list)
    examined: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    draft_tokens: list[int] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    q: list[float] = field(default_factory=list)
    tv: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    bias: list[float] = field(default_factory=list)
    prefill_s: float = 0.0
    laps: list[dict[str, float]] = field(default_factory=list)

    @property
    def num_draft(self) -> int:
        """As transformers: one token of the budget is left for what the target adds."""
        return min(self.request.num_draft, self.budget - len(self.tokens) - 1)

    def add(
        self,
        draft: list[int],
        accepted: int,
        next_token: int,
        measures: list[list[float]] | None,
        stop_ids: Container[int],
        should_stop: ShouldStop | None,
    ) -> None:
        """One round. A cut drops what was emitted past it, and the positions beyond it count nowhere."""
        num_new = accepted + 1
        new = [*draft[:accepted], next_token]
        before = len(self.tokens)
        self.tokens += new
        cut = next((i + 1 for i, token in enumerate(new) if token in stop_ids), None)
        if should_stop is not None and should_stop(self.tokens[: before + (cut or num_new)]):
            cut = next(i for i in range(1, (cut or num_new) + 1) if should_stop(self.tokens[: before + i]))
        if cut is not None:
            self.finish = "stop"
        elif before + num_new >= self.budget:
            self.finish = "length"
        kept, drafted = min(accepted, cut or num_new), len(draft)
        if cut is not None and cut < num_new:
            drafted = cut
            del self.tokens[before + cut :]
        examined = min(accepted + 1, drafted)
        self.drafted.append(drafted)
        self.examined.append(examined)
        self.accepted.append(kept)
        self.origins += ["accepted"] * kept
        if len(self.tokens) - before > kept:
            self.origins.append("replacement" if accepted < len(draft) else "bonus")
        self.draft_tokens += draft[:drafted]
        if measures is not None:
            p, q, tv, expected, bias = measures
            self.p += p[:drafted]
            self.q += q[:drafted]
            self.tv += tv[:examined]
            self.expected += expected[:examined]
            self.bias += bias[:examined]

    def generation(self, timing: Timing | None) -> Generation:
        assert self.finish is not None
        request = self.request
        columns = (self.drafted, self.examined, self.accepted, self.origins, self.draft_tokens)
        floats = (self.p, self.q, self.tv, self.expected, self.bias)
        return Generation(
            request.prompt,
            request.verifier,
            request.sample,
            tuple(self.tokens),
            self.finish,
            *(tuple(x) for x in columns),  # pyright: ignore[reportArgumentType]
            *(tuple(x) for x in floats),
            request=self.place,
            timing=timing,
        )
