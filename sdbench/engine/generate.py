"""The public call: checks, then prompts × verifiers × samples as one stream."""

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

from sdbench.draft import NoDraft
from sdbench.engine.engine import Engine
from sdbench.engine.loop import Options
from sdbench.engine.row import Request, StopTest
from sdbench.lm import Mode
from sdbench.noise import Key
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
    drafter: Drafter | type | str | None = None,
    tokenizer: Any = None,
    engine: Engine | None = None,
) -> list[Generation]:
    """Decode every prompt under every verifier, `samples` times each; generations in the order prompt, verifier, sample.

    target, draft: transformers models in memory; draft=None without a drafter decodes autoregressively. prompts: lists of token
    ids. stop_ids None: the end-of-text ids of the target's generation_config; (): none. should_stop: called with a text's new ids.
    keys: one int or string per prompt, default its index; they name the noise. progress: called with each generation that
    ended. timing: True for seconds of each generation, "split" for those of draft, verification and the rest too. drafter: an
    object, a class, or the name of a file in configs/drafter; None: the draft model. engine: one that lives longer than this
    call and keeps KV caches and captured steps; it has its own models, vocab_size, tokenizer and capture (see Engine), and
    target and draft must be the same models or None.

    The output depends on (seed, key, sample, verifier) only, in float64 token for token; in lower precision a batch of another
    shape may round a near-tie differently.
    """
    num_draft = _whole("num_draft", num_draft, 0)
    max_new_tokens, samples = _whole("max_new_tokens", max_new_tokens, 1), _whole("samples", samples, 1)
    batch_size, seed = _whole("batch_size", batch_size, 1), _whole("seed", seed)
    rules = _rules(verifiers)
    if engine is None:
        engine = Engine(target, draft, tokenizer, vocab_size, capture)
    else:
        _refuse_others(engine, target, draft, tokenizer, vocab_size, capture)
    num_ids = engine.vocab_size or engine.target.vocab_size
    texts = [_ids("prompts", prompt, num_ids, f"prompt {n}") for n, prompt in enumerate(_listed("prompts", prompts))]
    if not all(texts):
        raise ValueError(f"prompts must not be empty, but prompt {texts.index([])} is")
    warp = engine.warp(temperature, top_k, top_p)
    if samples > 1 and warp.is_greedy and not any(getattr(rule, "draws_if_greedy", False) for rule in rules):
        raise ValueError(f"samples must be 1 at temperature 0, where all samples are the same, got {samples}")
    asked = "model" if drafter is None and engine.draft is not None else drafter
    helper = NoDraft() if asked is None else engine.drafter(asked, warp)
    requests = [
        Request(prompt, rule, sample, key, 0 if isinstance(helper, NoDraft) else num_draft)
        for prompt, key in enumerate(_keys(keys, len(texts)))
        for rule in range(len(rules))
        for sample in range(samples)
    ]
    stops = engine.target.stop_ids if stop_ids is None else _ids("stop_ids", stop_ids, num_ids, "it")
    options = Options(
        warp=warp,
        max_new_tokens=max_new_tokens,
        stop_ids=frozenset(stops),
        should_stop=should_stop,
        seed=seed,
        batch_size=batch_size,
        is_measured=measure,
        timing=timing,
    )
    generations: dict[int, Generation] = {}
    for generation in engine.stream(texts, rules, requests, options, helper):
        generations[generation.request] = generation
        if progress is not None:
            progress(generation)
    assert len(generations) == len(requests), "every request ends in a generation"
    return [generations[place] for place in range(len(requests))]


def _whole(name: str, value: Any, low: int | None = None) -> int:
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or (low is not None and number < low):
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return number


def _listed(name: str, value: Any) -> list[Any]:
    """A sequence, or any iterable that is not a text, as a list."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list, got {value!r}")
    return list(value)


def _rules(verifiers: Any) -> list[Verifier]:
    if callable(verifiers) or not isinstance(verifiers, Iterable):
        raise ValueError(f"verifiers must be a list of rules, such as [Exact()], got {type(verifiers).__name__}")
    rules = list(verifiers)
    if not rules:
        raise ValueError("verifiers must name at least one rule")
    for rule in rules:
        if isinstance(rule, type) or not callable(rule):
            name = rule.__name__ if isinstance(rule, type) else repr(rule)
            raise ValueError(f"verifiers must be rules, such as Exact(), but one is {name}")
    return rules


def _ids(name: str, value: Any, num_ids: int, which: str) -> list[int]:
    """Token ids from 0 to num_ids − 1."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        wanted = "a list of token ids" if which == "it" else "a list of lists of token ids"
        raise ValueError(f"{name} must be {wanted}, but {which} is {value!r}")
    ids = []
    for each in value:
        try:
            ids.append(index(each))
        except TypeError:
            raise ValueError(f"{name} must be whole numbers, token ids, but {which} has {each!r}") from None
    wrong = next((each for each in ids if not 0 <= each < num_ids), None)
    if wrong is not None:
        raise ValueError(f"{name} must be ids from 0 to {num_ids - 1}, but {which} has {wrong}")
    return ids


def _keys(keys: Sequence[Key] | None, count: int) -> list[Key]:
    """One key a prompt; NumPy's whole numbers are the numbers that they are."""
    names = [key if isinstance(key, str) else index(key) for key in (range(count) if keys is None else keys)]
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"keys must be one per prompt, all different: got {len(names)} for {count} prompts")
    return names


def _refuse_others(engine: Engine, target: Any, draft: Any, *options: Any) -> None:
    """What an engine has already cannot be said again otherwise."""
    if target not in (None, engine.target_model) or draft not in (None, engine.draft_model):
        raise ValueError("target and draft must be the engine's own models, or None")
    if any(option is not None for option in options):
        raise ValueError("tokenizer, vocab_size and capture are the engine's: give them to Engine(…)")
