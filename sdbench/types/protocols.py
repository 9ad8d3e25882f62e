"""The protocols of rules and drafters, and their declarations of needs and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sdbench.types.engine import DraftBlock, Evidence, Measures, Verdict

if TYPE_CHECKING:
    from torch import Tensor

# What a rule may read besides p, q and the draft. "raw": un-tempered logits of both models; "raw_if_greedy": the same, only at
# temperature 0; "sure": which tokens the drafter is sure of.
NEEDS = frozenset({"raw", "raw_if_greedy", "target_hidden", "draft_hidden", "sure"})
# What a drafter may need: a draft model, a tokenizer, the draft's tokenizer (which may then differ from the target's), and which
# values of the target `prefill` and `observe` receive.
DRAFTER_NEEDS = frozenset({"draft", "tokenizer", "draft_tokenizer", "raw", "target_hidden", "layer_hidden"})


def needs_of(part: object, known: frozenset[str] = NEEDS) -> frozenset[str]:
    """Return the needs of a rule, or of a drafter (known=DRAFTER_NEEDS); empty if it declares none."""
    needs = frozenset(getattr(part, "needs", ()))
    unknown = sorted(needs - known)
    if unknown:
        name = part.__name__ if isinstance(part, type) else type(part).__name__
        raise ValueError(f"{name} needs {unknown[0]!r}, which does not exist (choices: {', '.join(sorted(known))})")
    return needs


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rule or a drafter cannot do, declared on its class and checked before weights are read. By default no limit."""

    temperature: Literal["any", "zero", "above_zero"] = "any"
    draft_model: bool = False  # it reads the laws of a draft model
    logits: bool = False  # it reads the draft's un-tempered logits
    states: bool = False  # it reads the draft's hidden states
    sure: bool = False  # it keeps what a drafter is sure of (one that declares `calls_sure`)
    num_draft: tuple[int, int | None] = (0, None)  # the shortest and the longest block

    def broken_by(
        self,
        name: str,
        *,
        temperature: float,
        num_draft: int,
        has_draft_model: bool,
        has_logits: bool,
        calls_sure: bool,
        drafter: str = "this drafter",
    ) -> str | None:
        """Return the sentence for the first limit that a setting violates, or None. `name` as in "verifier=typical"."""
        low, high = self.num_draft
        if self.states and not has_logits:
            return f"{name} reads the states of a draft model, and {drafter} has none"
        if self.sure and not calls_sure:
            return f"{name} keeps what a drafter is sure of, and {drafter} is never sure: take drafter=tiers or drafter=gate"
        if self.temperature == "zero" and temperature > 0:
            return f"{name} works at temperature 0 only, got temperature={temperature:g}"
        if self.temperature == "above_zero" and temperature == 0:
            return f"{name} needs a temperature above 0, got temperature=0"
        if self.draft_model and not has_draft_model:
            return f"{name} needs a draft model, and there is none"
        if self.logits and not has_logits:
            return f"{name} reads the draft's logits, and {drafter} gives none"
        if num_draft < low or (high is not None and num_draft > high):
            wanted = f"at least {low}" if high is None else f"exactly {low}" if low == high else f"from {low} to {high}"
            return f"{name} takes a num_draft of {wanted}, got num_draft={num_draft}"
        return None


class Verifier(Protocol):
    """A rule. It may also declare `version` (a text), `limits` (Limits), `needs` (a subset of NEEDS) and `repeats_lossless`
    (bool: at a setting that is lossless, its texts are those of `Exact` token for token, from the same uniforms).
    """

    def is_lossless(self) -> Tensor:
        """Return [B] bool ([1] where no knob is stacked): the emitted tokens follow the target's law."""
        ...

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        """Return the state [B,S] of texts that begin with these prompts [L]; None for a rule without a state."""
        ...

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        """Judge a block with u [B,K+1] float64 in [0, 1): a uniform for each drafted slot and one for the next token."""
        ...

    def measure(self, evidence: Evidence) -> Measures:
        """Return exact values at all drafted positions; called only with `measure=True`."""
        ...


class Context(Protocol):
    """The texts so far, one per row, right-padded. If steps are captured, empty rows of length 1 may follow.

    What is drafted for an empty row is not used.
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
        """The largest length, known without a device synchronisation."""
        ...


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """What a drafter is built from: `draft` if its `needs` name it, `tokenizer` if the caller has one."""

    target: Any  # lm.LM
    warp: Any  # probs.Warp: how logits become the law that tokens are sampled from
    draft: Any = None  # lm.LM
    tokenizer: Any = None
    target_config: Any = None  # the text part of the target's configuration, where it is known before weights are read
    draft_tokenizer: Any = None  # if the draft's may differ from the target's
    # What is known of a run before weights are read: the identities of target and draft, the tokenizer's, and the longest block.
    checkpoint: str | None = None
    draft_checkpoint: str | None = None
    tokenizer_key: str | None = None
    num_draft: int = 0
    # The drafter's options except those of its length, files by a hash of their content, and how draft and target are quantised.
    drafting: Mapping[str, Any] | None = None


class Drafter(Protocol):
    """Proposes tokens. The engine admits, moves and overwrites rows; a drafter keeps its caches in step with them.

    `sdbench.draft.BaseDrafter` has empty methods. A drafter may also declare `version`, `limits`, `needs` (a subset of
    DRAFTER_NEEDS) and `calls_sure` (its blocks say what it is sure of), `prefill_all(prompts, prefixes)` to take short
    prompts together, and `rehearse(context)` to run steps that only some blocks need before rounds are timed.
    """

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        """Make room for `num_rows` texts of at most `capacity` tokens. `cache`: the target's (lm.RaggedCache)."""

    def prefill(self, prompt: Tensor, prefix: Any) -> Any:
        """Compute what all rows with this prompt [L] share. `prefix`: the target's keys and values of prompt[:-1] (lm.Prefix).

        If the drafter declares `reads_target` False, the prefix may be shorter: the target then reads the rest in its first round.
        """
        ...

    def admit(self, row: int, prefix: Any) -> None:
        """Begin a new text in `row`; `prefix` is what `prefill` returned for its prompt."""

    def move(self, source: int, row: int) -> None:
        """Move the text of row `source` to `row`."""

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        """Propose at most k tokens per row, of which the first lengths [B] count, with uniforms u [B,k]. `needs`: of the rules."""
        ...

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """Receive the result of a round, before rows move: emitted [B,K+1], of which the first accepted + 1 count in each row."""

    def close(self) -> None:
        """Release the caches of a finished batch."""
