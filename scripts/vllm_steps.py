"""Measure seconds of a step of vLLM with our plug-in and with its own sampler; bench_vllm.py runs this in vLLM's environment.

    python scripts/vllm_steps.py TARGET DRAFT PROMPTS.json REPEATS    # needs an interpreter with vLLM

Prints one JSON object: for each setting, pairs (plug-in, vLLM) of the median seconds of a step in a block. Blocks take turns in one
process, in which `rejection_sample` is exchanged. A step is everything that the engine does for a batch of eight: schedule, read,
verify, draft, return. Both use the plug-in's `expand_batch_to_tokens`, because vLLM's own returns uninitialised memory on a CPU; at
temperature 0 neither is called.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "sdbench", "VLLM_USE_V2_MODEL_RUNNER": "0"}
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}

BATCH, NEW, NUM_DRAFT = 8, 100, 5
WS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.2)  # a sweep in one batch
SETTINGS = {"T = 0": (0.0, False), "T = 1": (1.0, False), "T = 1, a seed for each request": (1.0, True)}


def parts() -> list[tuple[Any, str]]:
    """Return the functions that the plug-in replaces, by owner and name."""
    import vllm.v1.sample.rejection_sampler as sampler  # pyright: ignore[reportMissingImports]
    import vllm.v1.spec_decode.llm_base_proposer as proposer  # pyright: ignore[reportMissingImports]
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # pyright: ignore[reportMissingImports]

    return [
        *((sampler, "rejection_sample"), (sampler, "apply_sampling_constraints")),
        *((GPUModelRunner, "_sample"), (GPUModelRunner, "_bookkeeping_sync")),
        (proposer, "compute_probs_and_sample_next_token"),
        (proposer.SpecDecodeBaseProposer, "_sample_draft_tokens"),
    ]


def current() -> list[Any]:
    return [getattr(owner, name) for owner, name in parts()]


def put(values: list[Any]) -> None:
    for (owner, name), value in zip(parts(), values, strict=True):
        setattr(owner, name, value)


def main(target: str, draft: str, prompts: str, repeats: str) -> int:
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    standard = current()
    speculative = {"method": "draft_model", "model": draft, "draft_sample_method": "probabilistic"}
    size: Any = {"dtype": "float32", "max_model_len": 512, "enforce_eager": True}
    llm = LLM(model=target, speculative_config={**speculative, "num_speculative_tokens": NUM_DRAFT}, **size)
    plugged = current()
    assert plugged[0] is not standard[0], "the plug-in did not load"
    texts = [{"prompt_token_ids": ids} for ids in json.loads(Path(prompts).read_text())[:BATCH]]
    engine = llm.llm_engine
    step, seconds = engine.step, []

    def timed() -> Any:
        """Return the seconds of the steps that have a full batch before and after them."""
        begin = time.perf_counter()
        outputs = step()
        seconds.append((time.perf_counter() - begin, engine.get_num_unfinished_requests()))
        return outputs

    engine.step = timed

    def block(*, is_ours: bool, temperature: float, has_seed: bool) -> float:
        put(plugged if is_ours else standard)
        seconds.clear()
        knobs = [json.dumps({"w": w, "greedy": "mixture"}) for w in WS]
        extra = [
            {"sdbench_rule": "sdbench.verify.Ensemble", "sdbench_knobs": one} if is_ours else None for one in knobs
        ]
        usual: Any = {"temperature": temperature, "max_tokens": NEW, "ignore_eos": True}
        params = [
            SamplingParams(extra_args=one, seed=row if has_seed else None, **usual) for row, one in enumerate(extra)
        ]
        llm.generate(texts, params, use_tqdm=False)
        return statistics.median(one for one, left in seconds[2:] if left == BATCH)

    rows: dict[str, list[tuple[float, float]]] = {}
    for name, (temperature, has_seed) in SETTINGS.items():
        own: dict[str, Any] = {"temperature": temperature, "has_seed": has_seed}
        for turn in range(1 + int(repeats)):  # the first is a warm-up
            order = (True, False) if turn % 2 else (False, True)
            took = {is_ours: block(is_ours=is_ours, **own) for is_ours in order}
            if turn:
                rows.setdefault(name, []).append((took[True], took[False]))
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(
            __doc__ if {"-h", "--help"} & set(sys.argv) else f"vllm_steps takes four arguments; {sys.argv[0]} --help"
        )
    sys.exit(main(*sys.argv[1:]))
