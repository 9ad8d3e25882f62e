"""A target with recurrent layers cannot be rolled back: nothing is trained on its states, and no head drafts for it."""

import pytest
import torch
from transformers import AutoTokenizer, Lfm2Config, Lfm2ForCausalLM

from sdbench import embedded
from sdbench.cli import main
from sdbench.lm.load import find, tokenizer_key
from tests.draft.heads import write_heads


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """The words of a run on a tiny saved checkpoint with a layer of convolution, and Medusa's heads for it."""
    folder = tmp_path_factory.mktemp("recurrent")
    tokenizer = AutoTokenizer.from_pretrained(embedded.path("llama-tiny", "target"))
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=tokenizer.eos_token_id,
    )
    target = Lfm2ForCausalLM(config)
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    identity = {"target": find(str(folder / "target")).identity()}
    write_heads(folder / "heads", target, checkpoints=identity, tokenizer=tokenizer_key(tokenizer))
    return [f"model.target={folder / 'target'}", "model.draft=null", "model.name=recurrent", "task=gsm8k-tiny"]


@pytest.mark.parametrize("command", ["run", "--plan", "--prefetch", "training"])
def test_it_is_refused_in_one_sentence_before_weights_are_read(command, recurrent, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.load_model", lambda *_, **__: pytest.fail("weights are read"))
    head = recurrent[0].partition("=")[2].replace("/target", "/heads")
    run = ["drafter=medusa", f"drafter.head={head}", "n=2", "num_draft=3", "timing=off", f"results={tmp_path}"]
    training = ["train", "medusa", "rows=8", "prompts=2", "max_new_tokens=8", f"out={tmp_path / 'head'}"]
    words = {"run": run, "training": training}.get(command, [*run, command])
    assert main([*words, *recurrent]) == 2
    lines = capsys.readouterr().err.splitlines()
    sentence = "target model of type 'lfm2' has layers of type conv, which cannot be rolled back"
    assert [line for line in lines if sentence in line] == lines[-1:]
    assert "traceback" not in lines[-1].lower()
    assert not (tmp_path / "head").exists()
