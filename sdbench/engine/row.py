"""A text while it is being decoded: its request, tokens and counts on the host, and the Generation that results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sdbench.noise import Key
from sdbench.types import Generation, Origin, Timing

StopTest = Callable[[Sequence[int]], bool]
NUM_MEASURES = 5  # p, q, tv, expected, bias


@dataclass(frozen=True, slots=True)
class Request:
    """One text to decode: indices into the stream's prompts and verifiers; `key` and `sample` determine its noise."""

    prompt: int
    verifier: int
    sample: int
    key: Key
    num_draft: int


@dataclass(slots=True, eq=False)
class Decoding:
    """Counts and tokens of a request so far."""

    index: int  # of the request in its stream
    request: Request
    family: int
    num_prompt: int
    num_prefilled: int  # tokens of the prompt that the target has read before the first round
    budget: int
    prefill_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    examined: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    draft_tokens: list[int] = field(default_factory=list)
    measures: tuple[list[float], ...] = field(default_factory=lambda: tuple([] for _ in range(NUM_MEASURES)))
    rounds_s: list[float] = field(default_factory=list)
    split_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    is_stopped: bool = False

    @property
    def length(self) -> int:
        """Tokens of the text, including the prompt."""
        return self.num_prompt + len(self.tokens)

    @property
    def num_unread(self) -> int:
        """How many of the last tokens the target has not read: one, or before the first round the rest of the prompt."""
        return 1 if self.drafted else self.num_prompt - self.num_prefilled

    @property
    def reads_prompt(self) -> bool:
        """Return whether the first round reads more of the prompt than its last token."""
        return self.num_prompt - self.num_prefilled > 1

    @property
    def draft_length(self) -> int:
        """How many tokens to draft now; the budget keeps room for the token that follows the draft, as in transformers."""
        return min(self.request.num_draft, self.budget - len(self.tokens) - 1)

    @property
    def is_done(self) -> bool:
        return self.is_stopped or len(self.tokens) >= self.budget

    def commit(
        self,
        offered: int,
        accepted: int,
        next_token: int,
        drafted: list[int],
        spared: list[int],
        measures: list[list[float]] | None,
        stop_ids: frozenset[int],
        should_stop: StopTest | None,
    ) -> None:
        """Apply a verdict on the first `offered` drafts; nothing after a stop counts. `spared`: which drafts were not judged."""
        kept = 0
        for token in (*drafted[:accepted], next_token):
            kept += 1
            self.tokens.append(token)
            if token in stop_ids or (should_stop is not None and should_stop(self.tokens)):
                self.is_stopped = True
                break
        origins: list[Origin] = ["sure" if is_spared else "accepted" for is_spared in spared[:accepted]]
        origins.append("replacement" if accepted < offered else "bonus")
        self.origins += origins[:kept]
        length = min(offered, kept) if self.is_stopped else offered
        examined = min(kept, length)
        self.drafted.append(length)
        self.examined.append(examined)
        self.accepted.append(min(kept, accepted))
        self.draft_tokens += drafted[:length]
        if measures is not None:
            counts = (length, length, examined, examined, examined)
            for values, count, new in zip(self.measures, counts, measures, strict=True):
                values += new[:count]

    def finish(self, timing: Timing | None) -> Generation:
        request = self.request
        return Generation(
            prompt=request.prompt,
            verifier=request.verifier,
            sample=request.sample,
            tokens=tuple(self.tokens),
            finish="stop" if self.is_stopped else "length",
            drafted=tuple(self.drafted),
            examined=tuple(self.examined),
            accepted=tuple(self.accepted),
            origins=tuple(self.origins),
            draft_tokens=tuple(self.draft_tokens),
            request=self.index,
            timing=timing,
            **dict(zip(("p", "q", "tv", "expected", "bias"), map(tuple, self.measures), strict=True)),
        )
