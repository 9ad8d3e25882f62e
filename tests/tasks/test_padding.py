"""Prompts of a given length: task.pad_to puts solved examples of the same task before the question."""

import json

import pytest
from own import FILES, load, path, protocols

import sdbench.tasks
from sdbench.config import ConfigError

BUCKETS = (100, 250, 1000)


def num_words(prompt):
    text = prompt.text if prompt.text is not None else " ".join(turn.content for turn in prompt.messages)
    return len(text.split())


def text_of(example) -> str:
    return str(example.prompt.text)


def padded(task, limit=10**6):
    return [task.fit(example, num_words, limit) for example in task.examples()]


@pytest.mark.parametrize("wanted", BUCKETS)
def test_a_prompt_has_as_many_tokens_as_asked_but_for_an_answer_and_never_more(wanted):
    task = load("gsm8k", pad_to=wanted)
    longest = max(num_words(example.prompt) for example in load("gsm8k", shots=1).examples())
    assert all(wanted - longest <= num_words(example.prompt) <= wanted for example in padded(task) if wanted > 400)
    assert all(num_words(example.prompt) <= wanted or example.prompt == plain.prompt for example, plain in both(task))


@pytest.mark.parametrize("wanted", [2_000, 8_000, pytest.param(32_000, marks=pytest.mark.slow)])
def test_long_prompts_have_their_length_to_the_word_and_end_in_their_question(wanted):
    """Few rows pad such a prompt: they come in a circle, and the asked one is not among them."""
    (plain,) = load("gsm8k", shots=0, n=1).examples()
    (long,) = padded(load("gsm8k", shots=0, n=1, pad_to=wanted))
    assert num_words(long.prompt) == wanted
    assert text_of(long).endswith(text_of(plain).partition("\n\n")[2])
    assert text_of(long).count(long.row["question"]) == 1
    assert not long.is_prompt_cut


def both(task):
    return zip(padded(task), task.examples(), strict=True)


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("name", FILES)
def test_every_task_protocol_and_form_can_be_padded_and_still_ends_in_its_question(name, form):
    for protocol in protocols(name):
        plain = load(name, protocol=protocol, chat=form == "chat", n=1)
        (short,) = plain.examples()
        wanted = num_words(short.prompt) + 300
        (long,) = padded(load(name, protocol=protocol, chat=form == "chat", n=1, pad_to=wanted))
        assert num_words(short.prompt) < num_words(long.prompt) <= wanted
        assert (long.row, long.prompt.prefix, long.is_prompt_cut) == (short.row, short.prompt.prefix, False)
        ends = [p.text if p.text is not None else p.messages[-1].content for p in (short.prompt, long.prompt)]
        instruction = len(plain.rules.instruction.format(**plain.fields(short.row))) if form == "text" else 0
        assert ends[1].endswith(ends[0][instruction:]) or plain.rules.instruction


def test_padding_is_a_function_of_the_row_alone():
    whole = {example.id: example.prompt for example in padded(load("gsm8k", pad_to=600))}
    assert len({prompt.text for prompt in whole.values()}) == len(whole)
    for example in padded(load("gsm8k", pad_to=600, n=3)):
        assert example.prompt == whole[example.id]


def test_a_longer_prompt_ends_in_the_shorter_ones_whole_examples():
    short, long = (text_of(padded(load("gsm8k", shots=0, n=1, pad_to=wanted))[0]) for wanted in (200, 400))
    assert long.endswith(short.partition("\n\n")[2])


def test_the_asked_row_never_pads_itself():
    for example in padded(load("gsm8k", shots=0, pad_to=2000)):
        assert text_of(example).count(example.row["question"]) == 1


def test_a_protocol_with_shots_of_its_own_is_padded_with_them():
    (example,) = padded(load("gsm8k", protocol="cot", pad_to=3000, n=1))
    assert "####" not in text_of(example)
    assert text_of(example).count("The answer is") > 8


def test_without_pad_to_prompts_and_descriptions_are_as_before():
    task = load("gsm8k")
    assert all(example is plain or example == plain for example, plain in both(task))
    assert "padding" not in task.describe()


def test_the_description_knows_the_length_and_what_pads():
    described = [load("gsm8k", pad_to=wanted).describe()["padding"] for wanted in (300, 400)]
    assert [each["to"] for each in described] == [300, 400]
    assert described[0]["with"] == described[1]["with"]
    other = load("gsm8k", pad_to=300, shots_data=str(path("mbpp").with_name("gsm8k.jsonl"))).describe()["padding"]
    assert other["with"] == described[0]["with"], "no row pads itself there either"


def test_padding_needs_an_example_beside_the_asked_one(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    task = sdbench.tasks.load("gsm8k", data=tmp_path / "rows.jsonl", shots=0, pad_to=50)
    with pytest.raises(ConfigError, match=r"task.pad_to=50 needs solved examples other than the question"):
        padded(task)


def test_copies_of_the_question_do_not_pad_it(tmp_path):
    """Rows without ids were told apart by their number, so that a copy showed the answer; with copies only nothing would end."""
    rows = [{"question": f"1 + {number}?", "answer": f"#### {1 + number}"} for number in (1, 2, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"data": tmp_path / "rows.jsonl", "shots": 0, "pad_to": 50}
    for example in padded(sdbench.tasks.load("gsm8k", **options)):
        assert text_of(example).count(example.row["question"]) == 1
    (tmp_path / "copies.jsonl").write_text(f"{json.dumps(rows[1])}\n" * 2)
    with pytest.raises(ConfigError, match=r"task.pad_to=50 needs solved examples other than the question"):
        padded(sdbench.tasks.load("gsm8k", **{**options, "data": tmp_path / "copies.jsonl"}))


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "many", True])
def test_a_length_is_a_whole_number(wrong):
    with pytest.raises(ValueError, match="pad_to must be a whole number"):
        load("gsm8k", pad_to=wrong)


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("protocol", protocols("humaneval"))
def test_the_end_of_one_more_function_fills_the_length_up(protocol, form):
    """Under bigcode and evalplus that function was shown whole or not at all."""
    options = {"protocol": protocol, "chat": form == "chat", "shots": 0, "n": 1}
    base = num_words(next(iter(load("humaneval", **options).examples())).prompt)
    lengths = {
        num_words(padded(load("humaneval", **options, pad_to=base + size))[0].prompt) for size in range(200, 260)
    }
    assert len(lengths) > 8


def test_keys_of_padded_functions_differ_only_where_their_padding_does():
    versions = {
        protocol: load("humaneval", protocol=protocol, pad_to=300).describe()["padding"]["with"].split("/")[1]
        for protocol in protocols("humaneval")
    }
    assert versions == {"lm-eval": "1", "llama": "1", "bigcode": "2", "evalplus": "2", "diversed": "1"}
