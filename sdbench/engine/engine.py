"""A target and its draft, with the KV caches and captured steps that are kept from one call to the next."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from sdbench import draft as drafters
from sdbench.engine.loop import BatchRun, Claim, Options, PhaseHook, claim_all, no_hook
from sdbench.engine.rehearsal import Rehearsal
from sdbench.engine.row import Request
from sdbench.errors import is_out_of_memory
from sdbench.lm.capture import Mode
from sdbench.lm.model import LM, used_vocab
from sdbench.lm.packed import PackedWeights
from sdbench.lm.rope import why_limited
from sdbench.probs import Warp
from sdbench.types import DRAFTER_NEEDS, Drafter, DraftSetup, Generation, Limits, Verifier, needs_of
from sdbench.verify import refuse_tensors


@dataclass
class Engine:
    """A target and its draft (None: the drafter reads no model), transformers models in memory.

    vocab_size: how many ids may have mass (None: those that both models have). capture: how the steps of a round run: "off"
    eagerly, "trace" by TorchScript, "graphs" captured once per shape and replayed (CUDA graphs; without CUDA a stand-in for
    tests), "compile" by torch.compile; None: graphs for a model on one CUDA device, traces for a narrow model on a CPU, otherwise
    off. Texts do not depend on it. Captured steps are used until something changes that affects logits (lm/fingerprint.py).
    draft_tokenizer: for drafters that translate, the tokenizer of a draft whose ids differ from the target's; vocab_size is then
    the target's. hook: called around each phase of the loop (engine/loop.py), for example to time it. tokenizer_key: the hash by
    lm.load, if known. packed: on a CPU, multiply by packed copies of the weights (lm/packed.py): faster, but texts can differ by
    rounding, and weights that were not mapped from a file (lm/mapped.py) are in memory twice. A copy is made again when its weight
    changes.
    """

    target_model: Any
    draft_model: Any = None
    tokenizer: Any = None
    vocab_size: int | None = None
    capture: Mode | None = None
    hook: PhaseHook = no_hook
    draft_tokenizer: Any = None
    tokenizer_key: str | None = None
    packed: bool = False
    target: LM = field(init=False)
    draft: LM | None = field(init=False)

    def __post_init__(self) -> None:
        if self.target_model.device.type == "cuda":
            torch.cuda.set_device(self.target_model.device)  # clocks and graphs use the current one
        options: Any = {"capture": self.capture, "packed": PackedWeights() if self.packed else None}
        self.target = LM(self.target_model, **options)
        self.draft = None if self.draft_model is None else LM(self.draft_model, role="draft", **options)
        self.vocab_size = used_vocab(self.target, None if self.draft_tokenizer else self.draft, self.vocab_size)

    @property
    def models(self) -> list[LM]:
        return [self.target, *([] if self.draft is None else [self.draft])]

    def warp(self, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Warp:
        """Return the warpers of both models over the ids that both have."""
        return Warp(temperature, top_k, top_p, self.vocab_size)

    def drafter(self, drafter: object, warp: Warp, options: Mapping[str, Any] | None = None) -> Drafter:
        """Build a drafter for these models from a class or the name of a file in configs/drafter; return an object unchanged."""
        parts = self.target, warp, self.draft, self.tokenizer
        setup = DraftSetup(*parts, draft_tokenizer=self.draft_tokenizer, tokenizer_key=self.tokenizer_key)
        return drafters.build(drafter, setup, options)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        verifiers: Sequence[Verifier],
        requests: Sequence[Request],
        options: Options,
        drafter: Drafter | None = None,
        *,
        role: str = "target",
        claim: Claim | None = None,
    ) -> Iterator[Generation]:
        """Decode the requests with the model of this role (without a drafter: this model alone) and yield each as it ends.
        Requests with the same prompt should be consecutive, so that the prompt is prefilled once. `claim` returns the indices of
        the requests to begin next. It is called whenever no request waits, until it returns none; by default all are begun.
        """
        lm, drafter = self.models[role == "draft"], drafters.NoDraft() if drafter is None else drafter
        for rule, num_draft in {(request.verifier, request.num_draft) for request in requests}:
            refuse_limits(drafter, verifiers[rule], options.warp, num_draft)
        for rule in verifiers:
            refuse_tensors(rule)
        numbers = {request.prompt for request in requests}
        # The limit of a draft with another tokenizer counts other ids; a text that is too long for it is decoded without drafts.
        translates = "draft_tokenizer" in needs_of(drafter, DRAFTER_NEEDS)
        readers = [lm] if translates else self._models_of(lm, drafter)
        refuse_too_long(prompts, numbers, options.max_new_tokens, readers)
        refuse_foreign_ids(prompts, numbers, options.warp.vocab_size or lm.vocab_size)
        batch_run = partial(BatchRun, lm, drafter, prompts, verifiers, options, self.hook, requests)
        num_rows = min(options.batch_size, len(requests))
        return self._decode(batch_run, claim or claim_all(requests), num_rows, may_halve=not options.timing)

    def _models_of(self, lm: LM, drafter: Drafter) -> list[LM]:
        """Return the models that a stream reads: the one that decodes, and the draft if the drafter needs it."""
        return [lm, *([self.draft] if self.draft and "draft" in needs_of(drafter, DRAFTER_NEEDS) else [])]

    def _decode(
        self, batch_run: Callable[..., BatchRun], claim: Claim, num_rows: int, *, may_halve: bool = True
    ) -> Iterator[Generation]:
        """Decode one batch after another, with fewer rows after running out of memory, unless the batch is timed."""
        pending: dict[int, Request] = {}
        while num_rows:
            try:
                yield from batch_run(claim, pending, num_rows).run()
                assert not pending, f"{len(pending)} requests were never finished"
                return
            except Exception as error:
                if not is_out_of_memory(error) or num_rows == 1 or not may_halve:
                    # A kept cache may hold NaN, which would spoil later texts even at masked positions: 0 · NaN is NaN.
                    self.forget()
                    raise
                # Pending requests start again. Their noise is a function of their rounds, so the texts are the same.
                num_rows, before = num_rows // 2, num_rows
                warnings.warn(
                    f"out of memory with {before} rows; going on with {num_rows}", ResourceWarning, stacklevel=2
                )
            self.forget()

    def rehearse(
        self,
        prompts: Sequence[Sequence[int]],
        request: Request,
        rule: Verifier,
        options: Options,
        drafter: Drafter | None = None,
        *,
        role: str = "target",
    ) -> None:
        """Capture, before timing starts, each step that a stream of such requests can need: for every KV length between the
        shortest prompt and the longest text, every number of rows, and every width of the drafter's blocks. The longest KV
        length comes first, because the cache that it allocates has room for the others.

        Not covered: some steps of a draft with another tokenizer. Where it splits the text into another number of tokens than the
        target's tokenizer, shapes depend on the text, and such steps are captured when they first run.
        """
        lm, drafter = self.models[role == "draft"], drafters.NoDraft() if drafter is None else drafter
        models = self._models_of(lm, drafter)
        if all(model.mode == "off" for model in models):
            return
        k, once = request.num_draft, replace(options, max_new_tokens=1)
        shortest, longest = min(map(len, prompts)), max(map(len, prompts)) + options.max_new_tokens - 1
        # A step reads a text and 0 to k tokens after it. The longest text for each KV length is rehearsed, so that all k tokens
        # fit within that length; the shortest text covers the KV lengths before these.
        last = {lm.round_up(size + k): size for size in range(shortest, longest + 1)}
        counts = sorted({lm.num_padded(count, options.batch_size) for count in range(1, options.batch_size + 1)})
        for size in sorted({shortest, *last.values()}, reverse=True):
            text = (list(prompts[0]) * (size // len(prompts[0]) + 1))[:size]
            for count in counts:
                requests = [replace(request, prompt=0, verifier=0, key=number) for number in range(count)]
                batch_run = partial(Rehearsal, lm, drafter, [text], [rule], once, self.hook, requests)
                deque(self._decode(batch_run, claim_all(requests), options.batch_size), 0)
            if not any(model.mode in ("graphs", "compile") for model in models):
                counts = counts[-1:]  # a trace serves every KV length; one number of rows is enough to check each

    def capture_at_once(self) -> None:
        """Capture each step the first time it runs from now on, for example in a warm-up before timing."""
        for model in self.models:
            for lm in (model, *model.pruned.values()):
                lm.patience = 1

    def forget(self) -> None:
        """Free the KV caches that are kept for captured steps, and those of known prompts."""
        for model in self.models:
            model.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def refuse_limits(drafter: Drafter, rule: Verifier, warp: Warp, num_draft: int) -> None:
    """Raise ValueError if a rule or a drafter declares a limit that this temperature, draft length or drafter violates."""
    has_model = "draft" in needs_of(drafter, DRAFTER_NEEDS)
    has_logits = has_model and getattr(drafter, "has_logits", True)
    calls_sure = bool(getattr(drafter, "calls_sure", False))
    setting: Any = {"temperature": warp.temperature, "num_draft": num_draft, "calls_sure": calls_sure}
    for part in (rule, *([drafter] if num_draft else [])):
        limits = getattr(part, "limits", None) or Limits()
        sentence = limits.broken_by(type(part).__name__, has_draft_model=has_model, has_logits=has_logits, **setting)
        if sentence is not None:
            raise ValueError(sentence)


def refuse_foreign_ids(prompts: Sequence[Sequence[int]], numbers: Iterable[int], num_ids: int) -> None:
    """Raise ValueError for a prompt with an id that one of the models lacks, such as a special token added only to the target."""
    for number in sorted(numbers):
        if (largest := max(prompts[number], default=0)) >= num_ids:
            raise ValueError(
                f"prompt {number} has the token id {largest}, and only ids below {num_ids} are used by all models of this run: "
                "if the draft lacks it, give another draft"
            )


def refuse_too_long(
    prompts: Sequence[Sequence[int]], numbers: Iterable[int], max_new_tokens: int, models: Sequence[LM]
) -> None:
    """Raise ValueError for a text that could become longer than a model's number of positions."""
    for model, number in product(models, sorted(numbers)):
        size = len(prompts[number])
        if model.limit is not None and size + max_new_tokens > model.limit:
            text = f"max_new_tokens={max_new_tokens} after the {size} tokens of prompt {number}"
            limit = f"the {model.limit} positions of the {model.role} model{why_limited(model.config)}"
            raise ValueError(f"{text} exceeds {limit}")
