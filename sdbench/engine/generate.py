"""The public call: checks, then prompts × verifiers × samples as one stream."""

from collections.abc import Callable, Sequence
from typing import Any

from sdbench.draft import ModelDrafter, NoDraft
from sdbench.engine.loop import Options, stream
from sdbench.engine.row import Request, StopTest
from sdbench.lm import LM, Mode, used_vocab
from sdbench.noise import Key
from sdbench.probs import Warp
from sdbench.types import Drafter, Generation, Verifier


def generate(
    target: Any,
    draft: Any,
    prompts: Sequence[Sequence[int]],
    verifiers: Sequence[Verifier],
    *,
    num_draft: int = 5,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 128,
    stop_ids: Sequence[int] | None = None,
    should_stop: StopTest | None = None,
    vocab_size: int | None = None,
    samples: int = 1,
    keys: Sequence[Key] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    measure: bool = True,
    progress: Callable[[Generation], None] | None = None,
    timing: bool | str | None = None,
    capture: Mode | None = None,
) -> list[Generation]:
    """Decode every prompt under every verifier, `samples` times each; generations in the order prompt, verifier, sample.

    target, draft: transformers models in memory; draft=None decodes autoregressively. prompts: lists of token ids.
    stop_ids None: the end-of-text ids of the target's generation_config; (): none. should_stop: called with a text's new ids.
    keys: one int or string per prompt, default its index; they name the noise. progress: called with each generation that
    ended. timing: True for seconds of each generation, "split" for those of draft, verification and the rest too. capture:
    how the steps of a round run: "off" eagerly, "trace" without Python, "graphs" recorded once for each shape and replayed (CUDA
    graphs; elsewhere a rehearsal), "compile" by torch.compile; None: graphs for a model on one CUDA device, on the CPU traces
    of what has come back often, else off. Texts do not depend on it; all but "off" keep the memory of the last cache.

    The output depends on (seed, key, sample, verifier) only, in float64 token for token; in lower precision a batch of another
    shape may round a near-tie differently.
    """
    _at_least("num_draft", num_draft, 0)
    _at_least("max_new_tokens", max_new_tokens, 1)
    _at_least("samples", samples, 1)
    _at_least("batch_size", batch_size, 1)
    if not verifiers:
        raise ValueError("verifiers must name at least one rule")
    if samples > 1 and temperature == 0:
        raise ValueError(f"samples must be 1 at temperature 0, where all samples are the same, got {samples}")
    names = list(range(len(prompts))) if keys is None else list(keys)
    if len(names) != len(prompts) or len(set(names)) != len(names):
        raise ValueError(f"keys must be one per prompt, all different: got {len(names)} for {len(prompts)} prompts")
    judge = LM(target, capture=capture)
    helper = None if draft is None else LM(draft, role="draft", capture=capture)
    used = used_vocab(judge, helper, vocab_size)
    _check_prompts(prompts, used, [lm for lm in (judge, helper) if lm is not None], max_new_tokens)
    warp = Warp(temperature, top_k, top_p, used)
    k = num_draft if helper is not None else 0
    drafter: Drafter = NoDraft() if helper is None else ModelDrafter(helper, warp)
    requests = [
        Request(prompt, rule, sample, key, k)
        for prompt, key in enumerate(names)
        for rule in range(len(verifiers))
        for sample in range(samples)
    ]
    options = Options(
        warp=warp,
        max_new_tokens=max_new_tokens,
        stop_ids=frozenset(judge.stop_ids if stop_ids is None else stop_ids),
        should_stop=should_stop,
        seed=seed,
        batch_size=batch_size,
        is_measured=measure,
        timing=timing,
    )
    found: list[Generation | None] = [None] * len(requests)
    for generation in stream(judge, drafter, prompts, verifiers, requests, options):
        found[generation.request] = generation
        if progress is not None:
            progress(generation)
    return [generation for generation in found if generation is not None]


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def _check_prompts(prompts: Sequence[Sequence[int]], used: int, models: Sequence[LM], max_new_tokens: int) -> None:
    """Empty prompts, ids that no model has, texts longer than a model's limit."""
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompts must not be empty, but prompt {number} is")
        if min(prompt) < 0 or max(prompt) >= used:
            raise ValueError(f"prompts must be ids from 0 to {used - 1}, but prompt {number} has {max(prompt)}")
        for model in models:
            if model.limit is not None and len(prompt) + max_new_tokens > model.limit:
                raise ValueError(
                    f"max_new_tokens={max_new_tokens} after the {len(prompt)} tokens of prompt {number} exceeds the "
                    f"{model.limit} positions of the {model.role} model"
                )
