"""`timing.assisted` with a pair that transformers would refuse ends before anything is decoded."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from sdbench.config import NATIVE, ConfigError
from sdbench.prepare.assisted import refuse_assisted


@pytest.mark.parametrize(("draft_size", "sentence"), [(64, None), (65, "these have 64 and 65: remove it")])
def test_target_and_draft_need_as_many_ids(draft_size, sentence):
    run: Any = SimpleNamespace(timing=SimpleNamespace(assisted=True), engine=SimpleNamespace(name=NATIVE.name))
    sizes = {"target": 64, "draft": draft_size}
    pair: Any = SimpleNamespace(configs={role: LlamaConfig(vocab_size=size) for role, size in sizes.items()})
    parts: Any = SimpleNamespace(drafters=[SimpleNamespace(needs_draft=True, translates=False)])
    if sentence is None:
        refuse_assisted(run, pair, parts)
        return
    with pytest.raises(ConfigError, match=sentence):
        refuse_assisted(run, pair, parts)
