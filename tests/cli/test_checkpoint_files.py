"""A checkpoint whose small files change between two runs, or whose weights lack: no old answer is taken for a new question."""

import shutil

import pytest
import torch
from micro import END, byte_tokenizer
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from sdbench.cli import main
from sdbench.records import read

NAME = "micro-gsm8k-tiny"
pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def copied_pair(micro_pair, tmp_path):
    """A pair of one's own to change, and the words of a run of it."""
    shutil.copytree(micro_pair, tmp_path / "pair")

    def words(**options):
        given = {"w": "[0.3,1]", "n": 2, "max_new_tokens": 24, "timing": "off", "dtype": "float64", "device": "cpu"}
        pair = [f"model.{role}={tmp_path / 'pair' / role}" for role in ("target", "draft")]
        places = [f"results={tmp_path / 'results'}", "model.name=micro", "temperature=1"]
        return [*pair, *places, *(f"{key}={value}" for key, value in (given | options).items())]

    return tmp_path / "pair", tmp_path / "results" / NAME, words


@pytest.mark.slow
def test_other_stop_ids_are_another_question(copied_pair):
    pair, results, words = copied_pair
    assert main(words()) == 0
    before = set(read(results).cells["cell"])
    assert main(words()) == 0
    assert set(read(results).cells["cell"]) == before
    end = byte_tokenizer().convert_tokens_to_ids(END)
    GenerationConfig(eos_token_id=[end, *range(40)]).save_pretrained(pair / "target")
    assert main(words(n=4)) == 0
    cells = read(results).cells
    new = cells[~cells["cell"].isin(before)]
    assert len(cells) > len(before)
    role_of = cells.set_index("cell")["verifier"]
    assert set(new["verifier"]) == set(role_of) - {"draft"}, "whose text ends where the draft's own configuration says"
    generations = read(results).generations
    own_cells = generations[generations["cell"].isin(new["cell"])]
    assert own_cells.groupby("cell").size().eq(4).all()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_checkpoint_that_lacks_a_tensor_is_refused(copied_pair, role, capsys):
    """transformers fills the gap with random numbers, other ones each time."""
    pair, results, words = copied_pair
    path = pair / role / "model.safetensors"
    tensors = load_file(path)
    gone = tensors.pop("model.layers.0.mlp.up_proj.weight")
    assert isinstance(gone, torch.Tensor)
    save_file(tensors, path, metadata={"format": "pt"})
    assert main(words()) == 2
    assert "has no weights for model.layers.0.mlp.up_proj.weight: its files are damaged" in capsys.readouterr().err
    assert not list(results.glob("records/generations*"))


@pytest.mark.parametrize(("size", "sentence"), [(1000, "invalid header length"), (-1, "not fully covered")])
def test_a_file_that_is_cut_short_is_one_sentence(copied_pair, size, sentence, capsys):
    pair, _, words = copied_pair
    path = pair / "draft" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert main(words()) == 2
    message = capsys.readouterr().err
    assert f"{path} is damaged" in message
    assert sentence in message
