"""Texts that another engine sampled from the same prompts: its law is tested, nothing else of it is known.

One JSON object a line: {"prompt": text or ids, "tokens": ids} or {"prompt": …, "completion": text}. All lines have one law: one
model, one temperature, top-k and top-p, which are those of the command line. Lines of one prompt are independent samples.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdbench.audit.audit import Report, Trial, row_of
from sdbench.audit.build import Command, compose, options
from sdbench.audit.claims import Test
from sdbench.audit.evidence import ALPHA
from sdbench.audit.source import Forwards, Sampling
from sdbench.audit.texts import Texts
from sdbench.audit.trained import Claimed, EmittedTest, PrefixTest
from sdbench.config import ConfigError, show

WIDEST = 64  # tokens of a text that are looked at


def audit_file(given: Command) -> tuple[str, Report, Any]:
    """(name, report, device) of generations=FILE model=NAME."""
    from sdbench.prepare import pair
    from sdbench.prepare.pair_info import PairInfo

    wanted, file = options(given.own), given.own["generations"]
    rows = read(file)
    if not given.has("model"):
        raise ConfigError(f"generations={show(file)} needs the model that they were sampled from: give model=NAME")
    run = compose(given)
    if run.temperature == 0:
        raise ConfigError("temperature=0 leaves nothing to chance: generations= tests what was sampled")
    metadata = pair.find(run.model, device=run.device, dtype=run.dtype)
    pair_info = PairInfo.read(metadata)
    vocab, encode = len(pair_info.tokenizer), lambda text: list(pair_info.tokenizer(text)["input_ids"])
    prompts, which, texts = ids_of(file, rows, vocab, encode, pair_info.tokenizer.encode)
    loaded = pair.load(metadata)
    width = min(WIDEST, max(map(len, texts)))
    source = Forwards({"target": loaded.target}, prompts, vocab)
    sampling = Sampling(run.temperature, run.top_k, run.top_p)
    claimed = Claimed(source, sampling, None, has_draft=False, is_exact=False)
    held = Counter(which)
    made = Texts.of(which, [text[:width] for text in texts], width)
    tests: list[Test] = []
    if "prefixes" in wanted.claims:
        tests.append(PrefixTest(claimed, len(prompts), min(held.values()), with_second=width > 1 and _long(texts)))
    if "pit" in wanted.claims:
        tests.append(EmittedTest("pit", sum(map(len, texts)), claimed=claimed))
    log_wanted, trial = float(np.log(max(len(tests), 1) / ALPHA)), Trial(0, tests)
    for test in tests:
        test.add(made, None)
        trial.peak[test.claim] = test.log_e()
    report = Report(
        [row_of(Path(file).stem, test, trial, log_wanted, len(tests), wanted) for test in tests], len(texts)
    )
    return f"{Path(file).stem}-{run.model.name}", report, loaded.target.device


def _long(texts: Sequence[Sequence[int]]) -> bool:
    """Whether every text has a second token: those that end with their first have no prefix of two."""
    return all(len(text) > 1 for text in texts)


def read(file: str) -> list[dict[str, Any]]:
    """The lines of a file as mappings; what is wrong with one is a sentence."""
    try:
        lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"generations={show(file)} cannot be read: {error}") from None
    if not lines:
        raise ConfigError(f"generations={show(file)} is empty")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or "prompt" not in row or not {"tokens", "completion"} & set(row):
            raise ConfigError(
                f'generations={show(file)}: line {number} is not {{"prompt": …, "tokens": […]}} or {{"prompt": …, "completion": …}}'
            )
        rows.append(row)
    if len({("tokens" in row) for row in rows}) > 1:
        raise ConfigError(f"generations={show(file)}: some lines have tokens and some have none: give them to all")
    return rows


def ids_of(
    file: str, rows: Sequence[dict[str, Any]], vocab: int, encode: Any, plain: Any
) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Prompts, which of them each line has, and its new ids; a tokenizer that is another one is a ConfigError."""
    names: dict[tuple[int, ...], int] = {}
    which, texts = [], []
    for number, row in enumerate(rows, start=1):
        prompt = row["prompt"] if isinstance(row["prompt"], list) else encode(row["prompt"])
        new = row["tokens"] if "tokens" in row else plain(row["completion"], add_special_tokens=False)
        wrong = next((one for one in [*prompt, *new] if not isinstance(one, int) or not 0 <= one < vocab), None)
        if wrong is not None:
            raise ConfigError(
                f"generations={show(file)}: line {number} has the token {show(wrong)}, and this model's ids go from 0 to "
                f"{vocab - 1}: its tokenizer differs"
            )
        if not prompt or not new:
            raise ConfigError(f"generations={show(file)}: line {number} has an empty prompt or no new token")
        which.append(names.setdefault(tuple(prompt), len(names)))
        texts.append(list(new))
    few = Counter(which)
    if max(few.values()) < 2:
        raise ConfigError(
            f"generations={show(file)} has one text a prompt for {len(names)} prompts: sample each prompt several times"
        )
    return [list(prompt) for prompt in names], which, texts
