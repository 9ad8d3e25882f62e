"""The public call: check the arguments, then decode prompts × verifiers × samples as one stream."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from operator import index
from typing import Any

from sdbench.draft import NoDraft
from sdbench.engine.engine import Engine
from sdbench.engine.loop import Options
from sdbench.engine.row import Request, StopTest
from sdbench.lm.capture import Mode
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
    """Decode every prompt under every verifier, `samples` times each; return generations in the order prompt, verifier, sample.

    target, draft: transformers models in memory; draft=None without a drafter decodes autoregressively. prompts: lists of token
    ids. stop_ids: None takes the end-of-text ids of the target's generation_config, () none. should_stop: called with a text's new
    ids. keys: one int or string per prompt, default its index; they determine the noise. progress: called with each finished
    generation. timing: True measures the seconds of each generation, "split" also those of draft, verification and the rest.
    drafter: an object, a class, or the name of a file in configs/drafter; None: the draft model. engine: an Engine that keeps
    KV caches and captured steps between calls; it has its own models, vocab_size, tokenizer and capture, and target and draft
    must be the same models or None.

    The output depends only on (seed, key, sample, verifier), in float64 token for token; in lower precision a batch of another
    shape may round a near-tie differently.
    """
    # Over 40 lines, because each option takes a line of the signature and is documented.
    num_draft, max_new_tokens = _whole("num_draft", num_draft, 0), _whole("max_new_tokens", max_new_tokens, 1)
    samples, batch_size = _whole("samples", samples, 1), _whole("batch_size", batch_size, 1)
    seed, rules = _whole("seed", seed), _rules(verifiers)
    if engine is None:
        engine = Engine(target, draft, tokenizer, vocab_size, capture)
    else:
        _refuse_others(engine, target, draft, tokenizer, vocab_size, capture)
    num_ids = engine.vocab_size or engine.target.vocab_size
    lists = "a list of lists of token ids"
    listed = enumerate(_as_list("prompts", prompts))
    texts = [_ids("prompts", prompt, num_ids, f"prompt {n}", lists) for n, prompt in listed]
    if not all(texts):
        raise ValueError(f"prompts must not be empty, but prompt {texts.index([])} is")
    warp = engine.warp(temperature, top_k, top_p)
    if samples > 1 and warp.is_greedy and not any(getattr(rule, "draws_if_greedy", False) for rule in rules):
        raise ValueError(f"samples must be 1 at temperature 0, where all samples are the same, got {samples}")
    has_drafter = drafter is not None or engine.draft is not None
    built = engine.drafter("model" if drafter is None else drafter, warp) if has_drafter else NoDraft()
    offered = 0 if isinstance(built, NoDraft) else num_draft
    cells = product(enumerate(_keys(keys, len(texts))), range(len(rules)), range(samples))
    requests = [Request(prompt, rule, sample, key, offered) for (prompt, key), rule, sample in cells]
    stops = frozenset(engine.target.stop_ids if stop_ids is None else _ids("stop_ids", stop_ids, num_ids, "it"))
    options = Options(warp, max_new_tokens, stops, should_stop, seed, batch_size, measure, timing)
    generations: dict[int, Generation] = {}
    for generation in engine.stream(texts, rules, requests, options, built):
        generations[generation.request] = generation
        if progress is not None:
            progress(generation)
    return [generations[number] for number in range(len(requests))]


def _whole(name: str, value: Any, low: int | None = None) -> int:
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or (low is not None and number < low):
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return number


def _as_list(name: str, value: Any, wanted: str = "a list, got") -> list[Any]:
    """Return a sequence, or any iterable that is not a string, as a list."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be {wanted} {value!r}")
    return list(value)


def _rules(verifiers: Any) -> list[Verifier]:
    rules = _as_list("verifiers", verifiers, "a list of rules, such as [Exact()], got")
    if not rules:
        raise ValueError("verifiers must name at least one rule")
    for rule in rules:
        if isinstance(rule, type) or not callable(rule):
            raise ValueError(
                f"verifiers must be rules, such as Exact(), but one is {getattr(rule, '__name__', repr(rule))}"
            )
    return rules


def _ids(name: str, value: Any, num_ids: int, which: str, wanted: str = "a list of token ids") -> list[int]:
    """Return token ids from 0 to num_ids − 1."""
    ids = []
    for each in _as_list(name, value, f"{wanted}, but {which} is"):
        try:
            ids.append(index(each))
        except TypeError:
            raise ValueError(f"{name} must be whole numbers, token ids, but {which} has {each!r}") from None
        if not 0 <= ids[-1] < num_ids:
            raise ValueError(f"{name} must be ids from 0 to {num_ids - 1}, but {which} has {each}")
    return ids


def _keys(keys: Sequence[Key] | None, count: int) -> list[Key]:
    """Return one key per prompt, with NumPy's strings and integers converted to Python's."""
    try:
        given = range(count) if keys is None else keys
        names: list[Key] = [str.__str__(key) if isinstance(key, str) else int(index(key)) for key in given]
    except TypeError:
        raise ValueError(f"keys must be a list of whole numbers or texts, got {keys!r}") from None
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"keys must be one per prompt, all different: got {len(names)} for {count} prompts")
    return names


def _refuse_others(engine: Engine, target: Any, draft: Any, *options: Any) -> None:
    """Raise for models and options that differ from those of the engine."""
    if target not in (None, engine.target_model) or draft not in (None, engine.draft_model):
        raise ValueError("target and draft must be the engine's own models, or None")
    if any(option is not None for option in options):
        raise ValueError("tokenizer, vocab_size and capture are the engine's: give them to Engine(…)")
