"""Texts that another engine sampled from the same prompts: their distribution is tested; nothing else of the engine is known.

One JSON object per line: {"prompt": text or ids, "tokens": ids} or {"prompt": …, "completion": text}. All lines are independent
samples of one model at the temperature, top-k and top-p of the command line, and several of them share a prompt.

Tokens include the end token where the engine emitted it, unless end=removed; a completion never does. Without end tokens, each
token is tested against the target's distribution conditioned on not being an end token. That is exact: whether a position has a
token depends only on the text before it, on a length limit, and on no end token being drawn. A text without tokens is not tested.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdbench.audit.build import run_of
from sdbench.audit.claims import ClaimTest
from sdbench.audit.command import AuditCommand, refuse_claims
from sdbench.audit.large_vocabulary import ClaimedLaw, EmittedTest, PrefixTest
from sdbench.audit.plan import RuleTests
from sdbench.audit.report import AuditReport
from sdbench.audit.source import Forwards, Sampling
from sdbench.audit.texts import TextBatch
from sdbench.audit.untested import UNCERTAIN_CUT, row_of
from sdbench.config import ConfigError, show
from sdbench.prepare.progress import warn

MAX_TOKENS = 64  # of a text that are tested
STARTS = ("", "\n", "a")  # texts behind which a completion is tokenized, in this order, until its ids decode to it


def audit_file(given: AuditCommand) -> AuditReport:
    """Audit generations=FILE model=NAME."""
    from sdbench.prepare import pair
    from sdbench.prepare.pair_info import PairInfo

    options, file = given.options, given.values["generations"]
    refuse_claims(given, ("prefixes", "pit"), "an audit of generations=")
    lines = read_lines(file)
    if not given.has("model"):
        raise ConfigError(f"generations={show(file)} needs the model that they were sampled from: give model=NAME")
    run = run_of(given)
    if run.temperature == 0:
        raise ConfigError("generations= tests sampled texts, and temperature=0 samples nothing: give their temperature")
    is_end_removed = given.values.get("end") == "removed" or "tokens" not in lines[0][1]
    if is_end_removed and given.values.get("end") == "emitted":
        raise ConfigError("end=emitted needs tokens: a completion does not hold the end token")
    metadata = pair.find(run.model, device=run.device, dtype=run.dtype)
    pair_info = PairInfo.read(metadata)
    tokenizer, removed = pair_info.tokenizer, pair_info.stop_ids["target"] if is_end_removed else None
    num_ids = pair_info.num_ids(pair_info.configs["target"].vocab_size)
    prompts, which, texts = ids_of(file, lines, tokenizer, num_ids, removed)
    loaded = pair.load(metadata)
    source = Forwards({"target": loaded.target}, prompts, num_ids)
    sampling = Sampling(run.temperature, run.top_k, run.top_p)
    name = Path(file).stem
    if sampling.is_cut_uncertain(loaded.target.dtype):
        rows = [row_of(name, claim, UNCERTAIN_CUT) for claim in ("prefixes", "pit") if claim in options.claims]
        return AuditReport(f"{name}-{run.model.name}", rows, len(texts), device=loaded.target.device)
    claimed = ClaimedLaw(source, sampling, None, has_draft=False, is_exact=False, excluded=removed or ())
    width = min(MAX_TOKENS, max(map(len, texts)))
    tests: list[ClaimTest] = []
    if "prefixes" in options.claims:
        short = sum(len(text) < 2 for text in texts)  # a text of one token has no prefix of two
        if short:
            warn(
                f"{short} of {len(texts)} texts have a single token, so first tokens are tested, but no prefixes of two"
            )
        counts = Counter(which)
        tests.append(PrefixTest(claimed, [counts[n] for n in range(len(prompts))], with_second=not short))
    if "pit" in options.claims:
        tests.append(EmittedTest("pit", sum(map(len, texts)), claimed=claimed))
    setting = RuleTests(0, tests)
    setting.add((TextBatch.of(which, [text[:width] for text in texts], width), None))
    rows = setting.results(name, len(tests), options)
    return AuditReport(f"{name}-{run.model.name}", rows, len(texts), device=loaded.target.device)


def read_lines(file: str) -> list[tuple[int, dict[str, Any]]]:
    """Return number and mapping of each line of a file that is not empty; raise ConfigError for a malformed one."""
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")  # a text may hold other separators of lines
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"generations={show(file)} cannot be read: {error}") from None
    if not any(map(str.strip, lines)):
        raise ConfigError(f"generations={show(file)} is empty")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        is_whole = isinstance(row, dict) and isinstance(row.get("prompt"), str | list)
        is_whole &= isinstance(row, dict) and (
            isinstance(row["tokens"], list) if "tokens" in row else isinstance(row.get("completion"), str)
        )
        if not is_whole:
            raise ConfigError(
                f'generations={show(file)}: line {number} is not {{"prompt": …, "tokens": […]}} or {{"prompt": …, "completion": …}}'
            )
        rows.append((number, row))
    if len({"tokens" in row for _, row in rows}) > 1:
        raise ConfigError(f"generations={show(file)}: some lines have tokens and others do not: give them to all")
    return rows


def ids_of(
    file: str,
    lines: Sequence[tuple[int, dict[str, Any]]],
    tokenizer: Any,
    num_ids: int,
    removed: Sequence[int] | None = None,
) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Return distinct prompts, each line's prompt index and new ids; raise ConfigError for ids that are not allowed.

    `removed`: the end tokens, which no text may hold; lines without a token are then left out. None: texts hold their end tokens.
    """
    numbers: dict[tuple[int, ...], int] = {}
    which, texts = [], []
    for number, row in lines:
        at = f"generations={show(file)}: line {number}"
        prompt = row["prompt"] if isinstance(row["prompt"], list) else list(tokenizer(row["prompt"])["input_ids"])
        new = row["tokens"] if "tokens" in row else ids_of_completion(tokenizer, row["completion"])
        if new is None:
            raise ConfigError(f"{at} has a completion to which no ids of this model's tokenizer decode: give tokens")
        wrong = [token for token in [*prompt, *new] if not isinstance(token, int) or not 0 <= token < num_ids]
        if wrong:
            raise ConfigError(
                f"{at} has the token {show(wrong[0])}, but this model's ids go from 0 to {num_ids - 1}: "
                "its tokenizer differs"
            )
        if not prompt:
            raise ConfigError(f"{at} has an empty prompt")
        if removed is None and not new:
            raise ConfigError(f"{at} has no token: a text that ends at once has its end token, or give end=removed")
        ends = [token for token in new if token in (removed or ())]
        if ends:
            reason = "end=removed" if "tokens" in row else "a completion is tested without it"
            raise ConfigError(f"{at} has the end token {ends[0]}, but {reason}")
        if new:
            which.append(numbers.setdefault(tuple(prompt), len(numbers)))
            texts.append(list(new))
    if not texts:
        raise ConfigError(f"generations={show(file)}: all {len(lines)} texts are empty, so nothing can be tested")
    if max(Counter(which).values()) < 2:
        raise ConfigError(
            f"generations={show(file)} has one text per prompt for {len(numbers)} prompts: sample each prompt several times"
        )
    if len(texts) < len(lines):
        warn(f"{len(lines) - len(texts)} of {len(lines)} texts end before their first token and say nothing")
    return [list(prompt) for prompt in numbers], which, texts


def ids_of_completion(tokenizer: Any, completion: str) -> list[int] | None:
    """Return ids that decode to this text behind another; None if none are found.

    A SentencePiece tokenizer puts a blank before a text, which the continuation of a text does not have.
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    before = encode("a")
    for start in STARTS:
        beginning, whole = encode(start), encode(start + completion)
        new = whole[len(beginning) :]
        if whole[: len(beginning)] == beginning and decode([*before, *new]) == decode(before) + completion:
            return new
    return None
