"""The real loading code against a stand-in hub: pairs, data sets, gates, faults, and a second run without a network."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sdbench import embedded
from sdbench.config import ConfigError
from sdbench.lm.load import Checkpoint, find, why_too_large
from sdbench.lm.stored import StoredWeights

START = """
import json, sys
import sdbench.hub
sdbench.hub.WAITS_S = (0.05, 0.05, 0.05)
from sdbench.lm.load import *
from sdbench.tasks.data import load
def said(what):
    try: what()
    except Exception as error: return [type(error).__name__, str(error)]
    return ["", "no error"]
def tell(answers): print("\\n" + json.dumps(answers))
"""
EVERYTHING = """
ids = [
    "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B",
    "google/gemma-3-12b-it", "google/gemma-3-4b-it", "google/gemma-3-1b-it",
]
sets = {
    "abisee/cnn_dailymail": "3.0.0", "EdinburghNLP/xsum": None, "openai/gsm8k": "main", "wmt/wmt16": "de-en",
    "wmt/wmt14": "de-en", "openai/openai_humaneval": None, "google-research-datasets/mbpp": "full",
}
import torch
models = {}
for id in ids:
    checkpoint = find(id)
    has_weights = (checkpoint.folder / "model.safetensors").exists()
    download(checkpoint)
    model, tokenizer = load_model(checkpoint, device="cpu", dtype="float32"), load_tokenizer(checkpoint)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    logits = model(input_ids=ids).logits
    models[id] = {
        "parameters": checkpoint.weights.floating, "dtype": checkpoint.dtype, "identity": checkpoint.identity(), "text": text,
        "loaded": sum(p.numel() for p in model.parameters()), "type": str(model.dtype), "sum": round(float(logits.sum()), 4),
        "early": has_weights, "hash": checkpoint.hashes()["model.safetensors"],
    }
rows = {id: load(id, config, "test").rows for id, config in sets.items()}
tell({"models": models, "rows": rows})
"""


def ask(hub, home, script: str, token: str | None = None, **env: str):
    """What a subprocess tells that runs the script with this hub and cache."""
    command = [sys.executable, "-c", START + script]
    done = subprocess.run(command, env=hub.env(home, token, **env), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_pairs_and_data_sets_load_as_on_any_machine_and_again_without_a_network(hub, tmp_path):
    begin = len(hub.log)
    answers = ask(hub, tmp_path, EVERYTHING, "hf_granted")
    log = hub.log[begin:]
    for id, model in answers["models"].items():
        repo = hub.repo("models", id)
        assert not model["early"], "weights were there before the metadata had been looked at"
        assert model["identity"] == f"{id}@{repo.commit}"
        assert model["hash"] == repo.files["model.safetensors"].tag
        assert model["text"] == "<s><|user|>hi</s><|assistant|>"
        assert model["dtype"] == "bfloat16"
        assert model["type"] == "torch.float32"
        assert model["loaded"] <= model["parameters"] * 1.5
    for id, rows in answers["rows"].items():
        assert len(rows) == 8, id
    assert answers["rows"]["wmt/wmt16"][1] == {
        "translation": {"de": "Der Zug hat 1 Wagen.", "en": "The train has 1 cars."}
    }
    parquet = {line.split()[1] for line in log if line.startswith("GET") and "parquet" in line}
    assert len(parquet) == 7
    assert all("/test-" in path for path in parquet), "only the wanted split is downloaded"

    begin = len(hub.log)
    assert ask(hub, tmp_path, EVERYTHING, HF_HUB_OFFLINE="1") == answers | {
        "models": {id: model | {"early": True} for id, model in answers["models"].items()}
    }
    assert hub.log[begin:] == []


FAULTS = """
import os
answers = {}
for token in (None, "hf_ungranted", "hf_dead"):
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    answers[f"gate {token}"] = said(lambda: find("meta-llama/Llama-3.1-8B-Instruct"))
del os.environ["HF_TOKEN"]
checkpoint = find("Qwen/Qwen3-0.6B")
download(checkpoint)
tell(answers | {
    "there": (checkpoint.folder / "model.safetensors").exists(),
    "busy": said(lambda: find("Qwen/Qwen3-8B")),
    "broken": said(lambda: load("wmt/wmt14", "de-en", "test")),
    "revision": said(lambda: find("Qwen/Qwen3-0.6B", revision="nope")),
    "model": said(lambda: find("Qwen/Qwen3-9B")),
    "word": said(lambda: find("qwen")),
    "data": said(lambda: load("openai/gsm9k", "main", "test")),
    "config": said(lambda: load("openai/gsm8k", "mian", "test")),
    "split": said(lambda: load("openai/gsm8k", "main", "tets")),
    "data_revision": said(lambda: load("openai/gsm8k", "main", "test", revision="nope")),
})
"""


@pytest.fixture(scope="module")
def faults(hub, tmp_path_factory):
    """What is said in each case; the store fails twice for one file, one repository always, one is too busy."""

    def fail(method: str, path: str, count: int) -> int | None:
        if path.endswith("/Qwen/Qwen3-0.6B/@/model.safetensors"):
            return 500 if count <= 2 else None
        if path.startswith("/api/datasets/wmt/wmt14"):
            return 500
        return 429 if "Qwen3-8B" in path else None

    hub.fail = fail
    yield ask(hub, tmp_path_factory.mktemp("faults"), FAULTS)
    hub.fail = None


@pytest.mark.parametrize(("token", "words"), [(None, "then set HF_TOKEN"), ("hf_ungranted", "has no access yet")])
def test_a_gate_says_where_the_licence_is_and_what_to_set(hub, faults, token, words):
    kind, text = faults[f"gate {token}"]
    assert kind == "ConfigError"
    assert f"accept its licence at {hub.url}/meta-llama/Llama-3.1-8B-Instruct" in text
    assert words in text
    assert "model=llama-tiny" in text


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("gate hf_dead", "refuses your HF_TOKEN"),
        ("revision", "has no revision nope"),
        ("model", "there is no model Qwen/Qwen3-9B"),
        ("word", "neither a folder"),
        ("data", "there is no dataset openai/gsm9k"),
        ("config", "main"),
        ("split", "did you mean test?"),
        ("data_revision", "has no revision nope"),
    ],
)
def test_what_is_not_there_is_the_users_to_mend_and_named(faults, case, words):
    kind, text = faults[case]
    assert kind == "ConfigError"
    assert words in text


def test_passing_faults_are_tried_again_and_lasting_ones_are_named(faults):
    assert faults["there"]
    assert faults["busy"][0] == faults["broken"][0] == "HubError"
    assert "limits your requests (429)" in faults["busy"][1]
    assert "fails (500)" in faults["broken"][1]


def test_a_model_that_does_not_fit_is_known_before_its_weights_are_read(tmp_path):
    huge = Checkpoint("meta-llama/Llama-3.1-405B", tmp_path, "0" * 40, StoredWeights(405_000_000_000, "bfloat16"))
    why = why_too_large([(huge, None, None)], "cpu")
    assert why is not None
    assert re.search(r"405 B weights in bfloat16\) need about 8\d\d\.\d GiB and cpu has .* model=llama-tiny", why)
    small = Checkpoint("x/y", tmp_path, None, StoredWeights(1000, "bfloat16"))
    assert why_too_large([(small, "float32", None), (small, None, "bnb-nf4")], "cpu") is None


QUANTIZED = {  # how publishers store a layer of 64 x 32 weights
    "fp8": {"w": torch.zeros(64, 32).to(torch.float8_e4m3fn), "scale": torch.ones(1, 1)},
    "bitsandbytes": {"w": torch.zeros(64 * 32 // 2, 1, dtype=torch.uint8), "scale": torch.ones(1, 1)},
    "mxfp4": {"w": torch.zeros(64, 2, 8, dtype=torch.uint8), "scale": torch.ones(1, 1)},
    "gptq": {"w": torch.zeros(4, 64, dtype=torch.int32), "scale": torch.ones(1, 1)},
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_quantised_weights_count_the_bytes_of_their_file(method, tmp_path):
    tensors = QUANTIZED[method] | {"norm": torch.zeros(32, dtype=torch.bfloat16), "bias": torch.zeros(7).bfloat16()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}))
    checkpoint = find(str(tmp_path))
    size = tensors["w"].nbytes
    assert checkpoint.dtype == "bfloat16", "of the weights that are not quantised"
    assert checkpoint.bytes(None, None, "cuda") == checkpoint.bytes("bfloat16", None, "cuda") == size + 2 * 40
    assert checkpoint.bytes("float32", None, "cuda") == size + 4 * 40
    is_dequantised = method in ("fp8", "mxfp4")  # on a CPU, by transformers
    each = {"fp8": 64 * 32, "mxfp4": 2 * 64 * 16}.get(method, 0) * 4
    assert checkpoint.bytes("float32", None, "cpu") == (each if is_dequantised else size) + 4 * 40


def test_a_quantised_model_that_fits_is_not_refused(tmp_path, monkeypatch):
    save_file({"w": torch.zeros(1000, 1000).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    for free, words in (
        (1_200_000, None),
        (1_000_000, r"0 B weights in float32 and 0\.00\d* GiB of quantised weights"),
    ):
        monkeypatch.setattr("sdbench.lm.load.free_bytes", lambda device, *, is_spread, free=free: free)
        why = why_too_large([(find(str(tmp_path)), None, None)], "cuda")
        assert why is None if words is None else why is not None and re.search(words, why)


def test_a_shipped_model_is_a_checkpoint_whose_identity_is_its_weights():
    from sdbench import embedded

    folder = str(embedded.path("llama-tiny", "draft"))
    checkpoint = find("embedded:llama-tiny/draft", folder)
    assert checkpoint.weights.floating
    assert checkpoint.identity().startswith("sha256:")
    assert checkpoint.identity() == find("other", folder).identity()


def test_a_folder_without_a_model_is_named_with_what_it_lacks(tmp_path):
    with pytest.raises(
        ConfigError, match=r"is a folder without config\.json: name one that holds config\.json, weights"
    ):
        find(str(tmp_path))


def test_a_folder_is_named_from_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "models" / "tiny"
    shutil.copytree(embedded.path("llama-tiny", "draft"), folder)
    assert find("~/models/tiny").folder == folder
    assert find("~/models/tiny", "~/models/tiny").folder == folder


def test_a_word_that_cannot_be_an_id_is_not_asked_of_the_hub(monkeypatch):
    monkeypatch.setattr("sdbench.lm.load.fetch", lambda *_, **__: pytest.fail("the hub was asked"))
    for word in ("embedded:llama-tiny/draft", "a/b/c", "../a", "~a/b", "word"):
        with pytest.raises(ConfigError, match="neither a folder on this machine nor an id of the hub"):
            find(word)


def test_a_line_with_the_size_comes_before_a_large_folder_is_hashed(tmp_path, monkeypatch, capsys):
    folder = embedded.path("llama-tiny", "draft")
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".jinja"))
    for name, value in {"CACHE": tmp_path, "LARGE": 0, "GIB": 1000, "LONG": 2 * size}.items():
        monkeypatch.setattr(f"sdbench.lm.digests.{name}", value)
    checkpoint = find("tiny", str(folder))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sdbench.lm.digests.LONG", size)
    for line in (f"sdbench: hashing {size / 1000:.1f} GiB of tiny, once: the hashes are kept\n", ""):
        checkpoint.identity()
        assert capsys.readouterr().err == line


def test_a_folder_of_the_name_blobs_is_no_cache_of_the_hub(tmp_path, monkeypatch):
    """The hub's cache names files by their hashes; elsewhere a name says nothing of the content."""
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")
    monkeypatch.setattr("sdbench.lm.digests.LARGE", 0)
    original = embedded.path("llama-tiny", "draft")
    copy = Path(shutil.copytree(original, tmp_path / "blobs"))
    checkpoint = find(str(copy))
    assert not checkpoint.is_hashed()
    before = checkpoint.identity()
    assert before == find(str(original)).identity()
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert find(str(copy)).identity() != before


@pytest.mark.parametrize("digits", [40, 64])
def test_a_file_of_the_cache_of_the_hub_is_known_by_its_name(tmp_path, digits):
    blob, snapshot = tmp_path / "blobs" / ("0a" * (digits // 2)), tmp_path / "snapshots" / "main"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    blob.write_text("{}")
    (snapshot / "config.json").symlink_to(blob)
    checkpoint = Checkpoint("x", snapshot, None, None)
    assert checkpoint.is_hashed()
    assert checkpoint.hashes() == {"config.json": blob.name}


@pytest.mark.parametrize("is_renamed", [False, True])
def test_weights_that_were_replaced_with_their_time_have_another_identity(tmp_path, monkeypatch, is_renamed):
    """As by rsync -t or tar: neither size nor time of modification shows it."""
    monkeypatch.setattr("sdbench.lm.digests.CACHE", tmp_path / "hashes")
    monkeypatch.setattr("sdbench.lm.digests.LARGE", 0)
    folder = Path(shutil.copytree(embedded.path("llama-tiny", "draft"), tmp_path / "model"))
    weights = folder / "model.safetensors"
    before, state, data = find(str(folder)).identity(), weights.stat(), weights.read_bytes()
    time.sleep(0.02)  # the steps of a file system's clock
    path = tmp_path / "other" if is_renamed else weights
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    path.replace(weights)
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert find(str(folder)).identity() != before


DOWNLOADS = """
answers = {}
for id in ("org/doubled", "org/sharded", "org/pickled"):
    checkpoint = find(id)
    planned = checkpoint.stored_bytes
    download(checkpoint)
    files = [path for path in checkpoint.folder.iterdir() if path.suffix in (".safetensors", ".bin")]
    answers[id] = [planned, sum(path.stat().st_size for path in files), sorted(path.name for path in files)]
    load_model(checkpoint, device="cpu", dtype="float32")
tell(answers | {"adapter": said(lambda: find("org/adapter"))})
"""


def test_only_the_weights_that_are_loaded_are_downloaded(hub, tmp_path):
    """Some repositories hold the same weights again, in a file for the publisher's own code."""
    folders = {name: hub.root / "models" / "org" / name for name in ("doubled", "sharded", "pickled", "adapter")}
    for folder in folders.values():
        shutil.copytree(hub.root / "models" / "Qwen" / "Qwen3-0.6B", folder)
    weights = load_file(folders["doubled"] / "model.safetensors")
    for name in ("doubled", "sharded"):
        shutil.copy(folders[name] / "model.safetensors", folders[name] / "consolidated.safetensors")
    names = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in set(names.values()):
        part = {name: tensor for name, tensor in weights.items() if names[name] == file}
        save_file(part, folders["sharded"] / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": names}
    (folders["sharded"] / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(weights, folders["pickled"] / "pytorch_model.bin")
    for name in ("sharded", "pickled"):
        (folders[name] / "model.safetensors").unlink()
    (folders["adapter"] / "adapter_config.json").write_text("{}")
    begin = len(hub.log)
    answers = ask(hub, tmp_path, DOWNLOADS)
    assert not [line for line in hub.log[begin:] if "consolidated" in line]
    assert answers["org/doubled"][2] == ["model.safetensors"]
    assert answers["org/sharded"][2] == sorted(set(names.values()))
    assert answers["org/pickled"][2] == ["pytorch_model.bin"]
    for name in ("doubled", "sharded"):
        planned, downloaded, _ = answers[f"org/{name}"]
        assert planned < downloaded < 1.2 * planned, "the rest is headers"
    kind, text = answers["adapter"]
    assert kind == "ConfigError"
    assert text.startswith(
        "org/adapter has an adapter beside its weights (adapter_config.json): merge the adapter into"
    )
