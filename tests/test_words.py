"""One parser for the small programs: what they take, and one sentence for what they do not."""

import pytest

from sdbench.words import Words, by_task, number, parse_words

OPTIONS = {"out": "figures", "margin": "1"}


def test_places_and_options_in_any_order_and_any_form():
    for words in (["a", "out=x", "b"], ["--out=x", "a", "b"], ["a", "b", "--out", "x"]):
        assert parse_words(words, OPTIONS) == Words(("a", "b"), {"out": "x"})


def test_a_folder_may_have_an_equals_sign_in_its_path():
    assert parse_words(["results/w=0.5"], OPTIONS).paths == ("results/w=0.5",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nothing"], r"--nothing is not an option \(choices: out, margin\)"),
        (["-x"], "-x is not an option"),
        (["nothing=1"], "nothing is not an option"),
        (["ot=1"], r"ot is not an option \(did you mean out\?"),
        (["task.margin=1"], "task.margin is not an option"),
        (["--out"], "--out needs a value, for example out=figures"),
        (["out="], "out needs a value"),
        (["out=a", "out=b"], "out is given twice"),
    ],
)
def test_a_slip_is_one_sentence(words, said):
    with pytest.raises(ValueError, match=said):
        parse_words(words, OPTIONS)


def test_the_name_of_a_group_may_stand_before_an_option():
    assert parse_words(["task.margin=2"], OPTIONS, groups=["task"]).options == {"margin": "2"}


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_a_number_is_above_zero(text):
    with pytest.raises(ValueError, match="margin must be a number above 0"):
        number(parse_words([f"margin={text}"], OPTIONS), "margin")
    assert number(parse_words(["margin=2.5"], OPTIONS), "margin") == 2.5
    assert number(parse_words([], OPTIONS), "margin") is None


def test_a_margin_may_be_given_by_task():
    def margin(*words):
        return by_task(parse_words(words, OPTIONS), "margin")

    assert margin("margin={gsm8k-tiny: 1, 'cnndm': 0.5}") == {"gsm8k-tiny": 1, "cnndm": 0.5}
    assert margin("margin=2.5") == 2.5
    assert margin() is None
    for text, message in (
        ("{gsm8k}", "must be written"),
        ("{gsm8k: 1", "must be written"),
        ("{}", "must be written"),
        ("{gsm8k: 0}", "margin of gsm8k must be a number above 0, got 0"),
        ("{gsm8k: much}", "margin of gsm8k"),
    ):
        with pytest.raises(ValueError, match=message):
            margin(f"margin={text}")
