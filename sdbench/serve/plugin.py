"""Check an interpreter's vLLM. `python -m sdbench.serve.plugin --check PYTHON` reports whether our plug-in supports it.

The exit code is 0 if it does. It is 2 if it does not, with the differences, or if vLLM, the plug-in or sdbench (whose rules the
plug-in runs) is not installed.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from sdbench.config import ConfigError, show
from sdbench.serve.command import look

USAGE = "usage: python -m sdbench.serve.plugin --check PYTHON"
CHECK_S = 600  # importing vLLM takes long


# Runs in vLLM's interpreter, without a model: each of five positions must get the number of its request.
EXPAND = """
import torch
from vllm.platforms import current_platform
import vllm.v1.sample.rejection_sampler as sampler
current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
numbers, ends = torch.tensor([0.3, 0.7]), torch.tensor([2, 5], dtype=torch.int32)
expanded = sampler.expand_batch_to_tokens(numbers, ends, 5)
print("is_right", torch.equal(expanded, numbers[[0, 0, 1, 1, 1]]))
"""


def draws_from_laws(python: str) -> bool:
    """Return whether the CPU build of vLLM in an interpreter samples drafted positions from the right distribution.

    That of vLLM 0.32 does not: `expand_batch_to_tokens`, which gives each drafted position the temperature, top-k and top-p
    of its request, returns uninitialised memory (vllm#55005). Greedy decoding does not call it, and our plug-in replaces it.
    """
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    cannot = f"engine.python={show(python)}: the test of vLLM's sampling of drafted tokens failed"
    try:
        done = subprocess.run(
            [python, "-c", EXPAND], capture_output=True, text=True, timeout=CHECK_S, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{cannot}: it did not end in {CHECK_S} s") from None
    answer = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("is_right ")]
    if not answer:
        why = (done.stderr.splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(f"{cannot}: {why}")
    return answer[0] == "True"


def main(argv: Sequence[str]) -> int:
    if len(argv) != 2 or argv[0] != "--check":
        print(USAGE, file=sys.stderr)
        return 2
    try:
        facts = look(argv[1], "vllm")
        advice = f"in a checkout of sdbench, {argv[1]} -m pip install --no-deps . plugins/vllm installs both"
        for module in ("sdbench", "sdbench_vllm"):
            look(argv[1], module, advice)
    except ConfigError as error:
        print(f"sdbench: {error}", file=sys.stderr)
        return 2
    print(f"vllm {facts['version']}", flush=True)
    try:
        return subprocess.run([argv[1], "-m", "sdbench_vllm"], timeout=CHECK_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"sdbench: {argv[1]} -m sdbench_vllm did not end in {CHECK_S} s", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
