"""GGUF files as checkpoints: what is refused, what identifies one, and logits equal to transformers' own load."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sdbench import embedded
from sdbench.cli import main
from sdbench.config import ConfigError, Model
from sdbench.files import digest_of_file
from sdbench.lm import gguf as room
from sdbench.lm import gguf_config, gguf_tensors
from sdbench.lm.gguf_config import set_unread
from sdbench.lm.load import find, load_model, load_tokenizer, tokenizer_key
from sdbench.prepare import pair as pairs
from sdbench.prepare.pair_info import PairInfo

gguf = pytest.importorskip("gguf")
from gguf_files import tiny, write  # noqa: E402

PAIR = Path(str(embedded.__file__)).parent / "llama-tiny"
TOKENIZER = PAIR / "target"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(room, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model():
    return tiny("llama", layers=2)


@pytest.fixture(scope="module")
def whole_file(model, tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model, kind="Q8_0", tokenizer=TOKENIZER)


def test_identity_is_that_of_the_content_with_its_kind(whole_file, model, tmp_path):
    copy = tmp_path / "other.gguf"
    copy.write_bytes(whole_file.read_bytes())
    here, there = find(str(whole_file)), find(str(copy))
    assert here.identity() == there.identity() == f"sha256:{digest_of_file(copy, digits=20)} (Q8_0 GGUF)"
    changed = find(str(write(copy, model, kind="F16", tokenizer=TOKENIZER)))
    assert changed.identity().endswith("(F16 GGUF)")
    assert changed.identity()[:27] != here.identity()[:27]
    assert (here.dtype, changed.dtype) == ("bfloat16", "float16")
    assert here.weights.floating == model.num_parameters()


def test_metadata_need_no_weights_and_are_read_once(whole_file, monkeypatch):
    checkpoint = find(str(whole_file))
    assert not list(checkpoint.folder.rglob("*.safetensors"))
    assert load_tokenizer(checkpoint)("</s>12")["input_ids"][:2] == [1, 2]
    assert load_tokenizer(checkpoint).chat_template == (TOKENIZER / "chat_template.jinja").read_text()
    monkeypatch.setattr(room, "_describe", None)
    assert find(str(whole_file)) == checkpoint


@pytest.mark.parametrize(
    "names", [["tokenizer.json"], ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"]]
)
def test_the_tokenizer_is_the_files_whatever_lies_beside_it(whole_file, tmp_path, names):
    """For some architectures transformers prefers the tokenizer.json of the folder."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole_file.read_bytes())
    for name in names:
        (tmp_path / name).write_bytes((PAIR.parent / "qwen-tiny" / "target" / name).read_bytes())
    alone, beside = find(str(whole_file)), find(str(path))
    assert tokenizer_key(load_tokenizer(beside)) == tokenizer_key(load_tokenizer(alone))
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
    ):
        assert (beside.folder / name).read_text() == (alone.folder / name).read_text()


def test_a_large_file_is_named_before_it_is_hashed_once(whole_file, monkeypatch, capsys):
    printed = []

    def hash_slowly(path, digits):
        printed.append(capsys.readouterr().err)
        return digest_of_file(path, digits=digits)

    monkeypatch.setattr("sdbench.lm.digests.LARGE", 0)
    monkeypatch.setattr("sdbench.lm.digests.digest_of_file", hash_slowly)
    checkpoint = find(str(whole_file))
    first = f"sdbench: reading the tokenizer of {whole_file} for the first time; it is kept\n"
    assert capsys.readouterr().err == first
    assert not printed, "metadata need no hash"
    monkeypatch.setattr("sdbench.lm.digests.LONG", 0)
    checkpoint.identity()
    assert printed == [f"sdbench: hashing 0.0 GiB of {whole_file}, once: the hashes are kept\n"]
    monkeypatch.setattr("sdbench.lm.digests.LONG", 1)
    find(str(whole_file)).identity()
    assert len(printed) == 1, "the hash is kept"
    assert capsys.readouterr().err == ""


def test_a_plan_hashes_no_file(whole_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sdbench.lm.digests.LARGE", 0)
    monkeypatch.setattr("sdbench.lm.digests.digest_of_file", None)
    words = [f"model.target={whole_file}", "model.draft=null", "drafter=lookup", "n=2", "max_new_tokens=8"]
    assert main(["--plan", *words, f"results={tmp_path}"]) == 0, capsys.readouterr().err
    assert "GiB of weights" in capsys.readouterr().out


def test_a_line_comes_before_many_weights_are_dequantised(whole_file, monkeypatch, capsys):
    file = find(str(whole_file)).gguf
    capsys.readouterr()
    monkeypatch.setattr(room, "LONG", 1)
    for line in (f"sdbench: dequantising {whole_file} into 0.0 GiB of float16, once: the copy is kept\n", ""):
        file.weights("float16")
        assert capsys.readouterr().err == line


def test_ends_of_texts_are_the_files_and_control_tokens_with_a_known_name(model, tmp_path):
    import json

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    rules = json.loads((TOKENIZER / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    last = "".join(rules["model"]["merges"].pop())
    vocabulary["<|im_end|>"] = index = vocabulary.pop(last)
    rules["added_tokens"].append({"id": index, "content": "<|im_end|>"})
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    (folder / "chat_template.jinja").write_text("x")
    checkpoint = find(str(write(tmp_path / "x.gguf", model, tokenizer=folder)))
    assert json.loads((checkpoint.folder / "generation_config.json").read_text())["eos_token_id"] == [2, index]


def torn(whole: Path, part: float, path: Path) -> str:
    path.write_bytes(whole.read_bytes()[: int(part * whole.stat().st_size)])
    return str(path)


@pytest.mark.parametrize("part", [0, 0.00001, 0.001, 0.05, 0.5, 0.999])
def test_a_torn_file_is_refused_by_its_name(whole_file, tmp_path, cache, part):
    with pytest.raises(ConfigError, match=r"torn\.gguf is damaged, or not a GGUF file"):
        find(torn(whole_file, part, tmp_path / "torn.gguf"))
    assert not list(cache.glob(f"*-{room.FORMAT}-*")), "nothing of it stays"


def unknown_architecture(whole: Path, path: Path) -> str:
    return without_tensors(path, "rwkv9")


def gpt_oss(whole: Path, path: Path) -> str:
    """Its scaling is that of all its files; transformers reads the length of a key in the place of its value."""
    return without_tensors(path, "gpt-oss", {"gpt-oss.rope.scaling.type": "yarn"})


def without_tensors(path: Path, architecture: str, more: dict[str, str] | None = None) -> str:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_eos_token_id(0)
    for key, text in (more or {}).items():
        writer.add_string(key, text)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (unknown_architecture, "of the architecture rwkv9, which transformers does not read"),
        (
            lambda whole, path: str(write(path, tiny("qwen2", layers=1))),
            "no tokenizer inside: give model.tokenizer=ID",
        ),
        (
            lambda whole, path: str(write(path, tiny("llama", layers=1), more={"llama.rope.scaling.type": "yarn"})),
            r"scales its rotary positions \(yarn\)",
        ),
        (gpt_oss, r"scales its rotary positions \(yarn\)"),
        (lambda whole, path: str(path), "does not exist"),
        (lambda whole, path: str(path.with_suffix(".safetensors")), "is a file of weights: give the folder"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(whole_file, tmp_path, capsys, make, words):
    name = make(whole_file, tmp_path / "x.gguf")
    with pytest.raises(ConfigError, match=words) as raised:
        find(name)
    words = [f"model.target={name}", f"model.draft={name}", f"results={tmp_path}", "n=2"]
    assert main(words) == 2
    assert str(raised.value) in capsys.readouterr().err


def test_a_home_that_does_not_exist_is_no_file():
    with pytest.raises(ConfigError, match="does not exist: give the path of a"):
        find("~nobody-of-this-name/x.gguf")


def test_without_the_package_the_extra_is_named(whole_file, monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs gguf and accelerate: pip install 'sdbench\[gguf\]'"):
        find(str(whole_file))


def test_a_tokenizer_that_is_given_replaces_the_one_inside(model, tmp_path, monkeypatch):
    checkpoint = find(str(write(tmp_path / "bare.gguf", model)), tokenizer=str(TOKENIZER))
    assert load_tokenizer(checkpoint)("a")["input_ids"][0] == 1
    monkeypatch.setenv("HOME", str(PAIR))
    assert find(str(tmp_path / "bare.gguf"), tokenizer="~/target").tokenizer == TOKENIZER
    words = ["model=llama-tiny", f"model.tokenizer={TOKENIZER}", f"results={tmp_path}", "n=2"]
    assert main(words) == 2, "neither model is a GGUF file"


HUB = """
import sys, warnings
from sdbench.config import ConfigError
from sdbench.lm.load import find
for name in ("org/tiny-gguf:tiny.gguf", "org/tiny-gguf:none.gguf"):
    try: print(find(name).identity())
    except ConfigError as error: print(error)
"""


@pytest.mark.slow
def test_a_file_of_the_hub_is_downloaded_once(hub, whole_file, tmp_path):
    folder = hub.root / "models/org/tiny-gguf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.gguf").write_bytes(whole_file.read_bytes())
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        env = hub.env(tmp_path / "home", **more)
        done = subprocess.run([sys.executable, "-c", HUB], env=env, capture_output=True, text=True, check=True)
        identity, nothing = done.stdout.splitlines()
        assert identity == find(str(whole_file)).identity()
        assert ("not in the cache" if more else "has no file none.gguf: see") in nothing


def test_weights_are_dequantised_tensor_by_tensor_and_silently(tmp_path, capfd):
    model = tiny("llama", hidden=256, layers=8)
    checkpoint = find(str(write(tmp_path / "x.gguf", model, kind="Q8_0", tokenizer=TOKENIZER)))
    capfd.readouterr()
    tracemalloc.start()
    folder = checkpoint.gguf.weights("bfloat16")
    largest = max(weight.nbytes for weight in model.parameters())
    assert tracemalloc.get_traced_memory()[1] < 5 * largest + 2**20 < 0.5 * 4 * checkpoint.weights.floating
    tracemalloc.stop()
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K"])
def test_a_tensor_takes_little_beside_its_result(tmp_path, monkeypatch, kind):
    file = write(tmp_path / "x.gguf", tiny("llama", hidden=512, layers=1), kind=kind, tokenizer=TOKENIZER)
    largest = max(gguf.GGUFReader(file).tensors, key=lambda tensor: tensor.n_elements)
    whole = gguf_tensors.dequantise_rows(largest)
    monkeypatch.setattr(gguf_tensors, "AT_ONCE", 1 << 14)
    tracemalloc.start()
    by_rows = gguf_tensors.dequantise_rows(largest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(by_rows, whole)
    assert np.array_equal(whole, gguf.dequantize(largest.data, largest.tensor_type))
    assert peak < 1.3 * whole.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_logits_are_those_of_transformers_own_load(family, kind, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = tiny(family, hidden=256)
    has_tokenizer = family != "gemma3"  # which has SentencePiece
    path = write(tmp_path / "x.gguf", source, kind=kind, tokenizer=TOKENIZER if has_tokenizer else None)
    checkpoint = find(str(path), tokenizer=None if has_tokenizer else str(TOKENIZER))
    ours = load_model(checkpoint, device="cpu", dtype="float32")
    from_pretrained = AutoModelForCausalLM.from_pretrained
    theirs = from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
    text = "Tom has 12 apples.\n\n  He gives  away 7 é"
    ids = torch.tensor([load_tokenizer(checkpoint)(text)["input_ids"]])
    if has_tokenizer:
        assert ids[0].tolist() == AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)(text)["input_ids"]
    with torch.no_grad():
        logits, expected, before = (model(input_ids=ids).logits for model in (ours, theirs, source))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    if kind == "F16":  # rounded by 2^-11, and what llama.cpp's converter moves is moved back
        torch.testing.assert_close(logits, before, rtol=0, atol=0.02 * float(before.abs().max()))


@pytest.mark.parametrize(
    ("family", "layers", "setting"),
    [
        ("llama with biases", 2, "attention_bias=True, mlp_bias=True"),  # as Granite Code
        ("starcoder2", 2, "rope_theta=1000000.0"),
        # As of the 27B model, by its number of layers.
        pytest.param("gemma2", 46, "query_pre_attn_scalar=8", marks=pytest.mark.slow),
        ("gemma2", 2, ""),
    ],
)
def test_what_transformers_does_not_read_is_set(family, layers, setting, tmp_path):
    biases = {"attention_bias": True, "mlp_bias": True} if family.endswith("biases") else {}
    source = tiny(family.split()[0], hidden=32, layers=layers, vocab=128, **biases)
    checkpoint = find(str(write(tmp_path / "x.gguf", source, kind="F32")), tokenizer=str(TOKENIZER))
    model = load_model(checkpoint, device="cpu", dtype="float32")
    ids = torch.arange(20)[None] * 5 % 128
    with torch.no_grad():
        expected = source(input_ids=ids).logits
        torch.testing.assert_close(
            model(input_ids=ids).logits, expected, rtol=0, atol=1e-3 * float(expected.abs().max())
        )
    assert checkpoint.gguf.settings == setting
    metadata = pairs.PairMetadata(Model("x", "x.gguf", None), {"target": checkpoint}, "cpu", "float32")
    numerics = PairInfo.read(metadata).numerics
    assert numerics.get("target_settings", "") == setting, "records say so, and other cells keep their keys"


def test_a_tensor_that_no_weight_of_the_model_takes_is_refused(tmp_path, monkeypatch):
    """Without it another model would be decoded."""
    monkeypatch.setattr(gguf_config, "BIASES", {})
    source = tiny("llama", hidden=32, layers=2, vocab=128, attention_bias=True)
    checkpoint = find(str(write(tmp_path / "x.gguf", source, kind="F32")), tokenizer=str(TOKENIZER))
    with pytest.raises(ConfigError, match=r"has blk\.0\.attn_q\.bias, which .* transformers does not read from GGUF"):
        load_model(checkpoint, device="cpu", dtype="float32")


def test_a_base_of_rotary_positions_that_cannot_be_set_is_refused(tmp_path):
    path = write(tmp_path / "x.gguf", tiny("llama", layers=1), tokenizer=TOKENIZER, base=5e5)
    assert find(str(path)).gguf.settings == "", "transformers reads it"
    config = SimpleNamespace(rope_parameters=None, model_type="x", num_hidden_layers=1)
    with pytest.raises(ConfigError, match=r"x\.gguf has rotary positions of base 500000\.0, which transformers"):
        set_unread("x.gguf", config, 5e5)
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    config = SimpleNamespace(rope_parameters=kinds, model_type="x", num_hidden_layers=1)
    assert set_unread("x.gguf", config, 1e6) == ""
    with pytest.raises(ConfigError, match="give the publisher's own repository"):
        set_unread("x.gguf", config, 5e5)


@pytest.mark.slow
def test_a_whole_run_on_a_pair_of_files(tmp_path):
    from transformers import AutoModelForCausalLM

    import sdbench

    for role, kind in (("target", "Q8_0"), ("draft", "F16")):
        model = AutoModelForCausalLM.from_pretrained(PAIR / role)
        write(tmp_path / f"{role}.gguf", model, kind=kind, tokenizer=TOKENIZER)
    pair = [f"model.target={tmp_path}/target.gguf", f"model.draft={tmp_path}/draft.gguf", "model.name=files"]
    words = [*pair, "task=gsm8k-tiny", "n=2", "w=[0.5,1]", "timing=off", f"results={tmp_path}/results"]
    command = [sys.executable, "-m", "sdbench", *words]
    env = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    for _ in range(2):  # the second decodes nothing
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    cells = sdbench.read(tmp_path / "results/files-gsm8k-tiny").cells
    assert cells["checkpoint_target"].dropna().str.fullmatch(r"sha256:[0-9a-f]{20} \(Q8_0 GGUF\)").all()
    assert cells["checkpoint_draft"].dropna().str.endswith("(F16 GGUF)").all()


MEMORY = """
import resource, sys, torch, transformers
from pathlib import Path
from sdbench.lm import gguf
from sdbench.lm.load import find, load_model, weights_folder
gguf.CACHE = Path(sys.argv[2])
def peak():
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
load_model(find(sys.argv[1]), device="cpu", dtype="float32")  # what importing takes
checkpoint = find(sys.argv[4])
before = peak()
if sys.argv[3] == "copy":
    weights_folder(checkpoint, "bfloat16")
else:
    model = load_model(checkpoint, device="cpu", dtype="bfloat16")
print((peak() - before) / (2 * checkpoint.weights.floating))
"""


@pytest.mark.slow
def test_memory_stays_near_that_of_the_weights(tmp_path, cache):
    """Making the copy takes a part of the weights beside the pages of the file, which is mapped."""
    small = write(tmp_path / "small.gguf", tiny("llama", layers=1), tokenizer=TOKENIZER)
    large = write(tmp_path / "large.gguf", tiny("llama", hidden=512, layers=48), kind="Q8_0", tokenizer=TOKENIZER)
    find(str(large))
    peaks = {}
    for step in ("copy", "load"):
        words = [str(small), str(cache), step, str(large)]
        done = subprocess.run([sys.executable, "-c", MEMORY, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        peaks[step] = float(done.stdout)
    assert peaks["load"] < 1.2
    weights = 2 * find(str(large)).weights.floating
    assert peaks["copy"] < 0.5 + large.stat().st_size / weights


def test_another_version_of_transformers_makes_its_own_copy(whole_file, cache, monkeypatch):
    before = find(str(whole_file))
    monkeypatch.setattr(room, "version", lambda package: "99.0")
    after = find(str(whole_file))
    assert before.folder != after.folder
    assert after.folder.name.endswith("-99.0")
