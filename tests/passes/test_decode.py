"""What goes to the engine: stop strings wherever they fall, batches that fit."""

import pytest

from sdbench.engines.stops import stopper
from tests.cli.micro import byte_tokenizer

TOKENIZER = byte_tokenizer()


def text(ids):
    return TOKENIZER.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("stop", ["\n\n", "Question:", "ü", "[DONE]"])
def test_a_stop_string_is_seen_when_its_last_token_comes_and_not_before(stop):
    should_stop = stopper(text, (stop, "never seen"))
    ids = TOKENIZER("a long text before, " * 20 + stop)["input_ids"]
    assert [should_stop(ids[:n]) for n in range(1, len(ids) + 1)] == [False] * (len(ids) - 1) + [True]


def test_no_stop_strings_cost_nothing():
    assert stopper(text, ()) is None
