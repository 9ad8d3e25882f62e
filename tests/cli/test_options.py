"""Options of a run through the command line: each does what it says, or says in one sentence what it needs."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from sdbench.cli import main
from sdbench.config import ConfigError, Model
from sdbench.engines.native import timing
from sdbench.lm.model import LM
from sdbench.lm.quantized import QUANTIZED
from sdbench.metrics.summary import summarise
from sdbench.prepare import pair as pairs
from sdbench.records import read
from sdbench.report.sweep import sweeps_of
from sdbench.types import EngineError
from tests.records.equality import assert_same_records

NAME = "micro-gsm8k-tiny"
pytestmark = pytest.mark.usefixtures("no_figures")


def refused(words: list[str], capsys) -> str:
    """What a command says that ends with code 2."""
    capsys.readouterr()
    assert main(words) == 2
    message = capsys.readouterr().err
    assert message.startswith("sdbench: ")
    assert message.count("\n") == 1
    return message


def save_huge(folder, shape: list[int], *, is_whole: bool = True) -> str:
    """A checkpoint with far more weights than any machine has: zeros that take no room on the disk, or the header alone."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    size = 2 * math.prod(shape) if is_whole else 0
    header = json.dumps({"weight": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return str(folder)


def test_a_model_that_does_not_fit_is_refused_from_its_metadata(words, tmp_path, capsys):
    huge = save_huge(tmp_path / "huge", [1_000_000, 405_000])
    message = refused(words(tmp_path / "results", **{"model.target": huge}), capsys)
    assert "405 B weights" in message
    assert "GiB free: use" in message
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("option", "packages"),
    [
        ("model.quantization=bnb-nf4", ["bitsandbytes", "accelerate"]),
        ("model.draft_quantization=bnb-int8", ["bitsandbytes", "accelerate"]),
        ("model.quantization=torchao-int8", ["torchao", "accelerate"]),
        ("model.quantization=torchao-int4", ["torchao", "mslk", "accelerate"]),
        ("model.device_map=auto", ["accelerate"]),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(words, tmp_path, capsys, monkeypatch, option, packages):
    monkeypatch.setattr("sdbench.lm.quantized.find_spec", lambda name: None)  # as on a machine without them
    message = refused([*words(tmp_path), option], capsys)
    assert f"needs {' and '.join(packages)}: pip install {' '.join(packages)}" in message


ABSENT = [
    name for name in ("cuda", "xpu", "hpu") if not getattr(torch, name, None) or not getattr(torch, name).is_available()
]


@pytest.mark.parametrize("option", [option for name in ABSENT for option in (f"device={name}", f"device={name}:1")])
def test_a_device_that_is_not_there_is_no_reason_to_be_slow(words, tmp_path, capsys, option):
    message = refused([word for word in words(tmp_path) if word != "device=cpu"] + [option], capsys)
    assert f"{option} is not available on this machine" in message


def test_an_attention_that_is_not_installed_is_one_sentence(words, tmp_path, capsys):
    message = refused([*words(tmp_path), "model.attention=flash_attention_2"], capsys)
    assert "model.attention=flash_attention_2 is not available for" in message


@pytest.mark.slow
def test_dtypes_are_cells_of_their_own_and_plain_attention_is_not(words, tmp_path):
    for dtype in ("float32", "bfloat16", "float16"):
        assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=8, dtype=dtype)) == 0
    cells = read(tmp_path / NAME).cells
    dtypes = {content["target_dtype"] for content in cells["content"] if "target_dtype" in content}
    assert dtypes == {"torch.float32", "torch.bfloat16", "torch.float16"}
    assert len(cells) == 3 * 4
    assert main(words(tmp_path, n=1, w=0.3, max_new_tokens=8, dtype="float32", **{"model.attention": "eager"})) == 0
    assert len(read(tmp_path / NAME).cells) == 3 * 4


def tiny(results) -> list[str]:
    """A pair with matrices wide enough to be quantised."""
    shown = ["n=2", "w=0.3", "max_new_tokens=8", "temperature=1", "timing=off"]
    return [f"results={results}", *shown, "dtype=float32", "device=cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["bitsandbytes", "torchao"])
def test_quantised_models_are_cells_of_their_own_and_a_device_map_is_not(tmp_path, package):
    pytest.importorskip(
        package,
        reason=f"{package} is not installed: torchao would be imported by transformers in every command of the tests",
    )
    kinds = [name for name, (_, needed) in QUANTIZED.items() if needed == [package]]  # torchao-int4 needs mslk, a GPU
    assert main(tiny(tmp_path)) == 0
    for kind in kinds:
        assert main([*tiny(tmp_path), f"model.quantization={kind}"]) == 0
    assert main([*tiny(tmp_path), "model.device_map=auto"]) == 0
    results = read(tmp_path / "llama-tiny-gsm8k-tiny")
    expected = results.generations.loc[results.generations["verifier"] == "lossless", "expected_sum"]
    assert len(expected) == expected.nunique() == 2 * (1 + len(kinds))
    assert {content.get("target_quantization") for content in results.cells["content"]} == {None, *kinds}


@pytest.mark.slow
def test_int8_of_target_draft_or_both_makes_cells_of_their_own_in_one_folder(tmp_path):
    roles = {"target": "model.quantization=int8", "draft": "model.draft_quantization=int8"}
    for words in ([], [roles["target"]], [roles["draft"]], [*roles.values()]):
        assert main([*tiny(tmp_path), *words]) == 0
    cells = read(tmp_path / "llama-tiny-gsm8k-tiny").cells
    kinds = [[content[f"{role}_quantization"] for role in roles] for content in cells["content"] if content["drafter"]]
    lossless = [
        kind for kind, name in zip(kinds, cells["verifier"][cells["num_draft"] > 0], strict=True) if name == "lossless"
    ]
    assert sorted(map(str, lossless)) == sorted(str([a, b]) for a in (None, "int8") for b in (None, "int8"))


@pytest.mark.slow
def test_packed_weights_make_cells_of_their_own_in_one_folder_and_the_page_names_them(tmp_path):
    for words in ([], ["model.packed=false"], ["model.packed=true"]):
        assert main([*tiny(tmp_path), *words]) == 0
    results = read(tmp_path / "llama-tiny-gsm8k-tiny")
    assert results.cells["verifier"].value_counts().to_dict() == dict.fromkeys(
        ("target", "draft", "lossless", "ensemble"), 2
    )
    assert not results.generations.duplicated(["cell", "example"]).any()
    summary = summarise(results, resamples=100)
    assert summary["weights"].fillna("").value_counts().to_dict() == {"": 4, "repacked": 4}
    titles = {sweep.title for sweep in sweeps_of([results], [summary])}
    assert titles == {"llama-tiny on gsm8k-tiny", "llama-tiny on gsm8k-tiny, weights repacked"}


def test_packed_weights_count_twice_unless_the_file_has_them_in_the_dtype_and_need_a_cpu(tmp_path, capsys, monkeypatch):
    def metadata(packed: bool | None, device: str = "cpu", dtype: str = "float32") -> pairs.PairMetadata:
        model = Model("llama-tiny", "embedded:llama-tiny/target", "embedded:llama-tiny/draft", packed=packed)
        return pairs.find(model, device=device, dtype=dtype)

    stored = metadata(None).checkpoints["target"].dtype
    for dtype in ("float32", "bfloat16", "float16"):
        packed, plain, off = (metadata(value, dtype=dtype).num_bytes for value in (True, None, False))
        assert packed == (1 if dtype == stored else 2) * plain
        assert off == plain
    with monkeypatch.context() as patch:
        patch.setattr(pairs.sys, "platform", "darwin")
        assert metadata(True, dtype=stored).num_bytes == 2 * metadata(None, dtype=stored).num_bytes
    assert "model.packed must be true or false, got 2" in refused([*tiny(tmp_path), "model.packed=2"], capsys)
    monkeypatch.setattr(pairs, "device_of", lambda device, **_: device)
    with pytest.raises(ConfigError, match=r"model\.packed=true is for models on a CPU, and device=cuda was chosen"):
        metadata(True, "cuda")


def test_weights_quantised_after_reading_are_counted_as_they_are_read():
    def num_bytes(quantization: str | None) -> float:
        model = Model("llama-tiny", "embedded:llama-tiny/target", None, quantization=quantization)
        return pairs.find(model, device="cpu", dtype="float32").bytes_of("target")

    assert num_bytes("int8") == num_bytes(None) > 0


def test_weights_that_cannot_be_quantised_here_are_one_sentence(tmp_path, capsys, monkeypatch):
    def without_kernels(*_, **__):  # what transformers raises where torchao lacks the kernels of torchao-int4
        raise RuntimeError("We encountered some issues during automatic conversion of the weights.\nSee above.")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", without_kernels)
    assert main([*tiny(tmp_path), "model.quantization=bnb-nf4"]) == 2
    message = capsys.readouterr().err
    assert "cannot be loaded with quantization=bnb-nf4 on cpu: We encountered some issues during" in message
    assert "Traceback" not in message


@pytest.mark.slow
def test_a_batch_that_is_too_large_is_halved_until_it_fits(words, tmp_path, whole, monkeypatch, capsys):
    """Memory for three rows of a judging call, whatever is asked for; the records are those of any batch."""
    forward = LM.forward_hidden

    def scarce(self, ids, *args, **options):
        if len(ids) > 3:
            raise torch.OutOfMemoryError(f"{len(ids)} rows")
        return forward(self, ids, *args, **options)

    monkeypatch.setattr(LM, "forward_hidden", scarce)
    assert main(words(tmp_path, batch_size="auto")) == 0
    message = capsys.readouterr().err
    assert "out of memory with 12 rows; going on with 6" in message
    assert "going on with 3" in message
    assert_same_records(tmp_path / NAME, whole)


@pytest.mark.slow
def test_a_latency_pass_whose_batch_does_not_fit_says_so_and_keeps_the_quality(
    words, tmp_path, whole, monkeypatch, capsys
):
    monkeypatch.setattr(timing, "time_plan", out_of_memory)
    assert main([word for word in words(tmp_path, **{"timing.examples": 2}) if word != "timing=off"]) == 0
    message = capsys.readouterr().err
    assert (
        "the latency pass has stopped: out of memory (2 rows); use a smaller timing.batch_size, or timing=off"
        in message
    )
    assert_same_records(tmp_path / NAME, whole)


@pytest.mark.slow
def test_a_fault_of_the_latency_pass_is_raised_once_everything_is_reported(words, tmp_path, whole, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise EngineError("the server has ended")

    monkeypatch.setattr(timing, "time_plan", fail)
    assert main([word for word in words(tmp_path, **{"timing.examples": 2}) if word != "timing=off"]) == 1
    message = capsys.readouterr().err
    assert "the latency pass has failed, for the reason below" in message
    assert "timing=off leaves the pass out" in message
    assert message.splitlines()[-1] == "sdbench: the server has ended"
    assert (tmp_path / NAME / "summary.csv").exists()
    assert_same_records(tmp_path / NAME, whole)


def out_of_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("2 rows")


def test_without_the_target_alone_nothing_is_timed(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(LM, "forward_hidden", out_of_memory)
    assert main([word for word in words(tmp_path, n=1, **{"timing.examples": 1}) if word != "timing=off"]) == 1
    assert "speeds are compared with the target alone, which has failed" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_are_halved_before_the_system_ends_the_process(words, tmp_path, whole, monkeypatch, capsys):
    """On a CPU no allocator says that memory runs out: with little left, fewer rows go on, with the same records."""
    from sdbench.engines.native import memory

    plenty, little = 2**40, 2**20
    free = iter([little, plenty, little, *[plenty] * 10_000])

    class Guard(memory.MemoryGuard):
        def __init__(self) -> None:
            super().__init__()
            self._free_bytes, self._low_bytes = free.__next__, memory.LOW_BYTES  # type: ignore[assignment]

    monkeypatch.setattr("sdbench.engines.native.decode.MemoryGuard", Guard)
    monkeypatch.setattr(memory, "CHECK_S", 0)
    assert main(words(tmp_path, batch_size=10)) == 0
    message = capsys.readouterr().err
    assert "out of memory with 10 rows; going on with 5" in message
    assert "out of memory with 5 rows; going on with 2" in message
    assert_same_records(tmp_path / NAME, whole)


@pytest.mark.slow
def test_lists_of_draft_lengths_and_samples_share_a_stream_and_give_what_single_runs_give(words, tmp_path, capsys):
    given = {"n": 2, "w": "[0.3,0.6]", "max_new_tokens": 12, "samples": 2}
    assert main(words(tmp_path / "one", num_draft="[2,4]", **given)) == 0
    message = capsys.readouterr().err
    assert f"decoding: {2 * 2 * (2 * 3 + 2)}/{2 * 2 * (2 * 3 + 2)} in" in message
    for k in (2, 4):
        assert main(words(tmp_path / "many", num_draft=k, **given)) == 0
    assert_same_records(tmp_path / "one" / NAME, tmp_path / "many" / NAME)
    frame = read(tmp_path / "one" / NAME).generations
    assert frame.groupby(["verifier", "num_draft"]).size().to_dict() == {
        ("draft", 0): 4,
        ("ensemble", 2): 8,
        ("ensemble", 4): 8,
        ("lossless", 2): 4,
        ("lossless", 4): 4,
        ("target", 0): 4,
    }


def test_narrow_models_on_a_cpu_get_one_thread_unless_the_user_sets_a_number(monkeypatch):
    def model(width, device="cpu"):
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=width))
        return SimpleNamespace(config=config, device=torch.device(device))

    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(pairs, "usual_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for models in ([model(128), model(96)], [model(4096), model(96)], [model(128, "meta"), model(96, "meta")]):
        pairs.set_threads(models)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    pairs.set_threads([model(128)])
    assert given == [1, 7, 7]
