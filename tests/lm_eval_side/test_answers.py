"""Where an answer ends, and which text a conversation becomes, where a checkpoint is not as ours are.

Needs the extra `lm-eval`, which is part of `dev`.
"""

import json
import os
import shutil

import pytest
from test_model import PAIR, needs_lm_eval

from sdbench import embedded
from sdbench.config import ConfigError

pytestmark = needs_lm_eval
PAD, END = 0, 2  # of llama-tiny; it never writes the first, and ends its texts by the second, whose text is </s>
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '\\n' }}{% endfor %}"
)


def ending_with(ids, folder):
    """The target of llama-tiny, whose texts end with these ids."""
    target = shutil.copytree(PAIR / "target", folder / "-".join(map(str, ids)))
    path = target / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": ids}))
    return target


def model_of(target):
    from sdbench.lm_eval.model import SpeculativeLM

    return SpeculativeLM(target=str(target), draft=str(PAIR / "draft"), verifier="exact", num_draft=3, device="cpu")


def answer_of(model, **options):
    """The answer to a word problem, and how many tokens it has."""
    from lm_eval.api.instance import Instance

    (row,) = embedded.rows("gsm8k-tiny", "test", n=1)
    arguments = f"Question: {row['question']}\nAnswer:", {"max_gen_toks": 120, **options}
    (text,) = model.generate_until([Instance("generate_until", {}, arguments, 0, ("task", 0, 1))])
    return text, model.counts["task"][-1]["tokens"]


def test_ids_that_the_pair_does_not_share_end_no_text(tmp_path):
    """They were refused while answers were decoded, as stop_ids of `generate` are."""
    usual = answer_of(model_of(PAIR / "target"), until=["@"])
    assert usual[1] < 120
    assert answer_of(model_of(ending_with([END, 99_999], tmp_path)), until=["@"]) == usual


def test_a_stop_string_that_is_a_special_token_ends_an_answer_where_it_is_drawn(tmp_path):
    model = model_of(ending_with([PAD], tmp_path))
    usual = answer_of(model_of(PAIR / "target"), until=["@"])
    assert answer_of(model, until=["</s>"]) == usual
    assert answer_of(model, until=["@"])[1] > usual[1], "nothing else ends it there"


def test_log_likelihoods_have_the_context_of_the_target_and_answers_that_of_the_pair(tmp_path):
    """Texts were cut to the length of the draft, which has no part in log-likelihoods."""
    from lm_eval.api.instance import Instance

    from sdbench.lm_eval.model import SpeculativeLM

    folder = shutil.copytree(PAIR / "draft", tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    common = {"target": str(PAIR / "target"), "verifier": "exact", "num_draft": 3, "device": "cpu"}
    short, usual = (SpeculativeLM(draft=str(draft), **common) for draft in (folder, PAIR / "draft"))
    text = " ".join(row["question"] for row in embedded.rows("gsm8k-tiny", "test", n=3))
    ids = usual.tok_encode(text)
    assert 80 < len(ids) < usual.max_length == short.max_length
    whole = Instance("loglikelihood_rolling", {}, (text,), 0, ("task", 0, 1))
    scores = [
        (model._loglikelihood_tokens([(None, ids[:-9], ids[-9:])]), model.loglikelihood_rolling([whole]))
        for model in (short, usual)
    ]
    assert scores[0] == scores[1]
    assert answer_of(short, until=["@"], max_gen_toks=20)[1] <= 20
    with pytest.raises(
        ConfigError, match=r"^max_gen_toks=40 of task leaves no room for a prompt: the pair takes 40 tokens$"
    ):
        answer_of(short, until=["@"], max_gen_toks=40)


def test_an_answer_lacks_the_first_blank_that_the_tokenizer_drops_as_in_hf(tmp_path):
    """The harness decodes an answer by itself; a run of sdbench keeps the blank."""
    target = shutil.copytree(PAIR / "target", tmp_path / "target")
    path = target / "tokenizer.json"
    tree = json.loads(path.read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    path.write_text(json.dumps({**tree, "decoder": {"type": "Sequence", "decoders": [tree["decoder"], strip]}}))
    (usual, _), model = answer_of(model_of(PAIR / "target"), until=["@"]), model_of(target)
    assert usual.startswith(" ")
    assert answer_of(model, until=["@"])[0] == usual.removeprefix(" ")
    assert model.pair_info.text(model.tok_encode(usual, add_special_tokens=False)) == usual


@pytest.mark.slow
def test_a_system_turn_that_the_template_refuses_is_left_out_as_by_hf(tmp_path, capsys):
    target = shutil.copytree(PAIR / "target", tmp_path / "target")
    (target / "chat_template.jinja").write_text(NO_SYSTEM)
    os.environ.setdefault("HF_HOME", str(tmp_path / "home"))
    from lm_eval.models.huggingface import HFLM

    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    ours, theirs = model_of(target), HFLM(pretrained=str(target), device="cpu")
    assert ours.apply_chat_template(turns) == theirs.apply_chat_template(turns) == "user: Hello.\n"
    assert "takes no system turn (System role not supported): it is left out" in capsys.readouterr().err
    ours.tokenizer.chat_template = "{{ raise_exception('No conversations') }}"
    with pytest.raises(ConfigError, match=r"refuses a prompt \(No conversations\): remove --apply_chat_template"):
        ours.apply_chat_template(turns)
