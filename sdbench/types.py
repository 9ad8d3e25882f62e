"""The nouns and the protocols everybody shares. Tensors are named for type checkers only: importing this brings no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat: role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked: plain text, or turns for its own chat template; `prefix` starts the answer in its name."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data set, ready to be asked; `id` is the data set's own, or the row number where it has none."""

    id: str
    row: Mapping[str, Any]
    prompt: Prompt
    is_prompt_cut: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """What a completion is worth: per-example values, sufficient statistics of corpus metrics, and flags."""

    values: Mapping[str, float]
    stats: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)


class Task(Protocol):
    """A data set under one prompt protocol. `metric` names the headline among `Score.values`."""

    name: str
    version: str
    protocol: str
    metric: str
    max_new_tokens: int
    stop: tuple[str, ...]

    def examples(self) -> Iterable[Example]:
        """The subset asked for, in the order of its seed."""
        ...

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """The example itself, or its prompt cut by the protocol's rule to at most `limit` tokens."""
        ...

    def score(self, example: Example, completion: str) -> Score:
        """Pure in its arguments; cuts at the stop strings first."""
        ...


# The engine's nouns. B rows, K drafted slots, V vocabulary. A *law* is a float tensor [..., V], or int64 ids [...]: all mass on
# one token, as at temperature 0.

Origin = Literal["accepted", "replacement", "bonus"]
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """What a drafter proposes: row b drafts lengths[b] <= K tokens; past that its slots hold anything and count nowhere."""

    tokens: Tensor  # [B,K] int64
    q: Tensor  # law [B,K,V], or ids [B,K]: the law each token was really sampled from
    lengths: Tensor  # [B] int64, 0..K
    logits: Tensor | None = None  # [B,K,V] un-tempered, kept where a rule needs "raw"
    hidden: Tensor | None = None  # [B,K,d] of the draft model, kept where a rule needs "draft_hidden"

    @classmethod
    def empty(cls, lengths: Tensor) -> DraftBlock:
        """No slots at all, for len(lengths) rows."""
        none = lengths.new_empty(len(lengths), 0)
        return cls(none, none, lengths)

    def rows(self, index: Any) -> DraftBlock:
        """The same block for a slice or an index [b] of its rows."""
        return DraftBlock(*(None if x is None else x[index] for x in _fields(self)))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule may look at. `p` has one position more than the draft: the bonus. raw_p, raw_q are made on demand."""

    p: Tensor  # law [B,K+1,V], or ids [B,K+1]
    draft: DraftBlock
    is_greedy: bool = False
    logits: Tensor | None = None  # [B,K+1,V] un-tempered, kept where a rule needs "raw"
    target_hidden: Tensor | None = None  # [B,K+1,d], kept where a rule needs "target_hidden"

    @property
    def raw_p(self) -> Tensor:
        """The target's un-tempered log-law [B,K+1,V]."""
        assert self.logits is not None, 'a rule that reads raw_p names "raw" in its needs'
        return self.logits.log_softmax(-1)

    @property
    def raw_q(self) -> Tensor:
        """The draft's un-tempered log-law [B,K,V]."""
        assert self.draft.logits is not None, 'a rule that reads raw_q names "raw" in its needs'
        return self.draft.logits.log_softmax(-1)

    def rows(self, index: Any) -> Evidence:
        """The same evidence for a slice or an index [b] of its rows."""
        logits, hidden = (None if x is None else x[index] for x in (self.logits, self.target_hidden))
        return replace(self, p=self.p[index], draft=self.draft.rows(index), logits=logits, target_hidden=hidden)


def _fields(block: DraftBlock) -> tuple[Tensor | None, ...]:
    return block.tokens, block.q, block.lengths, block.logits, block.hidden


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decides: keep draft[:accepted], then emit next_token."""

    accepted: Tensor  # [B] int64, 0..lengths
    next_token: Tensor  # [B] int64
    state: Tensor | None = None  # [B,S], what a stateful rule carries to the row's next round


@dataclass(frozen=True, slots=True)
class Measures:
    """What is known about drafted positions without sampling; NaN where an identity does not hold."""

    p: Tensor  # [B,K] the drafted token's probability under the target
    q: Tensor  # [B,K] … and under the draft
    tv: Tensor  # [B,K] TV(p,q)
    expected: Tensor  # [B,K] acceptance probability, sum of q·a
    bias: Tensor  # [B,K] TV(out,p)


class Verifier(Protocol):
    """A rule. `needs`: what it reads beside p, q and the draft: "raw" or "raw_if_greedy", "target_hidden", "draft_hidden"."""

    @property
    def needs(self) -> frozenset[str]: ...

    def is_lossless(self) -> Tensor:
        """[B] bool (B is 1 where no knob is stacked): whether what is emitted has the target's law."""
        ...

    def init_state(self, num_rows: int) -> Tensor | None:
        """[B,S], or None for a rule that carries nothing."""
        ...

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        """u [B,K+1] float64 in [0, 1): a coin for each drafted slot, and one to draw the next token."""
        ...

    def measure(self, evidence: Evidence) -> Measures:
        """Exact values at all drafted positions, paid for only with `measure=True`."""
        ...


class Context(Protocol):
    """What the engine tells a drafter: the texts so far, one row a sequence. Texts differ in length and are right-padded.

    Where steps are captured, rows without a text may follow: they have length 1, and what is drafted for them counts nowhere.
    """

    @property
    def tokens(self) -> Tensor:
        """[B,L] int64."""
        ...

    @property
    def lengths(self) -> Tensor:
        """[B] int64, at least 1."""
        ...

    @property
    def longest(self) -> int:
        """The longest of them, known without a synchronisation."""
        ...


@dataclass(frozen=True, slots=True)
class Feedback:
    """The last round's evidence and verdict, for drafters whose `needs` name "feedback"."""

    evidence: Evidence
    verdict: Verdict


class Drafter(Protocol):
    """Where drafts come from. Rows are admitted, moved and overwritten by the engine; a drafter keeps what it caches for them."""

    @property
    def needs(self) -> frozenset[str]: ...

    def open(self, num_rows: int, capacity: int) -> None:
        """Room for `num_rows` texts of at most `capacity` tokens; drops what was there."""
        ...

    def close(self) -> None:
        """The batch is done with: nothing cached is read any more."""
        ...

    def prefill(self, prompt: Tensor) -> Any:
        """Whatever is worth computing once for all rows of a prompt [L]."""
        ...

    def admit(self, row: int, prefix: Any) -> None:
        """A new text in `row`, whose prompt gave `prefix`."""
        ...

    def move(self, source: int, row: int) -> None:
        """The text of row `source` is now in `row`."""
        ...

    def draft(
        self, context: Context, k: int, lengths: Tensor, u: Tensor, feedback: Feedback | None, needs: frozenset[str]
    ) -> DraftBlock:
        """Propose k tokens a row, of which lengths [B] count, with the uniforms u [B,k]; `needs`: what the rules will read."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one generation, the device synchronised at every reading. The split is NaN unless it was asked for."""

    prefill_s: float
    decode_s: float
    first_token_s: float  # from the start of the prefill to the end of the round that emitted it
    rounds_s: tuple[float, ...]
    draft_s: float = float("nan")
    verify_s: float = float("nan")
    rest_s: float = float("nan")


@dataclass(frozen=True, slots=True)
class Generation:
    """One decoded text and its counts. Flat lists run over the rounds; sum(drafted), sum(examined) and len(tokens) long.

    Positions beyond a cut (a stop id or a stop string inside a round) count nowhere. All rounds but the last emit accepted + 1.
    """

    prompt: int
    verifier: int
    sample: int
    tokens: tuple[int, ...]  # new ids, the stop id included if it ended on one
    finish: Finish
    drafted: tuple[int, ...]  # a round
    examined: tuple[int, ...]  # a round: positions whose token, or whose replacement, reached the text
    accepted: tuple[int, ...]  # a round
    origins: tuple[Origin, ...]  # an emitted token; "bonus" also where no draft was made
    draft_tokens: tuple[int, ...]  # a drafted position
    p: tuple[float, ...] = ()  # a drafted position; this and all below are empty with measure=False
    q: tuple[float, ...] = ()
    tv: tuple[float, ...] = ()  # an examined position
    expected: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()
    request: int = 0  # its place in the stream it came from
    timing: Timing | None = None
