"""Substance apart from manner: every reference states every fact of its prompt in any voice, a changed name does not."""

import pytest

from sdbench import embedded, tasks
from sdbench.embedded import facts
from sdbench.embedded.grammar.voices import VOICES

COUNTS = {"cnndm-tiny": 5, "xsum-tiny": 7}
ANSWER = {
    "cnndm-tiny": lambda row: row["highlights"],
    "xsum-tiny": lambda row: row["summary"],
    "wmt-tiny": lambda row: row["translation"]["en"],
}


@pytest.mark.parametrize("voice", [*VOICES, embedded.PLAIN])
def test_every_summary_states_all_facts_of_its_prompt(voice):
    for row in embedded.rows("cnndm-tiny", "test", voice=voice):
        asked = facts.article_facts(row["article"])
        assert len(asked) == COUNTS["cnndm-tiny"], asked
        assert facts.stated(asked, row["highlights"]) == 1, row
    for row in embedded.rows("xsum-tiny", "test", voice=voice):
        asked = facts.document_facts(row["document"])
        assert len(asked) == COUNTS["xsum-tiny"], asked
        assert facts.stated(asked, row["summary"]) == 1, row


def test_a_translation_has_all_its_content_in_any_voice_and_loses_a_share_with_a_wrong_word():
    rows = {voice: embedded.rows("wmt-tiny", "test", voice=voice) for voice in VOICES}
    for one, two in zip(rows["target"], rows["draft"], strict=True):
        assert facts.told(one["translation"]["en"], two["translation"]["en"]) == 1, (one, two)
    assert facts.told("The teacher sees a table.", "A tutor spots my chair.") == pytest.approx(2 / 3)
    assert facts.told("The teacher sees a table.", "") == 0


def test_a_wrong_name_or_number_is_a_fact_less():
    lead = "A fire destroyed the Tamir bridge in Malaburg."
    asked = facts.article_facts(f"{lead} Mayor Dolu Hakes thanked the crews. Some 27 drivers were led to safety.")
    assert asked == ["fire", "Tamir bridge", "Malaburg", "27 drivers", "Dolu Hakes"]
    assert facts.stated(asked, "The fire at Tamir bridge in Malaburg ; 27 drivers ; Dolu Hakes") == 1
    assert facts.stated(asked, "The fire at Tamir bridge in Malaburg ; 21 drivers ; Dolu Haker") == pytest.approx(0.6)


@pytest.mark.parametrize("task", ANSWER)
def test_the_tiny_tasks_declare_and_score_facts(task):
    loaded = tasks.load(task)
    assert "facts" in {metric.name for metric in loaded.metrics}
    example = next(iter(loaded.examples()))
    assert loaded.score(example, ANSWER[task](example.row)).values["facts"] == 1
    assert loaded.score(example, "nothing").values["facts"] == 0
