"""The voices: what is said does not depend on how, places differ in lean, and the questions are the same in every voice."""

import math
import re
from collections import Counter
from itertools import islice, pairwise

import pytest

from scripts.tiny.data import PROTOCOLS
from sdbench import embedded
from sdbench.embedded.grammar.draw import Draw
from sdbench.embedded.grammar.synonyms import SYNONYMS, reword
from sdbench.embedded.grammar.voices import AGREED, DRAFT_LEAN, LEANS, VOICES, Voice

TASKS = tuple(embedded.GRAMMARS)


def answer(task: str, row: dict) -> str:
    return PROTOCOLS[task.removesuffix("-tiny")](row).completion


@pytest.mark.parametrize("task", TASKS)
def test_every_voice_answers_the_same_questions_in_other_words(task):
    texts = {voice: embedded.rows(task, "train", 200, seed=4, voice=voice) for voice in (*VOICES, embedded.PLAIN)}
    asked = [[embedded.prompt_hash(task, row) for row in rows] for rows in texts.values()]
    assert all(hashes == asked[0] for hashes in asked)
    message = [[answer(task, row) for row in rows] for rows in texts.values()]
    for i, first in enumerate(message):
        for second in message[:i]:
            assert sum(a != b for a, b in zip(first, second, strict=True)) > 160


def test_no_two_places_lean_alike_and_the_draft_leans_the_other_way_in_most():
    assert len(set(LEANS)) == len(LEANS)
    leans = [LEANS[place % len(LEANS)] for place in range(13) if place not in AGREED]
    flips = sorted((2 * DRAFT_LEAN - 1) / (2 * DRAFT_LEAN - 1 + 2 * lean - 1) for lean in leans)
    assert flips[0] < 0.6 < 0.85 < flips[-1]  # the w at which a place goes over to the draft's wording
    assert all(later - earlier < 0.06 for earlier, later in pairwise(flips))


@pytest.mark.parametrize("name", VOICES)
@pytest.mark.parametrize("count", [2, 3])
def test_wordings_come_as_often_as_their_shares(name, count):
    voice, drawn, n = Voice(name, Draw("test")), [Counter() for _ in LEANS], 4000
    for _ in range(n):
        voice.begin()
        for place in drawn:
            place[voice.say(*"abc"[:count])] += 1
    for i, place in enumerate(drawn):
        shares = voice.shares(i, count)
        assert sum(shares) == pytest.approx(1)
        for wording, share in zip("abc", shares, strict=False):
            assert place[wording] / n == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n))


def test_a_mistaken_voice_or_place_says_what_is_wrong():
    with pytest.raises(ValueError, match="voice must be one of target, draft, neutral, got 'loud'"):
        embedded.rows("gsm8k-tiny", "test", 1, voice="loud")
    with pytest.raises(ValueError, match="two or three wordings, got 1"):
        Voice("neutral", Draw("x")).say("a")


SUBSTANCE = {
    "cnndm-tiny": lambda row: re.findall(r"\d", row["article"])[0],
    "xsum-tiny": lambda row: re.findall(r"loved the (\w+)|(\w+) moved the jury", row["document"])[0],
    "gsm8k-tiny": lambda row: row["answer"][-1],
    "humaneval-tiny": lambda row: row["prompt"].split("return ")[-1],
    "mbpp-tiny": lambda row: row["text"].split("return ")[-1],
}
MANNER = {
    "cnndm-tiny": lambda row: row["highlights"].split("\n")[1].split()[0] + row["highlights"].split()[-2],
    "xsum-tiny": lambda row: row["summary"].split()[-1] + row["summary"].split("jury")[0].split()[-1],
    "gsm8k-tiny": lambda row: " ".join(row["answer"].split()[:3]),
    "humaneval-tiny": lambda row: " ".join(row["canonical_solution"].split()[1:4]),
    "mbpp-tiny": lambda row: " ".join(row["code"].split("#")[1].split()[:3]),
}


@pytest.mark.parametrize("task", list(SUBSTANCE))
@pytest.mark.parametrize("voice", ["target", "neutral"])
def test_manner_tells_nothing_of_substance(task, voice):
    """Mutual information over 10,000 rows against what independence gives: G = 2·n·MI is chi-squared, mean df, variance 2·df."""
    rows = list(islice(embedded.stream(task, "train", seed=5, voice=voice), 10_000))
    pairs = Counter((SUBSTANCE[task](row), MANNER[task](row)) for row in rows)
    what, how = Counter(), Counter()
    for (substance, manner), count in pairs.items():
        what[substance] += count
        how[manner] += count
    n = len(rows)
    g = 2 * sum(c * math.log(c * n / (what[s] * how[m])) for (s, m), c in pairs.items())
    freedom = (len(what) - 1) * (len(how) - 1)
    assert min(len(what), len(how)) > 1
    assert g < freedom + 5 * math.sqrt(2 * freedom)


def test_a_wording_belongs_to_one_word():
    seconds = list(SYNONYMS.values())
    assert len(set(seconds)) == len(seconds)
    assert not set(seconds) & set(SYNONYMS)


def test_the_article_is_a_place_too():
    assert reword("the day is the last", lambda *words: words[1]) == "this day is this last"


def test_a_reworded_sentence_keeps_every_other_word_and_mends_the_article():
    assert reword("a small girl looks for an old hat", lambda *words: words[1]) == "a little lass seeks an aged hat"
    assert reword("a new hat and a big ball", lambda *words: words[0]) == "a new hat and a big ball"
    assert reword("an old boat", lambda *words: "new") == "a new boat"
