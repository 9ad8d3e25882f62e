"""Where an answer ends, and which text a conversation becomes, where a checkpoint is not as ours are.

Needs the extra `lm-eval`, which is part of `dev`.
"""

import json
import os
import shutil
from unittest.mock import Mock

import pytest
from test_model import PAIR, needs_lm_eval

from sdbench import embedded
from sdbench.config import ConfigError
from sdbench.engine import generate

pytestmark = needs_lm_eval
PAD, END = 0, 2  # of llama-tiny; it never writes the first, and ends its texts by the second, whose text is </s>
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '\\n' }}{% endfor %}"
)


def target_with(folder, **options):
    """The target of llama-tiny with other options in its generation_config.json."""
    target = shutil.copytree(PAIR / "target", folder / "target")
    path = target / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    return target


def shorten(role, folder):
    """Copy a model of llama-tiny, to take 40 tokens."""
    model = shutil.copytree(PAIR / role, folder / role)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    return model


def model_of(target, **options):
    from sdbench.lm_eval.model import SpeculativeLM

    usual = {"draft": str(PAIR / "draft"), "verifier": "exact", "num_draft": 3, "device": "cpu"}
    return SpeculativeLM(target=str(target), **{**usual, **options})


def request_of(prompt, task="task", **options):
    from lm_eval.api.instance import Instance

    arguments = prompt, {"until": ["@"], "max_gen_toks": 20, **options}
    return Instance("generate_until", {}, arguments, 0, (task, 0, 1))


@pytest.fixture
def warnings_of(monkeypatch, capsys):
    """The warnings since the last call that have some words, also those that were printed before this test."""
    monkeypatch.setattr("sdbench.prepare.progress._printed", set())
    return lambda words: [line for line in capsys.readouterr().err.splitlines() if words in line]


def answer_of(model, **options):
    """The answer to a word problem, and how many tokens it has."""
    (row,) = embedded.rows("gsm8k-tiny", "test", n=1)
    prompt = f"Question: {row['question']}\nAnswer:"
    (text,) = model.generate_until([request_of(prompt, **{"max_gen_toks": 120, **options})])
    return text, model.counts["task"][-1]["tokens"]


def test_ids_that_the_pair_does_not_share_end_no_text(tmp_path):
    """They were refused while answers were decoded, as stop_ids of `generate` are."""
    usual = answer_of(model_of(PAIR / "target"), until=["@"])
    assert usual[1] < 120
    assert answer_of(model_of(target_with(tmp_path, eos_token_id=[END, 99_999])), until=["@"]) == usual


def test_a_stop_string_that_is_a_special_token_ends_an_answer_where_it_is_drawn(tmp_path):
    model = model_of(target_with(tmp_path, eos_token_id=[PAD]))
    model.tokenizer.eos_token = "<pad>"
    usual = answer_of(model_of(PAIR / "target"), until=["@"])
    assert answer_of(model, until=["</s>"]) == usual
    assert answer_of(model, until=["@"])[1] > usual[1], "nothing else ends it there"


def test_an_answer_ends_at_the_end_of_text_token_of_the_tokenizer(tmp_path):
    """A fine-tuned model may end its turns with a token that its generation_config.json does not have. `hf` stops there, too."""
    usual = answer_of(model_of(PAIR / "target"), until=["@"])
    assert answer_of(model_of(target_with(tmp_path, eos_token_id=[PAD])), until=["@"]) == usual


def test_log_likelihoods_have_the_context_of_the_target_and_answers_that_of_the_pair(tmp_path):
    """Texts were cut to the length of the draft, which has no part in log-likelihoods."""
    from lm_eval.api.instance import Instance

    drafts = shorten("draft", tmp_path), PAIR / "draft"
    short, usual = (model_of(PAIR / "target", draft=str(draft)) for draft in drafts)
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


def test_prompts_that_are_cut_are_one_warning_and_counted(tmp_path, warnings_of):
    """They were cut silently."""
    model = model_of(PAIR / "target", draft=str(shorten("draft", tmp_path)))
    model.generate_until([request_of("Question: 1 + 1?"), request_of("Question: " + 30 * "1 + " + "1?")])
    (warning,) = warnings_of("too long")
    assert warning == (
        "sdbench: warning: 1 of 2 prompts of task were too long for 20 tokens and lost their beginning: the pair takes 40 tokens, "
        "of which max_gen_toks=20 are for the answer"
    )
    assert model.get_model_info()["sdbench"]["tasks"]["task"]["prompts_cut"] == 1


def test_texts_that_are_cut_before_their_log_likelihood_are_one_warning(tmp_path, warnings_of):
    target = shorten("target", tmp_path)
    model = model_of(target)
    first, second = model._loglikelihood_tokens([(("a", "b"), 40 * [5], [6]), (("a", "c"), [7] + 40 * [5], [6])])
    assert first == pytest.approx(second)
    (warning,) = warnings_of("too long")
    assert warning == (
        f"sdbench: warning: 1 of 2 texts whose log-likelihood is computed were too long for the 40 tokens of {target} and lost "
        "their beginning"
    )


def test_a_continuation_without_tokens_or_with_too_many_is_refused(tmp_path):
    """The first counted as certain, and the second ended with a RuntimeError."""
    model = model_of(shorten("target", tmp_path))
    for ids, count in (([], "no tokens"), (41 * [5], r"41 tokens, and \S+ takes 40")):
        with pytest.raises(
            ConfigError,
            match=rf"^the continuation '' after 'a' has {count}, so it has no log-likelihood: change the text",
        ):
            model._loglikelihood_tokens([(("a", ""), [5], ids)])
    assert len(model._loglikelihood_tokens([(("a", "b"), [5], 40 * [5])])) == 1


def test_a_continuation_without_tokens_after_no_context_is_refused():
    """The harness's class ended with an IndexError."""
    from lm_eval.api.instance import Instance

    requests = [Instance("loglikelihood", {}, ("", continuation), 0, ("task", 0, 1)) for continuation in ("12", "")]
    model = model_of(PAIR / "target")
    assert len(model.loglikelihood(requests[:1])) == 1
    with pytest.raises(ConfigError, match=r"^the continuation '' after '' has no tokens, so it has no log-likelihood"):
        model.loglikelihood(requests)


def test_a_context_of_spaces_alone_counts_as_none():
    """They move to the continuation. Where the tokenizer then writes no first token, a RuntimeError ended the evaluation."""
    model = model_of(PAIR / "target")
    begun, empty = (model._loglikelihood_tokens([((" ", "12"), context, [5, 6])]) for context in ([0], []))
    assert empty == model._loglikelihood_tokens([((" ", "12"), [model.prefix_token_id], [5, 6])])
    assert begun != empty


@pytest.mark.parametrize(
    ("rule", "options", "sentence"),
    [
        ({"verifier": "exact"}, {"num_beams": 10}, "num_beams=10 of b is not supported"),
        ({"verifier": "mentored", "verifier.divergence": 0.2}, {"do_sample": False}, "verifier=mentored"),
    ],
)
def test_options_of_every_task_are_checked_before_any_answer_is_decoded(rule, options, sentence, monkeypatch):
    """Those of a later task were refused after the answers of the earlier ones had been decoded."""
    model, spy = model_of(PAIR / "target", **rule), Mock(wraps=generate)
    monkeypatch.setattr("sdbench.lm_eval.model.generate", spy)
    usual = {"do_sample": True, "temperature": 1.0}
    requests = [request_of("1 + 1?", "a", **usual), request_of("1 + 1?", "b", **{**usual, **options})]
    with pytest.raises(ConfigError, match=rf"^{sentence}"):
        model.generate_until(requests)
    spy.assert_not_called()
    assert len(model.generate_until(requests[:1])) == spy.call_count == 1


def test_prompts_are_kept_by_chat_template_and_answers_by_tokens(tmp_path, warnings_of):
    """Prompts that `--cache_requests` had kept were those of another chat template."""
    target = shutil.copytree(PAIR / "target", tmp_path / "target")
    (target / "chat_template.jinja").write_text(NO_SYSTEM)
    kept = {"keep": str(tmp_path / "kept.db")}
    usual, optional = (
        model_of(PAIR / "target", **kept, **each) for each in ({}, {"model.chat_options.bos_token": "x"})
    )
    models = usual, optional, model_of(target)
    assert len({model.tokenizer_name for model in models}) == 3
    assert len({model.pair_info.tokenizer_key for model in models}) == 1
    assert answer_of(usual) == answer_of(optional)
    assert len(warnings_of("1 of 1 answers of task were read from")) == 1
    usual.tokenizer.chat_template = {"default": "a", "tool_use": "a"}
    names = [(usual.chat_template(name), usual.tokenizer_name)[1] for name in (True, "tool_use")]
    assert names[0] != names[1]


def test_several_chat_templates_without_a_default_need_a_name(tmp_path):
    model = model_of(PAIR / "target")
    model.tokenizer.chat_template = {"rag": "a", "tool_use": "b"}
    sentence = (
        r"has several chat templates and no default: name one of them \(rag, tool_use\), as --apply_chat_template rag$"
    )
    with pytest.raises(ConfigError, match=sentence):
        model.chat_template(True)
    assert model.chat_template("tool_use") == "b"


def test_a_template_that_changes_the_begun_answer_is_refused():
    model = model_of(PAIR / "target")
    model.tokenizer.chat_template = "{% for turn in messages %}{{ turn['content'] | upper }}{% endfor %}"
    turns = [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Here is"}]
    with pytest.raises(ConfigError, match=r"cannot end with the beginning of an answer \(.+\): remove --apply_chat"):
        model.apply_chat_template(turns, add_generation_prompt=False)
    assert model.apply_chat_template(turns) == "TWO?HERE IS"


def test_kept_answers_are_those_of_the_same_version_of_top_p(tmp_path, monkeypatch):
    """Version 2 keeps other tokens than version 1 where logits at the cut are equal."""
    kept = {"keep": str(tmp_path / "kept.db")}
    cut, all_ = {"do_sample": True, "temperature": 1.0, "top_p": 0.9}, {"do_sample": True, "temperature": 1.0}
    for version, num_decoded in ((None, 2), (None, 0), ("3", 1)):
        if version:
            monkeypatch.setattr("sdbench.lm_eval.model.TOP_P", {"top_p": version})
        model, spy = model_of(PAIR / "target", **kept), Mock(wraps=generate)
        monkeypatch.setattr("sdbench.lm_eval.model.generate", spy)
        for options in (cut, all_):
            answer_of(model, **options)
        assert spy.call_count == num_decoded


def test_a_file_of_use_cache_serves_answers_of_one_setting(tmp_path, monkeypatch):
    """The harness keeps answers by request only, so w=0.5 got the texts of w=0.9."""
    from lm_eval.api.model import CachingLM
    from sqlitedict import SqliteDict

    def caching_lm_of(w, name="answers"):
        return CachingLM(model_of(PAIR / "target", verifier="ensemble", w=w), str(tmp_path / f"{name}_rank0.db"))

    requests = [request_of("Question: 1 + 1?")]
    first = caching_lm_of(0.9)
    texts = first.generate_until(requests)
    first.dbdict.close()
    again, spy = caching_lm_of(0.9), Mock(wraps=generate)
    monkeypatch.setattr("sdbench.lm_eval.model.generate", spy)
    assert again.generate_until(requests) == texts
    spy.assert_not_called()
    again.dbdict.close()
    with SqliteDict(str(tmp_path / "old_rank0.db"), autocommit=True) as old:
        old["an answer of hf"] = "2"
    for w, name in ((0.5, "answers"), (0.9, "old")):
        with pytest.raises(
            ConfigError,
            match=rf"^--use_cache={tmp_path}/{name} holds answers that may be of another setting or model: give",
        ):
            caching_lm_of(w, name)


def test_what_hf_takes_from_generation_config_is_one_warning(tmp_path, warnings_of):
    """A repetition penalty of the checkpoint, which a run of sdbench never applies."""
    target = target_with(tmp_path, repetition_penalty=1.3, no_repeat_ngram_size=0)
    for folder in (PAIR / "target", target, target):
        model_of(folder)
    assert warnings_of("generation_config.json") == [
        f"sdbench: warning: the generation_config.json of {target} has repetition_penalty=1.3, which lm_eval's hf applies to "
        "answers and sdbench does not"
    ]


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
