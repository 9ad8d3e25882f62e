"""Long documents: as long as asked, the same for everybody, and scored by what they ask."""

import json

import pytest

import sdbench.tasks
from sdbench.tasks.long import KINDS, NEW, names_of
from sdbench.types import Example, Prompt


def num_words(prompt):
    return len(prompt.text.split())


def documents(n=6, **options) -> list[str]:
    task = sdbench.tasks.load("long-tiny", n=n, **options)
    return [str(task.fit(example, num_words, 10_000).prompt.text) for example in task.examples()]


@pytest.fixture
def task():
    return sdbench.tasks.load("long-tiny", n=6)


@pytest.fixture
def questions():
    return sdbench.tasks.load("long-tiny", protocol="questions", n=30)


@pytest.mark.parametrize("entropy", NEW)
@pytest.mark.parametrize("length", [60, 120, 500, 2000])
def test_a_prompt_is_at_most_a_sentence_shorter_than_asked(length, entropy):
    for text in documents(length=length, entropy=entropy):
        assert length - 8 <= len(text.split()) <= length


def test_documents_are_a_function_of_row_length_entropy_and_depth():
    assert documents(length=200) == documents(length=200)
    assert documents(n=2, length=200) == documents(length=200)[:2]
    others = [{"length": 210}, {"length": 200, "entropy": "low"}, {"length": 200, "depth": 0.5}]
    assert all(set(documents(length=200)).isdisjoint(documents(**other)) for other in others)


def test_the_article_is_whole_and_stands_where_depth_says(task):
    articles = [example.row["article"] for example in task.examples()]
    for depth, place in ((0, 0), (0.5, 0.5), (1, 1)):
        for article, text in zip(articles, documents(length=600, depth=depth), strict=True):
            assert article in text
            before, after = map(len, text.split(article))
            assert before / (before + after) == pytest.approx(place, abs=0.06)


def test_a_longer_document_begins_as_the_shorter_one():
    for short, long in zip(documents(length=150), documents(length=300), strict=True):
        sentences = short.partition("\n\n")[2].split(". ")[:4]
        assert ". ".join(sentences) in long


def test_low_entropy_repeats_one_sentence_and_high_repeats_none():
    def shares(entropy):
        for text in documents(length=800, entropy=entropy):
            sentences = text.partition("\n\n")[2].split(". ")
            yield len(set(sentences)) / len(sentences)

    low, mixed, high = (sum(shares(entropy)) / 6 for entropy in NEW)
    assert low < 0.1 < 0.35 < mixed < 0.7 < 0.97 < high


def test_no_bystander_is_a_number_or_a_person_of_the_summary(task):
    for example, text in zip(task.examples(), documents(length=1500), strict=True):
        article = example.row["article"]
        others = text.partition("\n\n")[2].replace(article, "")
        assert not any(letter.isdigit() for letter in others)


def test_the_reference_scores_1_in_everything(task, questions):
    for one in (task, questions):
        for example in one.examples():
            assert set(one.score(example, one.fields(example.row)["answer"]).values.values()) == {1.0}


def test_each_kind_loses_by_its_own_mistake_only(task):
    example = next(iter(task.examples()))
    right = example.row["highlights"]
    name = names_of(right)[0]
    number = next(word for word in right.split() if word.isdigit())
    renamed, renumbered = (task.score(example, right.replace(word, "11", 1)).values for word in (name, number))
    assert (renumbered["find"], renumbered["copy"]) == (0, 1)
    assert (renamed["copy"], renamed["sum_up"] < 1) == (1 - 1 / len(names_of(right)), True)
    assert task.score(example, "").values == dict.fromkeys(("score", *KINDS), 0.0)


def test_find_reads_the_first_number(task):
    example = next(iter(task.examples()))
    number = next(word for word in example.row["highlights"].split() if word.isdigit())
    assert task.score(example, f"{number} people, not 12").values["find"] == 1
    assert task.score(example, f"12 people, not {number}").values["find"] == 0
    assert task.score(example, "nobody").flags["is_extraction_failed"]


def test_a_question_asks_for_one_thing_and_all_kinds_come(questions):
    kinds = [questions.kinds(example.row) for example in questions.examples()]
    assert all(len(each) == 1 for each in kinds)
    assert {kind for (kind,) in kinds} == set(KINDS)
    for example, (kind,) in zip(questions.examples(), kinds, strict=True):
        stats = questions.score(example, "no").stats
        assert {name: count for name, (_, count) in stats.items()} == {each: float(each == kind) for each in KINDS}
        assert example.prompt.text.endswith(f"Question: {questions.fields(example.row)['question']}\nAnswer:")


def test_the_mean_of_a_kind_is_over_its_own_rows(questions):
    from sdbench.metrics.quality import corpus_ratio

    examples = list(questions.examples())
    scores = [questions.score(example, questions.fields(example.row)["answer"]) for example in examples]
    for kind in KINDS:
        assert corpus_ratio([sum(column) for column in zip(*(s.stats[kind] for s in scores), strict=True)]) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"entropy": "hihg"}, r"entropy must be one of low, mixed, high, got hihg .did you mean high"),
        ({"length": 0}, "length must be a whole number"),
        ({"depth": 1.5}, "depth must be a number between 0 and 1, got 1.5"),
        ({"pad_to": 500}, "long-tiny takes length= for longer prompts, not pad_to=500"),
    ],
)
def test_wrong_options_are_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        sdbench.tasks.load("long-tiny", **options)


WHOLE = {
    "article": "Fire hit Malaburg. Ed of Talon led 7 people out.",
    "highlights": "Fire hits Malaburg. 7 safe.",
    "id": "a",
}


def of_ones_own(tmp_path, changes, protocol):
    """Rows of one's own: first a whole one, then one for each letter as its id, which decides its question."""
    rows = [WHOLE, *({**WHOLE, "id": letter, **changes} for letter in "bcdefgh")]
    rows = [{name: value for name, value in row.items() if value is not ...} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return sdbench.tasks.load("long-tiny", data=tmp_path / "rows.jsonl", protocol=protocol, length=None)


@pytest.mark.parametrize(
    ("protocol", "changes", "sentence"),
    [
        ("questions", {"id": ...}, r"^row 1 of \S+ has no field 'id': long-tiny with protocol=questions needs it"),
        (
            "questions",
            {"highlights": "All safe."},
            r"^row \d of \S+ has no number in its highlights: long-tiny asks for it",
        ),
        (
            "questions",
            {"article": "Fire"},
            r"^row \d of \S+ has no sentence with a full stop in its article: long-tiny asks",
        ),
        (
            "summary",
            {"highlights": "All safe."},
            r"^row 1 of \S+ has no number in its highlights: long-tiny asks for it",
        ),
        (
            "summary",
            {"highlights": "Fire destroys bridge.\n7 safe."},
            r"^row 1 of \S+ has no capitalised word after the first of a line in its highlights: long-tiny asks for names",
        ),
    ],
)
def test_a_row_without_an_answer_to_its_question_is_named(protocol, changes, sentence, tmp_path):
    """These were a KeyError and an IndexError, and a summary without a number was right for any without one."""
    with pytest.raises(ValueError, match=sentence):
        _ = of_ones_own(tmp_path, changes, protocol).ids


def test_rows_of_ones_own_need_no_id_to_be_summed_up(tmp_path):
    assert len(of_ones_own(tmp_path, {"id": ...}, "summary").ids) == 8


def test_nothing_is_right_where_the_reference_has_no_number(task):
    example = Example("x", {**WHOLE, "highlights": "All safe."}, Prompt())
    assert task.score(example, "All safe.").values["find"] == 0


def test_lengths_share_rows_and_differ_in_what_is_described():
    short, long = (sdbench.tasks.load("long-tiny", length=length) for length in (100, 200))
    assert short.rows == long.rows
    assert (short.describe()["padding"]["to"], long.describe()["padding"]["to"]) == (100, 200)
    without = sdbench.tasks.load("long-tiny", length=None)
    assert "padding" not in without.describe()
    assert all(without.fit(example, num_words, 10_000) is example for example in without.examples())


@pytest.mark.parametrize("options", [{"entropy": "low"}, {"depth": 0}])
def test_options_of_added_sentences_are_refused_where_none_are_added(options):
    """They had no effect, and made the same texts another sweep."""
    with pytest.raises(ValueError, match="has no effect without sentences to add: give length="):
        sdbench.tasks.load("long-tiny", length=None, **options)
