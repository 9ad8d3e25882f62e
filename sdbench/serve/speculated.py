"""Whether the vLLM of an interpreter draws speculated tokens from laws at all: its CPU build of 0.32 does not (vllm#55005).

There `expand_batch_to_tokens`, which gives each speculated position the temperature, top-k and top-p of its request, returns memory
that nothing was written to. What is sampled behind it is garbage. Greedy decoding uses none of it, and our plug-in replaces it.
"""

from __future__ import annotations

import os
import subprocess

from sdbench.config import ConfigError, show

# In that interpreter, without a model: five positions of two requests have to get their requests' numbers.
ASK = """
import torch
from vllm.platforms import current_platform
import vllm.v1.sample.rejection_sampler as sampler
current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
numbers, ends = torch.tensor([0.3, 0.7]), torch.tensor([2, 5], dtype=torch.int32)
expanded = sampler.expand_batch_to_tokens(numbers, ends, 5)
print("is_right", torch.equal(expanded, numbers[[0, 0, 1, 1, 1]]))
"""
ASK_S = 600  # importing vLLM alone takes long


def draws_from_laws(python: str) -> bool:
    """Asks an interpreter with a CPU build of vLLM; a ConfigError where it does not answer."""
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    cannot = f"engine.python={show(python)} cannot be asked how it samples where it speculates"
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=ASK_S, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{cannot}: no answer in {ASK_S} s") from None
    answer = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("is_right ")]
    if not answer:
        why = (done.stderr.splitlines() or ["it says nothing"])[-1]
        raise ConfigError(f"{cannot}: {why}")
    return answer[0] == "True"
