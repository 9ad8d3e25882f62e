"""Batched, ragged, exact speculative decoding.

    for generation in stream(target, draft, requests, decoding=…): ...     # any list of requests, as they finish
    generations = generate(target, draft, prompts, verifiers=[…])          # prompt × verifier × sample, in order

In float64 a generation depends on (seed, key, sample, verifier, num_draft) only. In lower precision the shapes of a batch change
the last bits of a product, so that texts are equal up to near-ties.
"""

from collections.abc import Callable, Iterator, Sequence

from transformers import PreTrainedModel

from sdbench.draft import ModelDrafter
from sdbench.engine.clock import Mode
from sdbench.engine.log import ShouldStop
from sdbench.engine.loop import Decoding, Stream
from sdbench.engine.request import Request, product
from sdbench.lm import LM, used_vocab
from sdbench.noise import Key
from sdbench.probs import Warp
from sdbench.types import Generation, Verifier
from sdbench.verify import Exact

__all__ = ["Decoding", "Request", "Stream", "generate", "stream"]


def stream(
    target: PreTrainedModel | LM,
    draft: PreTrainedModel | LM | None,
    requests: Sequence[Request],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 128,
    stop_ids: Sequence[int] | None = None,
    should_stop: ShouldStop | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    measure: bool = True,
    clock: Mode = "off",
) -> Iterator[Generation]:
    """One batch stream over any requests; yields as they finish, `Generation.request` being the place in the list.

    Order requests prompt by prompt: a prompt is prefilled once for all its requests and forgotten after the last. The draft alone is
    a stream with the draft model as target and num_draft 0. `should_stop` sees the new ids; once true for a text it stays true for
    what begins with it. clock="rounds" fills Generation.timing, "split" also its parts; models may be wrapped once as `LM`s.
    """
    theirs = target if isinstance(target, LM) else LM(target)
    ours = draft if isinstance(draft, LM) or draft is None else LM(draft, role="draft")
    warp = Warp(temperature, top_k, top_p, used_vocab(theirs, ours, vocab_size))
    stops = frozenset(theirs.stop_ids if stop_ids is None else stop_ids)
    decoding = Decoding(warp, max_new_tokens, stops, should_stop, seed, batch_size, measure, clock)
    limits = [lm.limit for lm in (theirs, ours) if lm is not None and lm.limit is not None]
    for request in requests:
        request.check(
            max_new_tokens=max_new_tokens,
            limit=min(limits, default=None),
            vocab_size=warp.vocab_size or 0,
            is_greedy=warp.is_greedy,
            has_draft=ours is not None,
        )
    return iter(Stream(theirs, None if ours is None else ModelDrafter(ours, warp), requests, decoding))


def generate(
    target: PreTrainedModel | LM,
    draft: PreTrainedModel | LM | None,
    prompts: Sequence[Sequence[int]],
    *,
    verifiers: Sequence[Verifier] = (Exact(),),
    num_draft: int = 5,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 128,
    stop_ids: Sequence[int] | None = None,
    should_stop: ShouldStop | None = None,
    vocab_size: int | None = None,
    samples: int = 1,
    keys: Sequence[Key] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    measure: bool = True,
    progress: Callable[[Generation], None] | None = None,
) -> list[Generation]:
    """Every prompt under every verifier, in one batch stream: prompt × verifier × sample, in that order.

    draft=None decodes plainly. stop_ids=None takes all end-of-text ids of the target's generation_config, () none. `keys` name the
    prompts for the noise (default: their index), so that outputs follow a prompt through any order. `progress` is called with each
    generation as it finishes.
    """
    if num_draft < 0:
        raise ValueError(f"num_draft must be at least 0, got {num_draft}")
    if samples < 1 or (samples > 1 and temperature == 0):
        raise ValueError(f"samples must be at least 1, and 1 at temperature 0, got {samples}")
    if keys is not None and len(keys) != len(prompts):
        raise ValueError(f"keys must name each of the {len(prompts)} prompts, got {len(keys)}")
    names = range(len(prompts)) if keys is None else keys
    requests = product(prompts, verifiers, names, num_draft if draft is not None else 0, samples)
    done: dict[int, Generation] = {}
    for generation in stream(
        target,
        draft,
        requests,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        should_stop=should_stop,
        vocab_size=vocab_size,
        seed=seed,
        batch_size=batch_size,
        measure=measure,
    ):
        done[generation.request] = generation
        if progress is not None:
            progress(generation)
    return [done[i] for i in range(len(requests))]
