"""What a model is asked: golden prompts, the subset, shots, and how a prompt that is too long is cut."""

import json
import os
import random
import re
import warnings
from inspect import isfunction

import numpy as np
import pytest
import yaml
from own import CODE, FILES, GOLDEN, TINY, load, path, protocols

import sdbench.tasks
from sdbench.config import ConfigError, config_dir
from sdbench.tasks.base import DataTask
from sdbench.tasks.prompting import LM_EVAL_SHOT_SEED, length, tail
from sdbench.types import Example, Message, Prompt

CASES = [(name, protocol, form) for name in FILES for protocol in protocols(name) for form in ("text", "chat")]
COMPLETION_PROMPTS = {
    "cnndm": "Summarize the following article:\n\n{article}\n\nSummary:",
    "xsum": "Write a concise summary of the following document:\n\nDocument: {document}\n\nSummary:",
    "gsm8k": "Question: {question}\nAnswer:",
    "humaneval": "{prompt}",
}


def shown(prompt):
    """A prompt as a file: the text itself, or turns under headings."""
    if prompt.text is not None:
        return prompt.text
    turns = "".join(f"<<{message.role}>>\n{message.content}\n" for message in prompt.messages)
    return f"{turns}<<assistant begins>>\n{prompt.prefix}"


def words(prompt):
    return len(shown(prompt).split())


@pytest.mark.parametrize(("name", "protocol", "form"), CASES)
def test_the_prompt_is_the_golden_one_to_the_letter(name, protocol, form):
    last = list(load(name, protocol=protocol, chat=form == "chat").examples())[-1]
    golden = GOLDEN / f"{name}-{protocol}-{form}.txt"
    if os.environ.get("SDBENCH_WRITE_GOLDEN"):
        golden.write_bytes(shown(last.prompt).encode())
    assert shown(last.prompt).encode() == golden.read_bytes()


@pytest.mark.parametrize("name", COMPLETION_PROMPTS)
def test_default_zero_shot_prompt_is_the_published_template(name):
    for example in load(name, shots=0).examples():
        assert example.prompt.text == COMPLETION_PROMPTS[name].format(**example.row)


def tree_of(name):
    return yaml.safe_load((config_dir() / "task" / f"{name}.yaml").read_text())


def names_with_protocols():
    """Return the tasks whose YAML offers protocols: one of two files may have just its own prompt."""
    return [name for name in sdbench.tasks.names() if "protocol" in tree_of(name)]


def test_every_yaml_makes_its_task_and_names_only_options_of_it():
    for name in names_with_protocols():
        tree, task = tree_of(name), sdbench.tasks.load(name)
        assert (task.name, task.protocol) == (name, tree["protocol"])
        assert tree["choices"]["protocol"] == list(task.PROTOCOLS)
        for protocol in task.PROTOCOLS:
            described = sdbench.tasks.load(name, protocol=protocol)
            assert described.rules.source
            assert described.max_new_tokens > 0
            assert isinstance(described.stop, tuple)


def test_diversed_is_offered_by_every_task_and_llama_where_meta_has_one():
    for name in names_with_protocols():
        offered = sdbench.tasks.load(name).PROTOCOLS
        assert ("diversed" in offered) == (name != "long-tiny"), "which is no data set's toy version"
        assert ("llama" in offered) == any(word in name for word in ("gsm8k", "humaneval", "mbpp"))


@pytest.mark.parametrize("name", TINY)
def test_tiny_tasks_go_through_the_classes_of_the_real_ones(name):
    real = sdbench.tasks.load(name.removesuffix("-tiny"))
    tiny = sdbench.tasks.load(name, n=3)
    examples = list(tiny.examples())
    assert isinstance(tiny, type(real))
    own = {name for name, value in vars(type(tiny)).items() if isfunction(value) and not name.startswith("__")}
    assert type(tiny) is type(real) or own == {"measure"}, "but for a score beside the real one's"
    assert len(examples) == 3
    assert tiny.shots == 0
    assert all(example.prompt.text for example in examples)


def test_ids_are_the_data_sets_own_or_row_numbers():
    assert [e.id for e in load("gsm8k").examples()] == list("0123456")
    assert [e.id for e in load("cnndm").examples()] == ["a1", "b2"]
    assert [e.id for e in load("mbpp").examples()] == ["2", "3", "4", "11", "12"]
    assert [e.id for e in load("humaneval").examples()] == ["Own/0", "Own/1", "Own/2"]


def test_subset_is_that_of_datasets_shuffle_and_grows_at_its_end():
    order = [str(i) for i in np.random.default_rng(42).permutation(7)]
    assert [e.id for e in load("gsm8k", n=3, seed=42).examples()] == order[:3]
    assert [e.id for e in load("gsm8k", n=5, seed=42).examples()] == order[:5]
    assert [e.id for e in load("gsm8k", n=3, seed=None).examples()] == ["0", "1", "2"]


def test_too_large_an_n_takes_all_and_says_so():
    with pytest.warns(UserWarning, match="7 rows, fewer than n=9"):
        assert len(list(load("gsm8k", n=9).examples())) == 7


def test_shots_never_show_the_asked_row():
    for example in load("gsm8k", shots=6).examples():
        assert example.prompt.text.count(example.row["question"]) == 1
        assert example.prompt.text.count("####") == 6


def test_shots_of_a_row_do_not_depend_on_the_subset():
    whole = {example.id: example.prompt for example in load("gsm8k").examples()}
    for example in load("gsm8k", n=3).examples():
        assert example.prompt == whole[example.id]


def test_shots_come_from_the_file_that_is_named():
    task = sdbench.tasks.load("gsm8k", data=path("gsm8k"), shots_data=str(path("gsm8k")), shots=6)
    for example in task.examples():
        assert example.prompt.text.count("####") == 6
        assert example.prompt.text.count(example.row["question"]) == 1


ANSWERS = {"gsm8k": "answer", "mbpp": "code", "wmt": "translation", "cnndm": "highlights"}


@pytest.mark.parametrize("kind", ["within", "beside"])
@pytest.mark.parametrize("name", ANSWERS)
def test_no_copy_of_the_question_is_among_its_shots(name, kind, tmp_path):
    """Within the data, rows that occur twice; beside it, a file of shots with the same rows, of which another column differs."""
    rows = [json.loads(line) for line in path(name).read_text(encoding="utf-8").splitlines()]
    ids = [key for key in ("task_id", "id") if key in rows[0]]
    copies = [{**row, **{key: f"{row[key]}0" for key in ids}} for row in rows]
    data, beside = tmp_path / "rows.jsonl", tmp_path / "shots.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in (rows + copies if kind == "within" else rows)))
    beside.write_text("".join(json.dumps({**row, "more": 1}) + "\n" for row in copies))
    options = {"shots_data": str(beside)} if kind == "beside" else {}
    for example in sdbench.tasks.load(name, data=data, shots=len(rows) - 1, **options).examples():
        answer = example.row[ANSWERS[name]]
        answer = answer["en"] if isinstance(answer, dict) else answer
        assert answer not in example.prompt.text


def test_shots_are_drawn_as_before_where_no_copy_was():
    """The golden prompts have their shots from the data; these have them from a file, of which one row is the question."""
    rows = load("gsm8k").rows
    apart = sdbench.tasks.load("gsm8k", data=path("gsm8k"), shots_data=str(path("gsm8k")), shots=3)
    rng = random.Random(LM_EVAL_SHOT_SEED)
    for key in rows:
        drawn = [str(index) for index in rng.sample(range(len(rows)), 3)]
        questions = [shot["question"] for shot in apart.shots_of(key)]
        kept = [rows[other]["question"] for other in drawn if other != key]
        assert questions[: len(kept)] == kept
        assert len(set(questions) - {rows[key]["question"]}) == 3


@pytest.mark.parametrize("name", ["cnndm", "humaneval", "long-tiny"])
def test_a_file_of_shots_that_no_prompt_shows_is_refused(name):
    with pytest.raises(
        ConfigError, match=rf"^task.shots_data=\S+ has no effect: prompts of {name} have no shots here; leave"
    ):
        sdbench.tasks.load(name, shots_data=str(path("cnndm")))
    assert sdbench.tasks.load(name, shots_data=str(path("cnndm")), shots=1).shots == 1
    if name != "long-tiny":  # which is padded with sentences, not with shots
        assert sdbench.tasks.load(name, shots_data=str(path("cnndm")), pad_to=500).shots == 0


@pytest.mark.parametrize("protocol", ["cot", "llama"])
def test_a_file_of_shots_beside_a_protocol_with_fixed_shots_is_refused(protocol):
    with pytest.raises(
        ConfigError, match=f"has no effect: the shots of gsm8k are part of protocol {protocol}; leave it"
    ):
        load("gsm8k", protocol=protocol, shots_data=str(path("gsm8k")))


def test_mbpp_shows_the_authors_shots_2_3_4():
    asked = list(load("mbpp").examples())[-1]
    assert [f"def {name}(" in asked.prompt.text for name in ("add", "root", "turned", "vowels")] == [True] * 3 + [False]


def test_mbpp_of_diversed_scores_the_validation_split():
    assert sdbench.tasks.load("mbpp", protocol="diversed").split == "validation"
    assert sdbench.tasks.load("mbpp").split == "test"
    assert sdbench.tasks.load("mbpp", protocol="diversed", split="test").split == "test"


def test_shots_are_turns_in_the_chat_form():
    for protocol in ("lm-eval", "llama"):
        prompt = next(iter(load("gsm8k", protocol=protocol, chat=True).examples())).prompt
        count = load("gsm8k", protocol=protocol).shots
        assert prompt.text is None
        assert [message.role for message in prompt.messages] == ["user", "assistant"] * count + ["user"]


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("name", [name for name in FILES if name not in ("wmt", "wmt16")])
def test_a_prompt_over_the_limit_is_cut_and_marked_and_never_fails(name, form):
    task = load(name, chat=form == "chat")
    for example in task.examples():
        full = words(example.prompt)
        assert task.fit(example, words, full) is example
        for limit in range(full - 1, 3, -1):
            cut = task.fit(example, words, limit)
            assert cut.is_prompt_cut
            assert words(cut.prompt) <= max(limit, words(task.fit(example, words, 1).prompt))
            assert cut.row is example.row


def test_shots_go_first_then_words_of_the_article_and_the_template_stays():
    task = load("gsm8k")
    example = next(iter(task.examples()))
    cut = task.fit(example, words, words(example.prompt) - 1)
    assert cut.prompt.text.count("####") == 4
    assert example.prompt.text.endswith(cut.prompt.text)
    task = load("cnndm")
    example = next(iter(task.examples()))
    cut = task.fit(example, words, 12)
    assert cut.prompt.text == "Summarize the following article:\n\n(Harbour) A grey cat that left home\n\nSummary:"


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("protocol", protocols("humaneval"))
def test_of_a_long_function_the_first_words_go_and_the_template_stays(protocol, form):
    """Of bigcode and evalplus, which show the prompt without outer whitespace, no word of it went: the template did."""
    task = load("humaneval", protocol=protocol, chat=form == "chat", shots=0)
    for example in task.examples():
        full = shown(example.prompt)
        given = example.row["prompt"].strip()
        before, after = full.partition(given)[0].rstrip(), full.rpartition(given)[2].strip()
        for count in (1, 3, len(given.split()) - 1):
            cut = task.fit(example, words, words(example.prompt) - count * full.count(given))
            assert cut.is_prompt_cut
            assert shown(cut.prompt).startswith(before)
            assert shown(cut.prompt).strip().endswith(after)
            left = shown(cut.prompt).strip().removeprefix(before.lstrip()).removesuffix(after).split()
            assert left[-(len(given.split()) - count) :] == given.split()[count:]


def test_protocols_own_prompt_limit_is_kept():
    task = load("xsum", protocol="diversed")
    long = {**next(iter(task.rows.values())), "document": "word " * 3000}
    example = Example("x", long, task.rules.render(task.fields(long), [], is_chat=False))
    assert words(task.fit(example, words, 100_000).prompt) <= 2048


def test_an_instruction_stands_once_before_all_shots():
    for is_chat in (False, True):
        prompt = next(iter(load("wmt", protocol="lighteval", shots=2, chat=is_chat).examples())).prompt
        text = shown(prompt).removeprefix("<<user>>\n")
        assert text.startswith("Translate German to English, do not explain, only output the translation.\n\nGerman")
        assert (text.count("Translate"), text.count("German phrase")) == (1, 3)


def test_evalplus_stops_at_other_strings_in_its_chat_form():
    stops = {chat: load("humaneval", protocol="evalplus", chat=chat).stop for chat in (True, False)}
    assert set(stops[True]) - set(stops[False]) == {"\n```\n"}
    assert set(stops[False]) - set(stops[True]) == {"\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "}
    assert load("humaneval", protocol="evalplus").stop == stops[True]


def test_stop_strings_and_lengths_can_be_changed():
    task = load("gsm8k", stop=["END"], max_new_tokens=7)
    assert (task.stop, task.max_new_tokens) == (("END",), 7)
    assert task.until_stop("a END b END") == "a "


def test_describe_holds_everything_that_decides_a_score():
    for name in FILES:
        if name in CODE:
            continue
        described = load(name).describe()
        for key in ("protocol", "version", "source", "stop", "max_new_tokens", "prompt_cut", "signatures", "shots"):
            assert described[key] is not None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"protocol": "lama"}, "gsm8k has no protocol lama .did you mean llama"),
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"shots": -1}, "shots must be a whole number of at least 0"),
        ({"version": 0}, "gsm8k version 0 is not the version of this sdbench, 3"),
        ({"temprature": 1}, "temprature is not an option of task gsm8k"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"chat": "yes"}, "chat must be true, false or null, got yes"),
        ({"stop": [""]}, "stop must be a text or a list of texts that are not empty"),
        ({"stop": 5}, "stop must be a text or a list of texts that are not empty, got 5"),
        ({"extra_metrics": [1]}, "extra_metrics must be a text or a list of texts"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        load("gsm8k", **options)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("cnndm", {"truncate_words": 0}, "truncate_words must be a whole number of at least 1, got 0"),
        ("mbpp", {"timeout_s": "3 s"}, "timeout_s must be a number above 0, got 3 s"),
        ("mbpp", {"workers": 0}, "workers must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_options_of_one_task_too(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        load(name, **options)


def test_more_shots_than_rows_is_refused():
    with pytest.raises(ValueError, match="shots must be at most 6"):
        list(load("gsm8k", shots=7).examples())


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match=r"no task gsm9k .did you mean gsm8k"):
        sdbench.tasks.load("gsm9k")


def test_a_row_without_a_field_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "?", "answer": "#### 1"}\n{"question": "?"}\n')
    with pytest.raises(ValueError, match=r"row 1 of .* has no field 'answer'"):
        list(sdbench.tasks.load("gsm8k", data=tmp_path / "rows.jsonl").examples())


@pytest.mark.parametrize(
    ("name", "row", "sentence"),
    [
        ("gsm8k", {"question": "?", "answer": None}, "row 0 of {} has no field 'answer': gsm8k needs question, answer"),
        ("xsum", {"document": None, "summary": "A cat."}, "row 0 of {} has no field 'document'"),
        ("wmt", {"translation": {"de": "ja", "en": None}}, "row 0 of {} has no translation with de and en"),
        (
            "mbpp",
            {"task_id": 1, "code": "", "test_list": [], "text": None},
            "row 0 of {} has neither 'text' nor 'prompt'",
        ),
        (
            "mbpp",
            {"task_id": 1, "code": "", "test_list": [], "text": "?"},
            "row 0 of {} has no list of asserts in 'test_list'",
        ),
        (
            "mbpp",
            {"task_id": 1, "code": "", "test_list": "['assert 1']", "text": "?"},
            "has no list of asserts in 'test_list'",
        ),
        ("cnndm", {"article": ["A cat.", "It sat."], "highlights": "A cat."}, "has no text in 'article', but a list"),
        ("xsum", {"document": "A cat.", "summary": 7}, "has no text in 'summary', but a int"),
    ],
)
@pytest.mark.parametrize("option", ["data", "shots_data"])
def test_a_null_or_another_type_is_no_value_and_the_file_of_the_row_is_named(name, row, sentence, option, tmp_path):
    """A null was shown as the word None; of a file of shots, what it lacked was a KeyError, or ascribed to the data."""
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(row)}\n")
    task = sdbench.tasks.load(name, **{"data": path(name), option: str(file)}, shots=1, n=1)
    with pytest.raises(ValueError, match=re.escape(sentence.format(file))):
        list(task.examples())


def test_a_row_of_mbpp_may_have_a_null_beside_its_text(tmp_path):
    """As in a table of both configurations of the data."""
    row = {"task_id": 11, "text": None, "prompt": "Double x.", "code": "x", "test_list": ["assert x"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (example,) = sdbench.tasks.load("mbpp", data=tmp_path / "rows.jsonl", shots=0).examples()
    assert "Double x." in example.prompt.text


def test_loading_a_local_file_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(load("wmt"), DataTask)


def test_a_prompt_that_is_too_long_keeps_the_answer_that_is_begun():
    """The turn with the question loses words, not the beginning of the answer after it."""
    turns = [Message("user", "shot"), Message("assistant", "its answer"), Message("user", "a long question")]
    begun = Message("assistant", "```python")
    prompt = Prompt(messages=(*turns, begun))
    assert length(prompt) == len("a long question")
    assert tail(prompt, 8).messages == (Message("user", "question"), begun)
    assert tail(Prompt(messages=tuple(turns)), 8).messages == (Message("user", "question"),)
    task = load("mbpp", protocol="llama")
    example = next(iter(task.examples()))
    assert example.prompt.messages[-1] == Message("assistant", "\n```python\n")
    assert example.prompt.prefix == ""
