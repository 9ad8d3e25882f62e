"""Real vocabularies and long prompts in little memory: the logits of a prompt never exist, nor full heads of its keys."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 8 * 2**30
CALL = """
import sys
import torch
import sdbench
from sdbench.engines.latency import peak_memory
from sdbench.verify import Ensemble, Exact
from tests.engine.models import tiny

torch.set_num_threads(1)
family, vocab = sys.argv[1], int(sys.argv[2])
target, draft = (
    tiny(family, vocab=vocab, seed=seed, max_position_embeddings=4096, hidden_size=64, num_attention_heads=8).float()
    for seed in (0, 1)
)
prompts = torch.randint(5, vocab, (4, 2_000), generator=torch.Generator().manual_seed(0)).tolist()
rules = [Exact(), Ensemble(w=0.5)]
decoded = sdbench.generate(target, draft, prompts, rules, max_new_tokens=8, batch_size=8, stop_ids=(), capture=sys.argv[3])
assert [len(generation.tokens) for generation in decoded] == [8] * 8
print(int(peak_memory()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "vocab", "capture"),
    [("llama", 128_256, "off"), ("qwen2", 151_936, "off"), ("gemma3", 262_208, "off"), ("gemma3", 262_208, "trace")],
)
def test_a_batch_of_eight_long_prompts_over_a_real_vocabulary_fits(family, vocab, capture):
    """All logits of one prompt of 2,000 tokens would be 2 GB over the largest, those of the batch 17 GB."""
    command = [sys.executable, "-c", CALL, family, str(vocab), capture]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) <= LIMIT_BYTES
