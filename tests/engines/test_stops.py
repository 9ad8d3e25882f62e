"""A stop string that is a special token: no decoded text contains it, and a text ends where it is drawn."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdbench import embedded
from sdbench.cli import main
from sdbench.records import read

PAD, END = 0, 2  # of llama-tiny, which never writes the first and writes the second, </s>, after an answer


def test_a_text_ends_where_the_special_token_is_drawn(tmp_path):
    """The checkpoint names another end of text, so that the stop string alone ends it."""
    pair = Path(str(embedded.__file__)).parent / "llama-tiny"
    target = shutil.copytree(pair / "target", tmp_path / "target")
    path = target / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": PAD}))
    words = [f"model.target={target}", f"model.draft={pair}/draft", "model.name=tiny", "task=gsm8k-tiny", "n=1"]
    words += ["verifier=exact", "max_new_tokens=120", "timing=off", "report=off", "device=cpu"]
    texts = {}
    for name, stop in (("special", "['</s>']"), ("other", "['@']")):
        assert main([*words, f"name={name}", f"results={tmp_path / 'out'}", f"task.stop={stop}"]) == 0
        results = read(tmp_path / "out" / name)
        columns = results.generations[["verifier", "finish"]].to_dict("records")
        (texts[name],) = (
            (list(ids), text["finish"])
            for ids, text in zip(results.tokens["ids"], columns, strict=True)
            if text["verifier"] == "lossless"
        )
    (ids, finish), (longer, other_finish) = texts["special"], texts["other"]
    assert (finish, ids.index(END)) == ("eos", len(ids) - 1)
    assert (other_finish, len(longer), longer[: len(ids)]) == ("length", 120, ids), "nothing else ends it there"


@pytest.mark.parametrize(("is_emitted", "code"), [(True, 2), (False, 0)])
def test_an_end_of_text_that_only_the_draft_lacks_is_refused_beside_another(is_emitted, code, tmp_path, capsys):
    """The pair would never write it. One that the target cannot write either changes nothing."""
    pair, target = Path(str(embedded.__file__)).parent / "llama-tiny", tmp_path / "target"
    tokenizer: Any = AutoTokenizer.from_pretrained(pair / "target")
    model: Any = AutoModelForCausalLM.from_pretrained(pair / "target")
    if is_emitted:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    last = max(tokenizer.get_vocab().values()) + (not is_emitted)
    model.resize_token_embeddings(max(model.config.vocab_size, last + is_emitted))
    model.generation_config.eos_token_id = [END, last]
    for part in (tokenizer, model):
        part.save_pretrained(target)
    words = [f"model.target={target}", f"model.draft={pair}/draft", "model.name=tiny", "task=gsm8k-tiny", "n=1"]
    words += ["verifier=exact", "max_new_tokens=4", "timing=off", "report=off", "device=cpu", f"results={tmp_path}/out"]
    assert main(words) == code
    assert (f"ends its texts with id {last}, which the draft lacks" in capsys.readouterr().err) == is_emitted
