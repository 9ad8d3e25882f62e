"""Weights that are mapped from a file take no memory beside their packed copies, and what was written to them is never lost."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from sdbench.lm import mapped
from sdbench.lm.load import find, load_model
from sdbench.lm.model import LM
from sdbench.lm.packed import PackedWeights

pytestmark = [
    pytest.mark.skipif(not mapped.IS_LINUX, reason="memory is given back on Linux only"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN"),
]

SMAPS = """\
1000-3000 rw-p 00000000 fe:00 16039983                   /models/model.safetensors
Rss:                   8 kB
Anonymous:             0 kB
Swap:                  0 kB
3000-4000 rw-p 00000000 fe:00 16039984                   /models/changed.safetensors
Anonymous:             4 kB
Swap:                  0 kB
4000-5000 rw-p 00000000 fe:00 16039985                   /models/changed and swapped.safetensors
Anonymous:             0 kB
Swap:                  4 kB
5000-6000 rw-p 00000000 00:00 0
Anonymous:             0 kB
6000-7000 rw-p 00000000 00:00 0                          [heap]
Anonymous:             0 kB
6800-7000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)
Anonymous:             0 kB
Private_Hugetlb:    2048 kB
Swap:                  0 kB
6900-7000 rw-s 00000000 00:0f 78                         /dev/shm/torch_1 (deleted)
Anonymous:             0 kB
Swap:                  0 kB
7000-9000 r--p 00000000 fe:00 16039986                   /models/last.safetensors
Anonymous:             0 kB
Swap:                  0 kB
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint of some 80 MB in float32."""
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 12}
    config = LlamaConfig(**sizes, vocab_size=8192, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).float().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path) -> LlamaForCausalLM:
    return load_model(find(str(folder)), device="cpu", dtype="float32")


def resident(folder: Path) -> int:
    """Return how many bytes of the file of weights are in this process's memory."""
    size, is_there = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapped.ENTRY.match(line):
            is_there = line.endswith(str(folder / "model.safetensors"))
        elif is_there and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size


def logits_of(lm: LM) -> torch.Tensor:
    ids, positions = torch.arange(5, 26).view(3, 7), torch.arange(7).expand(3, -1)
    with torch.inference_mode():
        cache = lm.cache(3, 64)
        return lm.forward(ids, lm.plan(positions, cache, 64), cache)


def test_packing_and_decoding_leave_the_weights_of_a_new_model_in_their_file(folder):
    model = load(folder)
    lm = LM(model, capture="off", packed=PackedWeights())
    logits_of(lm)
    assert resident(folder) < 0.15 * sum(weight.nbytes for weight in model.parameters()), "rows of the embedding"


def test_packed_copies_take_the_place_of_weights_that_were_read(folder):
    model = load(folder)
    plain, size = logits_of(LM(model, capture="off")), sum(weight.nbytes for weight in model.parameters())
    assert resident(folder) > 0.8 * size, "transformers maps the file; all of it was read"
    lm = LM(model, capture="off", packed=PackedWeights())
    packed = logits_of(lm)
    assert resident(folder) < 0.15 * size
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))
    assert torch.equal(logits_of(LM(model, capture="off")), plain), (
        "the weights themselves are read from the file again"
    )


def test_what_was_written_to_a_weight_is_kept(folder):
    model = load(folder)
    before = logits_of(LM(model, capture="off"))
    model.model.layers[1].mlp.up_proj.weight.data.mul_(-1)
    plain = logits_of(LM(model, capture="off"))
    assert (before - plain).abs().max() > 0.01
    packed = logits_of(LM(model, capture="off", packed=PackedWeights()))
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))
    assert torch.equal(logits_of(LM(model, capture="off")), plain)


def test_a_weight_is_packed_again_after_one_element_was_written_to(folder):
    """Outside any sample, and through `.data`, which leaves the version unchanged: the system reports the page."""
    model = load(folder)
    lm = LM(model, capture="off", packed=PackedWeights())
    before = logits_of(lm)
    model.model.layers[0].mlp.down_proj.weight.data[1, 1] = 1000.0
    plain = logits_of(LM(model, capture="off"))
    assert (before - plain).abs().max() > 0.01
    torch.testing.assert_close(logits_of(lm), plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


def test_files_that_were_written_to_are_left_alone(tmp_path):
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    files = mapped._find_unchanged(smaps)
    assert [(file.addresses, file.source, file.path) for file in files] == [
        (range(0x1000, 0x3000), "00000000 fe:00 16039983", "/models/model.safetensors"),
        (range(0x7000, 0x9000), "00000000 fe:00 16039986", "/models/last.safetensors"),
    ]
    assert files[0].state == files[0].source, "this file is not there"
    assert mapped._find_unchanged(tmp_path / "none") == []


def test_weights_are_packed_again_after_their_file_was_written_to(folder):
    """Memory shows what is in the file, also where another process wrote to it after it was mapped."""
    model, path = load(folder), folder / "model.safetensors"
    lm = LM(model, capture="off", packed=PackedWeights())
    before = logits_of(lm)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).float().save_pretrained(folder.parent / "other")
    content = (folder.parent / "other/model.safetensors").read_bytes()
    assert len(content) == path.stat().st_size
    with path.open("r+b") as file:
        file.write(content)
    plain = logits_of(LM(model, capture="off"))
    assert (before - plain).abs().max() > 0.01
    torch.testing.assert_close(logits_of(lm), plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


def test_weights_of_another_file_at_the_same_addresses_are_packed_again(folder):
    """The first file is closed before the second is mapped, which the system may then put into the same place."""
    model = load(folder)
    lm = LM(model, capture="off", packed=PackedWeights())
    before = logits_of(lm)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).float().save_pretrained(folder.parent / "other")
    for weight in model.parameters():
        weight.data = torch.empty(0)
    weights = load_file(folder.parent / "other/model.safetensors")
    for name, weight in model.named_parameters():
        weight.data = weights[name]
    plain = logits_of(LM(model, capture="off"))
    assert (before - plain).abs().max() > 0.01
    torch.testing.assert_close(logits_of(lm), plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


def test_nothing_is_given_back_without_a_folder_for_temporary_files(monkeypatch):
    def refuse() -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(mapped, "TemporaryFile", refuse)
    mapped._is_writing_reported.cache_clear()
    try:
        assert mapped.unchanged_files() == []
    finally:
        mapped._is_writing_reported.cache_clear()


class Emulated:
    """A report of memory in which no page counts as written to, or that does not say so."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def read_text(self, **_: object) -> str:
        return re.sub(r"(?m)^(Anonymous|Swap): .*", self.shown, Path("/proc/self/smaps").read_text())


@pytest.mark.parametrize("shown", [r"\1:   0 kB", ""])
def test_nothing_is_given_back_where_the_system_does_not_say_what_was_written_to(monkeypatch, shown):
    assert mapped.unchanged_files()
    monkeypatch.setattr(mapped, "SMAPS", Emulated(shown))
    mapped._is_writing_reported.cache_clear()
    try:
        assert mapped.unchanged_files() == []
    finally:
        mapped._is_writing_reported.cache_clear()
