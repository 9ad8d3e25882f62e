"""Substance apart from manner: every reference states every fact of its prompt in any voice, a changed name does not."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdbench import embedded, tasks
from sdbench.embedded import facts
from sdbench.embedded.grammar.voices import VOICES, Voice
from sdbench.metrics.quality import corpus_of

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
        assert facts.share_stated(asked, row["highlights"]) == 1, row
    for row in embedded.rows("xsum-tiny", "test", voice=voice):
        asked = facts.document_facts(row["document"])
        assert len(asked) == COUNTS["xsum-tiny"], asked
        assert facts.share_stated(asked, row["summary"]) == 1, row


def test_a_translation_has_all_its_content_in_any_voice_and_loses_a_share_with_a_wrong_word():
    rows = {voice: embedded.rows("wmt-tiny", "test", voice=voice) for voice in VOICES}
    for one, two in zip(rows["target"], rows["draft"], strict=True):
        assert facts.share_translated(one["translation"]["en"], two["translation"]["en"]) == 1, (one, two)
    assert facts.share_translated("The teacher sees a table.", "A tutor spots my chair.") == pytest.approx(2 / 3)
    assert facts.share_translated("The teacher sees a table.", "") == 0


def test_a_wrong_name_or_number_is_a_fact_less():
    lead = "A fire destroyed the Tamir bridge in Malaburg."
    asked = facts.article_facts(f"{lead} Mayor Dolu Hakes thanked the crews. Some 27 drivers were led to safety.")
    assert asked == ["fire", "Tamir bridge", "Malaburg", "27 drivers", "Dolu Hakes"]
    assert facts.share_stated(asked, "The fire at Tamir bridge in Malaburg ; 27 drivers ; Dolu Hakes") == 1
    assert facts.share_stated(asked, "The fire at Tamir bridge in Malaburg ; 21 drivers ; Dolu Haker") == pytest.approx(
        0.6
    )


@pytest.mark.parametrize("task", ANSWER)
def test_the_tiny_tasks_declare_and_score_facts(task):
    loaded = tasks.load(task)
    assert "facts" in {metric.name for metric in loaded.metrics}
    example = next(iter(loaded.examples()))
    assert loaded.score(example, ANSWER[task](example.row)).values["facts"] == 1
    assert loaded.score(example, "nothing").values["facts"] == 0


CEILINGS = {"cnndm-tiny": 77.3, "xsum-tiny": 58.1, "wmt-tiny": 43.2}  # results/README.md
CLASSES = {"cnndm-tiny": "TinyCnnDm", "xsum-tiny": "TinyXSum", "wmt-tiny": "TinyWMT"}


@pytest.mark.parametrize("name", CEILINGS)
def test_a_target_alone_reaches_what_two_voices_allow(name, monkeypatch):
    """The ceiling: all facts, each place as the target's voice likes it best, scored against the neutral references."""
    honest = Voice.shares

    def best(voice, place, count):
        return (1.0, 0.0, 0.0)[:count] if voice.name == "target" else honest(voice, place, count)

    monkeypatch.setattr(Voice, "shares", best)
    message = {
        embedded.prompt_hash(name, row): ANSWER[name](row) for row in embedded.rows(name, "test", voice="target")
    }
    monkeypatch.undo()
    task = tasks.build(f"sdbench.tasks.tiny.{CLASSES[name]}", name=name, n=500, dataset=f"embedded:{name}")
    examples = list(task.examples())
    scores = task.score_all([(one, message[embedded.prompt_hash(name, one.row)]) for one in examples])
    (metric,) = (one for one in task.metrics if one.name == task.metric)
    of = [one.stats.get(metric.name, one.values.get(metric.name)) for one in scores]
    ceiling = float(corpus_of(metric)(np.sum(of, 0))) if metric.name in scores[0].stats else float(np.mean(of))
    assert ceiling == pytest.approx(CEILINGS[name], abs=0.05)
    for pair in embedded.PAIRS:
        rows = pd.read_csv(Path(__file__).parents[2] / f"results/embedded/{pair}-{name}-greedy/summary.csv")
        (alone,) = rows[rows["verifier"] == "target"]["quality"]
        assert 0.93 * ceiling <= alone <= 1.03 * ceiling, (
            "beyond it a text would be nearer to the references than its voice is"
        )
