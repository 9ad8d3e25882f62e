"""Texts of a pair: as they continue a prompt, whatever its tokenizer does with a first blank."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from sdbench.prepare.pair_info import PairInfo

PIECES = ["</s>", "a", "\u2581\u2581\u2581", "\u2581return", "\u2581x", "<0x0A>"]
PLAIN = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
STRIP = decoders.Sequence([*PLAIN, decoders.Strip(" ", 1, 0)])  # as in Llama 2, Mistral 7B and TinyLlama
KEEP = decoders.Sequence(PLAIN)  # as in Gemma
DECODERS = {"strip": STRIP, "metaspace": decoders.Metaspace(), "keep": KEEP}


def info_of(decoder: Any) -> PairInfo:
    backend = Tokenizer(WordLevel({piece: index for index, piece in enumerate(PIECES)}, unk_token="a"))
    backend.decoder = decoder
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    metadata: Any = None
    info = PairInfo(metadata, {})
    info.__dict__["tokenizer"] = tokenizer
    return info


@pytest.mark.parametrize("name", ["strip", "metaspace", "keep"])
def test_a_text_keeps_the_blank_with_which_it_continues_its_prompt(name):
    """A body of HumanEval lost the first blank of its indentation, and failed."""
    info = info_of(DECODERS[name])
    assert info.text([2, 3, 4, 0]) == "    return x"
    assert info.text([1, 4]) == "a x"
    assert info.text([]) == ""


@pytest.mark.parametrize(("name", "drops"), [("strip", True), ("metaspace", True), ("keep", False)])
def test_only_texts_of_a_tokenizer_that_drops_a_first_blank_are_decoded_in_another_way(name, drops):
    info = info_of(DECODERS[name])
    assert info.drops_blank == drops
    assert (info.text([3, 4]) != info.text_alone([3, 4])) == drops
    assert info.text_alone([3, 4]) == info.tokenizer.decode([3, 4], skip_special_tokens=True)
