"""The peak of a run's memory, worked out from shapes: measured on small models, and by arithmetic on large ones."""

import gc
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config

import sdbench
from scripts.real_runs import PLANNED
from sdbench import probs
from sdbench.cli import compose_run, main
from sdbench.engines.job import prepare
from sdbench.engines.native.memory import peak_of, sorted_ids_of
from sdbench.lm import memory
from sdbench.lm.load import find, load_model
from sdbench.lm.memory import ModelShape, free_system_bytes, peak_bytes
from sdbench.prepare.pair import folder_of
from sdbench.probs import HEADS
from sdbench.verify import Ensemble, Exact
from tests.engine.models import tiny

VOCAB, ROWS, K, PROMPT, NEW = 12_000, 24, 3, 200, 5


def measured_peak(call: Any) -> int:
    """The most bytes of tensors that live at once, beyond those before the call."""
    gc.collect()  # what an earlier test left in cycles would otherwise be freed here, and be subtracted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    kineto: Any = profiler.profiler
    events = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def shape_of(model: Any) -> ModelShape:
    weights = sum({x.data_ptr(): x.nbytes for x in model.parameters()}.values())
    return ModelShape.of(model.config, weights, model.dtype.itemsize)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("temperature", "top_p", "rule", "scale"),
    [
        (0, None, Exact(), 1),
        (0, None, Ensemble(w=0.5), 1),
        (1, None, Exact(), 1),
        (0.7, None, Ensemble(w=0.5), 1),
        (1, 0.9, Exact(), 1),
        (1, 0.95, Exact(), 5),
        pytest.param(1, 0.95, Ensemble(w=0.5), 5, marks=pytest.mark.slow),
    ],
)
def test_the_peak_is_within_15_per_cent(temperature, top_p, rule, scale, dtype):
    """`scale`, a factor on the logits, decides whether top_p sorts all ids or only the most likely ones."""
    options = {"vocab": VOCAB, "num_key_value_heads": 4, "head_dim": 32}
    target, draft = (tiny("qwen3", seed=seed, layers=2, **options).to(dtype).requires_grad_(False) for seed in (0, 1))
    for model in (target, draft):
        model.lm_head.weight.mul_(scale)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(5, VOCAB, (ROWS, PROMPT), generator=generator).tolist()
    warp: dict[str, Any] = {"temperature": temperature, "top_p": top_p}

    def call() -> None:
        more = {"max_new_tokens": NEW, "stop_ids": (), "batch_size": ROWS, "num_draft": K}
        sdbench.generate(target, draft, prompts, [rule], capture="off", **more, **warp)

    need = peak_bytes(
        shape_of(target),
        shape_of(draft),
        num_rows=ROWS,
        length=PROMPT + NEW,
        num_draft=K,
        sorted_ids=None if scale == 1 else HEADS[-1],
        keeps_logits=temperature == 0 and not isinstance(rule, Exact),
        **warp,
    )
    peak = measured_peak(call)
    assert peak + need.weights == pytest.approx(need.total, rel=0.15)


@pytest.mark.parametrize("mode", ["trace", "graphs"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_peak_of_captured_steps_is_within_15_per_cent(mode, temperature):
    """Their caches have a multiple of 512 slots, and graphs keep what they return."""
    options = {"vocab": VOCAB // 4, "num_key_value_heads": 4, "head_dim": 64}
    target, draft = (tiny("qwen3", seed=seed, layers=3, **options).float().requires_grad_(False) for seed in (0, 1))
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(5, VOCAB // 4, (ROWS, PROMPT), generator=generator).tolist()

    def call() -> None:
        more = {"max_new_tokens": NEW, "stop_ids": (), "batch_size": ROWS, "num_draft": K, "temperature": temperature}
        sdbench.generate(target, draft, prompts, [Exact()], capture=mode, **more)

    shapes = [replace(shape_of(model), mode=mode) for model in (target, draft)]
    options = {"num_rows": ROWS, "length": PROMPT + NEW, "num_draft": K, "temperature": temperature}
    need = peak_bytes(*shapes, **options)
    peak = measured_peak(call)
    assert peak + need.weights == pytest.approx(need.total, rel=0.15)


@pytest.mark.parametrize(
    ("words", "keeps_logits"),
    [
        (["temperature=0", "w=0.5", "dtype=bfloat16"], True),
        (["temperature=0", "verifier=exact", "w=null", "dtype=bfloat16"], False),
        (["temperature=1", "w=0.5", "dtype=float32", "top_p=0.9"], False),
        (["temperature=1", "w=0.5", "dtype=float32", "model.packed=true"], False),
    ],
)
def test_the_plan_prints_the_peak_of_its_job(words, keeps_logits, tmp_path, monkeypatch, capsys):
    """From the models and prompts themselves: a byte less or more would be seen."""
    monkeypatch.setattr("sdbench.cli.plan.GIB", 1)
    job_words = ["model=llama-tiny", "task=gsm8k-tiny", "n=6", "max_new_tokens=24", "num_draft=3", "batch_size=5"]
    job_words += ["timing=off", f"results={tmp_path}", *words]
    assert main(["--plan", *job_words]) == 0
    printed = PLANNED.search(capsys.readouterr().out)
    assert printed is not None
    run = compose_run(job_words)
    prompts = prepare(run, ()).prompts.ids.values()
    is_packed, dtype = bool(run.model.packed), next(x for x in words if "dtype" in x).removeprefix("dtype=")
    shapes = []
    for role in ("target", "draft"):
        shape = shape_of(load_model(find(folder_of(f"embedded:llama-tiny/{role}")), device="cpu", dtype=dtype))
        more = {"mode": "off", "weights": 2 * shape.weights} if is_packed else {"mode": "trace"}
        shapes.append(replace(shape, **more))
    need = peak_bytes(
        *shapes,
        num_rows=5,
        length=max(map(len, prompts)) + 24,
        num_draft=3,
        temperature=run.temperature,
        top_p=run.top_p,
        keeps_logits=keeps_logits,
        keeps_prompts=True,
        num_cores=os.cpu_count() or 1,
    )
    assert list(map(float, printed.groups())) == pytest.approx([need.weights, need.cache, need.laws], rel=0, abs=0.01)


def test_a_latency_pass_reads_the_weights_beside_their_packed_copies(tmp_path):
    """transformers' `generate` reads those of the target, and assisted those of both models."""

    def weights(*words: str) -> float:
        run = compose_run(
            ["model=llama-tiny", "task=gsm8k-tiny", "n=2", "dtype=bfloat16", f"results={tmp_path}", *words]
        )
        return peak_of(prepare(run, ()), 1).weights

    pair, packed = weights("timing=off"), "model.packed=true"
    target = shape_of(load_model(find(folder_of("embedded:llama-tiny/target")), device="cpu", dtype="bfloat16")).weights
    assert weights("timing=off", packed) == pair, "mapped from their files"
    assert weights("timing=off", packed, "dtype=float32") == 4 * pair
    assert weights(packed) == pytest.approx(pair + target, rel=0.02)
    assert weights(packed, "timing.assisted=true") == 2 * pair


def test_top_p_sorts_the_most_likely_ids_of_models_that_run_eagerly_on_a_cpu():
    wide, narrow, small = (
        Qwen2Config(hidden_size=hidden, vocab_size=vocab)
        for hidden, vocab in ((896, 151_936), (256, 151_936), (896, 2 * HEADS[-1] - 1))
    )
    assert sorted_ids_of([wide, wide], "cpu", is_packed=False) == HEADS[-1]
    assert sorted_ids_of([narrow, wide], "cpu", is_packed=True) == HEADS[-1], "packed weights are not traced"
    for configs, device in (([wide], "cuda"), ([wide, narrow], "cpu"), ([small], "cpu")):
        assert sorted_ids_of(configs, device, is_packed=False) is None


def test_slices_of_laws_are_as_large_as_the_peak_counts_them():
    """lm/memory.py has their sizes a second time, because it does not import torch."""
    assert (memory.SLICE, memory.CHUNK_OF_LAWS) == (probs.SLICE, probs.CHUNK)


def test_the_peak_of_an_8b_and_of_a_70b():
    """Llama 3 with its 1B draft in bfloat16: 32 rows of 2,048 tokens, K = 5, without a rule that reads logits."""
    draft = ModelShape(2.47e9, 2 * 16 * 8 * 64 * 2, 128_256, 2)
    for weights, layers, wanted in ((16.06e9, 32, 29.69), (141.1e9, 80, 168.06)):
        target = ModelShape(weights, 2 * layers * 8 * 128 * 2, 128_256, 2)
        need = peak_bytes(target, draft, num_rows=32, length=2048, num_draft=5)
        assert need.laws == 32 * 6 * 128_256 * 2  # logits as they come
        slots = 32 * 2055 + 2048
        assert need.cache == slots * (target.token + draft.token)
        assert need.total / 1e9 == pytest.approx(wanted, rel=0.001)
    sampled = peak_bytes(target, draft, num_rows=32, length=2048, num_draft=5, temperature=1)
    assert sampled.laws == 32 * 128_256 * (5 * 4 + 6 * (2 + 4)) + memory.SLICE * 4, (
        "the draft's laws, logits and laws of the target, and a slice of the logits in float32"
    )
    on_gpu = peak_bytes(target, draft, num_rows=32, length=2048, num_draft=5, temperature=1, is_cpu=False)
    assert on_gpu.laws - sampled.laws == (memory.CHUNK_OF_LAWS - memory.SLICE) * 4, "larger slices, in eager steps too"
    own_layers = peak_bytes(target, None, num_rows=32, length=2048, num_draft=5, temperature=1)
    assert own_layers.laws == sampled.laws, "a drafter without a model has blocks to verify, too"
    assert own_layers.cache == slots * target.token


@pytest.mark.parametrize("version", [1, 2])
def test_cached_pages_of_files_count_as_free_in_a_container(tmp_path, version):
    """Hashing and dequantising fill the page cache up to the container's limit; the system takes those pages back."""
    whole, group = free_system_bytes(tmp_path), write_group(tmp_path, version, "", 1_000_000)
    if version == 1:
        write_membership(
            tmp_path, "4:cpu:/\n3:memory:/docker/id\n"
        )  # a path of the host: the container sees its group as the top
    assert free_system_bytes(tmp_path) == 810_000
    (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(
        ("max", str(2**63 - 4096))[version == 1]
    )
    assert free_system_bytes(tmp_path) == pytest.approx(whole, rel=0.2)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_cluster_job_is_found_above_the_group_of_its_step(tmp_path, version):
    """Slurm limits a job's group, and the process is in one of the groups below."""
    write_group(tmp_path, version, "slurm/job_7", 1_000_000)
    write_group(tmp_path, version, "slurm/job_7/step_0", 2**40)
    write_membership(tmp_path, ("0::", "5:cpu,memory:")[version == 1] + "/slurm/job_7/step_0/task_0\n")
    assert free_system_bytes(tmp_path) == 810_000


def write_group(root, version, path, limit):
    """Write a control group with a limit of its memory, of which 190,000 bytes are used, beside cached pages of files."""
    group = root / "sys/fs/cgroup" / ("memory" if version == 1 else "") / path
    group.mkdir(parents=True, exist_ok=True)
    names = ("max", "current", "") if version == 2 else ("limit_in_bytes", "usage_in_bytes", "total_")
    (group / f"memory.{names[0]}").write_text(f"{limit}\n")
    (group / f"memory.{names[1]}").write_text("990000\n")
    (group / "memory.stat").write_text(f"anon 1\n{names[2]}active_file 500000\n{names[2]}inactive_file 300000\n")
    return group


def write_membership(root, lines):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
