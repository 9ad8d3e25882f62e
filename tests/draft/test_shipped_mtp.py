"""MTP weights that ship with a checkpoint draft: tiny checkpoints in the published naming, against transformers' own module."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

import sdbench
from sdbench.draft.mtp import MTP
from sdbench.lm.model import LM
from sdbench.lm.mtp_weights import mtp_names
from sdbench.types import DraftSetup
from sdbench.verify import Ensemble
from tests.draft import proofs
from tests.engine.models import PROMPTS

LAYERS, WIDTH = 2, 32
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_attention_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
KINDS: dict[str, dict[str, Any]] = {
    "glm4_moe": {"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}


def write_checkpoint(folder: Path, kind: str) -> Any:
    """Write a checkpoint whose last layer is an MTP module, as published: model.layers.N.enorm and so on; return its target."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, num_hidden_layers=LAYERS + 1, num_mtp_layers=0, **SIZES, **KINDS[kind])
    AutoModelForCausalLM.from_config(config, dtype=torch.float64).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    name = f"model.layers.{LAYERS}."
    assert f"{name}mlp.experts.0.gate_proj.weight" in weights, "experts by number, as published"
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        weights[f"{name}{norm}.weight"] = 1 + 0.1 * torch.randn(WIDTH).double()
    weights[f"{name}eh_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH).double() / WIDTH**0.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tree = json.loads((folder / "config.json").read_text())
    tree.pop("num_mtp_layers", None)
    tree |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(tree))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_module_of_a_checkpoint_drafts_as_in_transformers(kind, tmp_path):
    """q of every drafted token, recomputed by MtpModel, which sees the states from the first and the tokens from the second on."""
    target = write_checkpoint(tmp_path, kind)
    with mtp_names(LM(target)):
        module = MtpModel.from_pretrained(target).double()
    warp = sdbench.Engine(target).warp(1.0)
    before, num_checked = {name: x.clone() for name, x in target.state_dict().items()}, 0
    decoded = proofs.decode(target, "mtp", {"head": "checkpoint"}, [Ensemble(w=0.5)], batch_size=3, max_new_tokens=12)
    for g in decoded:
        text, length, drafted = [*PROMPTS[g.prompt], *g.tokens], len(PROMPTS[g.prompt]), 0
        for width, accepted in zip(g.drafted, g.accepted, strict=True):
            drafts = list(g.draft_tokens[drafted : drafted + width])
            if length > 1 and drafts:
                states, ids = (
                    target(torch.tensor([text[: length - 1]]), output_hidden_states=True).hidden_states[-1],
                    text[:length],
                )
                for token, q in zip(drafts, g.q[drafted : drafted + width], strict=True):
                    position = torch.arange(1, len(ids))[None]
                    after = module.forward_layer(0, states, position, None, input_ids=torch.tensor([ids[1:]]))
                    law = warp.law(warp.logits(target.lm_head(after[0, -1])))
                    assert q == pytest.approx(float(law[token]), abs=1e-6)  # norms and routers are in float32 there
                    states, ids, num_checked = torch.cat((states, after[:, -1:]), 1), [*ids, token], num_checked + 1
            length, drafted = length + accepted + 1, drafted + width
    assert num_checked > 20
    assert all(torch.equal(x, target.state_dict()[name]) for name, x in before.items())


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_texts_are_those_of_the_target(kind, tmp_path):
    target = write_checkpoint(tmp_path, kind)
    proofs.assert_greedy_is_the_target(target, "mtp", [({"head": "checkpoint"}, 3, "off")], least=0)


def test_a_target_without_such_weights_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"names no MTP weights \(num_mtp_layers\): train them with python -m sdbench.train mtp"
    ):
        MTP.check(DraftSetup(None, None, target_config=SimpleNamespace(num_mtp_layers=0)), "checkpoint")
    target = write_checkpoint(tmp_path, "glm4_moe")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {n: x for n, x in weights.items() if "eh_proj" not in n}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    engine = sdbench.Engine(target)
    with pytest.raises(ValueError, match="the MTP weights of a checkpoint of type 'glm4_moe' cannot be read: "):
        engine.drafter("mtp", engine.warp(0.0), {"head": "checkpoint"})
