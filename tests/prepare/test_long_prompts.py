"""Prompts that are too long are cut, and a warning names the limit that was applied."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

import sdbench.tasks
from sdbench.prepare.prompts import Prompts


@pytest.mark.parametrize(("protocol", "limit"), [("diversed", 2048), ("lm-eval", 2872)])
def test_the_warning_names_the_lower_of_the_limits_of_protocol_and_model(tmp_path, capsys, protocol, limit):
    rows = [{"article": "cat " * times, "highlights": "A cat.", "id": str(times)} for times in (3, 3000)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = sdbench.tasks.load("cnndm", data=path, protocol=protocol)
    pair_info = SimpleNamespace(limit=lambda parts: 3000, ids=lambda prompt: prompt.text.split())
    run, parts = SimpleNamespace(shard=SimpleNamespace(index=0, count=1)), SimpleNamespace()
    prompts = Prompts.make(task, cast(Any, pair_info), cast(Any, run), cast(Any, parts))
    assert len(prompts.ids["3000"]) == limit
    assert f"1 of 2 prompts were too long for {limit} tokens and were cut: oldest shots" in capsys.readouterr().err
