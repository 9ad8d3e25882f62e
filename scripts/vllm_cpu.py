"""How the vllm scripts start vLLM's CPU build for a tiny pair: with a small cache, in float32 like the native engine, eagerly."""

from collections.abc import Mapping

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
ARGS = {"dtype": "float32", "max_model_len": 1024, "enforce_eager": True}
SERVER = (  # the same, as options of a run
    *(f"engine.args.{name}={str(value).lower()}" for name, value in ARGS.items()),
    *(f"engine.env.{name}={value}" for name, value in CPU.items()),
)


def interpreter(options: Mapping[str, str]) -> str:
    """Return the interpreter that python= names; raise ValueError without it."""
    if not options["python"]:
        raise ValueError("python names no interpreter: scripts/vllm_env makes an environment that has vllm")
    return options["python"]
