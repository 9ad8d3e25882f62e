"""The nouns and the protocols everybody shares. Tensors are named for type checkers only: importing this brings no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class EngineError(Exception):
    """An engine outside this process no longer answers: it ends a run, and is no failure of a cell."""


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


Unit = Literal["share", "points", "raw"]
RANGES: Mapping[str, tuple[float | None, float | None]] = {
    "share": (0.0, 1.0),
    "points": (0.0, 100.0),
    "raw": (None, None),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure that a task declares: how its scores are shown, which way is better, between which bounds they lie.

    A share is stored on 0–1 and shown ×100, points are stored as they are shown, anything else is raw. `stats` names the
    function of summed statistics that a corpus metric is ("bleu", "chrf2", "ratio", or "module:function").
    """

    name: str
    unit: Unit = "raw"
    best: Literal["high", "low"] = "high"
    bounds: tuple[float | None, float | None] | None = None  # of a stored score; None: those of the unit
    stats: str | None = None

    def __post_init__(self) -> None:
        if self.unit not in RANGES:
            raise ValueError(f"unit of metric {self.name} must be share, points or raw, got {self.unit!r}")
        if self.best not in ("high", "low"):
            raise ValueError(f"best of metric {self.name} must be high or low, got {self.best!r}")
        low, high = RANGES[self.unit] if self.bounds is None else self.bounds
        if low is not None and high is not None and not low < high:
            raise ValueError(f"bounds of metric {self.name} must be a lower and a higher number, got {low} and {high}")
        object.__setattr__(self, "bounds", (low, high))

    @property
    def is_bounded(self) -> bool:
        """Whether both bounds are known: without them no loss can be proved small."""
        return self.bounds is not None and None not in self.bounds

    @property
    def scale(self) -> float:
        """What a stored score is multiplied with where it is shown."""
        return 100.0 if self.unit == "share" else 1.0

    @property
    def point(self) -> float | None:
        """One point of 100 on the scale of stored scores; None where it is not bounded."""
        low, high = self.bounds or (None, None)
        return None if low is None or high is None else (high - low) / 100

    def holds(self, value: float) -> bool:
        """Whether a score lies within the bounds."""
        low, high = self.bounds or (None, None)
        return (low is None or value >= low) and (high is None or value <= high)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "best": self.best, "bounds": self.bounds, "stats": self.stats}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metric:
        low, high = data.get("bounds") or (None, None)
        return cls(data["name"], data["unit"], data["best"], (low, high), data.get("stats"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Where a cell stands on a knob of its rule: `rank` is the distance from the strict end, which equals the rule `equals`.

    A rank of None is a knob without an order, such as a choice of formulas: each of its values is a curve of its own.
    """

    knob: str
    value: float | int | str | bool
    rank: float | None = None
    equals: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"knob": self.knob, "value": self.value, "rank": self.rank, "equals": self.equals}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Axis:
        return cls(data["knob"], data["value"], data.get("rank"), data.get("equals"))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rule or a drafter cannot do, stated on its class and checked before weights are read. The default: nothing."""

    temperature: Literal["any", "zero", "above_zero"] = "any"
    draft_model: bool = False  # it reads a draft model's laws
    logits: bool = False  # it reads the draft's un-tempered logits
    states: bool = False  # it reads the draft's hidden states
    num_draft: tuple[int, int | None] = (0, None)  # the shortest and the longest block

    def broken_by(
        self, name: str, *, temperature: float, num_draft: int, has_draft_model: bool, has_logits: bool
    ) -> str | None:
        """The sentence that says what this setting breaks; None if it breaks nothing. `name` as in "verifier=typical"."""
        low, high = self.num_draft
        if self.states and not has_logits:
            return f"{name} reads the states of a draft model, and this drafter has none"
        if self.temperature == "zero" and temperature > 0:
            return f"{name} works at temperature 0 only, got temperature={temperature:g}"
        if self.temperature == "above_zero" and temperature == 0:
            return f"{name} needs a temperature above 0, got temperature=0"
        if self.draft_model and not has_draft_model:
            return f"{name} needs a draft model, and there is none"
        if self.logits and not has_logits:
            return f"{name} reads the draft's logits, and this drafter gives none"
        if num_draft < low or (high is not None and num_draft > high):
            wanted = f"at least {low}" if high is None else f"exactly {low}" if low == high else f"from {low} to {high}"
            return f"{name} takes a num_draft of {wanted}, got num_draft={num_draft}"
        return None


# The engine's nouns. B rows, K drafted slots, V vocabulary. A *law* is a float tensor [..., V], or int64 ids [...]: all mass on
# one token, as at temperature 0.

Origin = Literal["accepted", "replacement", "bonus"]
Finish = Literal["stop", "length"]

# What may be read beside p, q and the draft. "raw": un-tempered logits of both sides; "raw_if_greedy": the same at temperature 0.
NEEDS = frozenset({"raw", "raw_if_greedy", "target_hidden", "draft_hidden"})
# What a drafter may ask for: a draft model, a tokenizer, and what of the target `prefill` and `observe` are to bring.
DRAFTER_NEEDS = frozenset({"draft", "tokenizer", "raw", "target_hidden"})


def needs_of(part: object, known: frozenset[str] = NEEDS) -> frozenset[str]:
    """What a rule or a drafter (known=DRAFTER_NEEDS) asks for; one that says nothing needs nothing."""
    needs = frozenset(getattr(part, "needs", ()))
    unknown = sorted(needs - known)
    if unknown:
        name = part.__name__ if isinstance(part, type) else type(part).__name__
        raise ValueError(f"{name} needs {unknown[0]!r}, which nobody provides (choices: {', '.join(sorted(known))})")
    return needs


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """What a drafter proposes: row b offers lengths[b] tokens, at most what was asked; its other slots hold anything."""

    tokens: Tensor  # [B,K] int64; K may be smaller than what was asked
    q: Tensor  # law [B,K,V], or ids [B,K]: the law each token was really sampled from
    lengths: Tensor  # [B] int64, 0..K: what is offered, and what is counted
    logits: Tensor | None = None  # [B,K,V] un-tempered, kept where a rule needs "raw"
    hidden: Tensor | None = (
        None  # [B,K,d] each token was sampled from, after the final norm; where a rule needs "draft_hidden"
    )

    @classmethod
    def empty(cls, lengths: Tensor) -> DraftBlock:
        """No slots at all, for len(lengths) rows."""
        none = lengths.new_empty(len(lengths), 0)
        return cls(none, none, lengths.new_zeros(len(lengths)))

    def rows(self, index: Any) -> DraftBlock:
        """The same block for a slice or an index [b] of its rows."""
        return DraftBlock(*(None if x is None else x[index] for x in _fields(self)))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule may look at. `p` has one position more than the draft: the bonus. raw_p, raw_q are worked out when read."""

    p: Tensor  # law [B,K+1,V], or ids [B,K+1]
    draft: DraftBlock
    is_greedy: bool = False
    logits: Tensor | None = None  # [B,K+1,V] un-tempered, kept where a rule needs "raw"
    target_hidden: Tensor | None = None  # [B,K+1,d]: slot i predicts draft i; kept where a rule needs "target_hidden"

    @property
    def raw_p(self) -> Tensor:
        """The target's un-tempered log-law [B,K+1,V]."""
        assert self.logits is not None, 'a rule that reads raw_p names "raw" in its needs'
        return self.logits.log_softmax(-1)

    @property
    def raw_q(self) -> Tensor:
        """The draft's un-tempered log-law [B,K,V]; of a draft without logits, that of its ids: 0 there, −inf elsewhere."""
        if self.draft.logits is not None:
            return self.draft.logits.log_softmax(-1)
        assert self.logits is not None, 'a rule that reads raw_q names "raw" in its needs'
        assert not self.draft.q.is_floating_point(), "a drafter that samples from a law keeps its logits where asked"
        lowest = self.logits[:, :-1].new_full(self.logits[:, :-1].shape, -float("inf"))
        return lowest.scatter_(-1, self.draft.q[..., None], 0)

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
    """A rule. It may also have `version` (a text), `limits` (Limits) and `needs` (a set of NEEDS); one without has none."""

    def is_lossless(self) -> Tensor:
        """[B] bool (B is 1 where no knob is stacked): whether what is emitted has the target's law."""
        ...

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        """[B,S] on that device for texts that begin with these prompts [L], or None for a rule that carries nothing."""
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
class DraftSetup:
    """What a drafter is built from. `draft` is there where its `needs` name it, `tokenizer` where the caller has one."""

    target: Any  # lm.LM
    warp: Any  # probs.Warp: the law that tokens are to be sampled from
    draft: Any = None  # lm.LM
    tokenizer: Any = None


class Drafter(Protocol):
    """Where drafts come from. Rows are admitted, moved and overwritten by the engine; a drafter keeps what it caches for them.

    `sdbench.draft.BaseDrafter` holds the empty methods. It may also have `version`, `limits` and `needs` (a set of
    DRAFTER_NEEDS); one without has none. With `prefill_all(prompts, prefixes)` short prompts come to it together.
    """

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        """Room for `num_rows` texts of at most `capacity` tokens; drops what was there. `cache`: the target's (lm.RaggedCache)."""
        ...

    def prefill(self, prompt: Tensor, prefix: Any) -> Any:
        """Whatever is worth computing once for all rows of a prompt [L]. `prefix`: the target's, of prompt[:-1] (lm.Prefix)."""
        ...

    def admit(self, row: int, prefix: Any) -> None:
        """A new text in `row`, whose prompt gave `prefix` here."""
        ...

    def move(self, source: int, row: int) -> None:
        """The text of row `source` is now in `row`."""
        ...

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        """Propose at most k tokens a row, of which at most lengths [B] count, with the uniforms u [B,k].

        `needs`: what the rules will read of the draft, "raw" and "draft_hidden" among them.
        """
        ...

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """After every commit, before any row moves or leaves: emitted [B,K+1], of which accepted + 1 count in each row."""
        ...

    def close(self) -> None:
        """The batch is done with: nothing cached is read any more."""
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
    None is what an engine does not tell: of its rounds, of where a token came from, of the drafts that it refused.
    """

    prompt: int
    verifier: int
    sample: int
    tokens: tuple[int, ...]  # new ids, the stop id included if it ended on one
    finish: Finish
    drafted: tuple[int, ...] | None  # a round
    examined: tuple[int, ...] | None  # a round: positions whose token, or whose replacement, reached the text
    accepted: tuple[int, ...] | None  # a round
    origins: tuple[Origin, ...] | None  # an emitted token; "bonus" also where no draft was made
    draft_tokens: tuple[int, ...] | None  # a drafted position
    p: tuple[float, ...] | None = ()  # a drafted position; this and the four below are empty with measure=False
    q: tuple[float, ...] | None = ()
    tv: tuple[float, ...] | None = ()  # an examined position
    expected: tuple[float, ...] | None = ()
    bias: tuple[float, ...] | None = ()
    request: int = 0  # its place in the stream it came from
    timing: Timing | None = None
