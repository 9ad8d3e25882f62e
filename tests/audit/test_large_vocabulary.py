"""The audit of a large vocabulary stays small: no table of sequences, cells pooled."""

import subprocess
import sys

import pytest

WHOLE = """
import torch, transformers
from sdbench.audit.command import AuditOptions
from sdbench.audit.native import audit
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.engines.latency import peak_memory
from sdbench.verify import Ensemble, Exact, Typical

torch.set_num_threads(1)
torch.manual_seed(0)
sizes = dict(vocab_size=128_256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, eos_token_id=None, tie_word_embeddings=True)
models = [transformers.LlamaForCausalLM(config).eval() for _ in range(2)]
with torch.no_grad():
    for model in models:
        model.lm_head.weight *= 200
settings = [AuditedRule(str(n), rule) for n, rule in enumerate((Exact(), Ensemble(0.5), Typical(0.3, 0.1)))]
subject = Subject(settings, *models, [[5, 6, 7], [9, 10]], num_draft=3, budget=5, batch_size=16)
report = audit(subject, AuditOptions(tv=1, samples=50))
assert {row.claim for row in report.rows} >= {"prefixes", "pit", "acceptance", "q", "recorded q", "greedy"}
assert report.verdict != "violated"
print(int(peak_memory()))
"""


@pytest.mark.long
def test_an_audit_of_128_256_ids_takes_less_than_1_5_gib():
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert int(done.stdout) < 1.5 * 2**30
