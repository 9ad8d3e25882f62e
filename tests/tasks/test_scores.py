"""Scores equal the libraries' and the harnesses' own: ROUGE, BLEU, chrF, the readings of a number, flags."""

import random
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
import sacrebleu
from nltk.stem.porter import PorterStemmer
from own import GSM8K_FORMS, ROWS, last_number, load, protocols
from rouge_score import rouge_scorer
from rouge_score import tokenize as rouge_tokenize

import sdbench.tasks
from sdbench.evaluate_adapter import of_all
from sdbench.metrics.quality import corpus_bleu, corpus_chrf2
from sdbench.tasks import summaries
from sdbench.tasks.gsm8k import lm_eval_flexible, numeric
from sdbench.types import Example, Prompt

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
WORDS = (  # noqa: SIM905 - a text reads better
    "the a of running runs runner quickly houses housing München 3.5 U.S. co-operate don't cat cats policies policy "
    "generous generosity “quoted” £30m and is was\tto"
).split()


def texts(rng, num_lines):
    return "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(num_lines)).strip()


def pairs(count, *, lines):
    rng = random.Random(0)
    return [(texts(rng, rng.randint(1, lines)), texts(rng, rng.randint(1, lines))) for _ in range(count)]


def example(**row):
    return Example("0", row, Prompt())


@pytest.mark.parametrize(
    ("name", "asked", "answer"), [("cnndm", "article", "highlights"), ("xsum", "document", "summary")]
)
def test_rouge_equals_rouge_score_on_200_random_pairs_with_and_without_stemmer(name, asked, answer):
    task = load(name, stop=[])  # the candidates have blank lines, at which answers of cnndm end
    scorers = {"": True, "_nostem": False}
    scorers = {ending: rouge_scorer.RougeScorer(TYPES, use_stemmer=stem) for ending, stem in scorers.items()}
    for reference, candidate in pairs(200, lines=4):
        score = task.score(example(**{asked: "", answer: reference}), candidate)
        for ending, scorer in scorers.items():
            direct = scorer.score(reference, candidate)
            for kind in TYPES:
                assert score.values[kind + ending] == 100 * direct[kind].fmeasure


def test_newlines_reach_rouge_lsum():
    row = {"article": "", "highlights": "the cat sat .\nthe dog ran ."}
    swapped = load("cnndm").score(example(**row), "the dog ran .\nthe cat sat .")
    joined = load("cnndm").score(example(**row), "the dog ran . the cat sat .")
    assert swapped.values["rougeLsum"] == 100
    assert swapped.values["rougeL"] == joined.values["rougeL"] < 100


def test_xsum_of_diversed_keeps_the_first_32_words_and_the_default_keeps_all():
    row = {"document": "", "summary": " ".join(f"w{i}" for i in range(40))}
    answer = row["summary"] + "\n\nDocument: another one"
    assert load("xsum").score(example(**row), answer).values["rouge1"] == 100
    short = load("xsum", protocol="diversed").score(example(**row), answer).values["rouge1"]
    assert short == pytest.approx(100 * 2 * 32 / (32 + 40))
    assert load("xsum", truncate_words=8).score(example(**row), answer).values["rouge1"] < short


def test_corpus_bleu_and_chrf2_from_summed_statistics_equal_sacrebleu_on_200_random_pairs():
    task = load("wmt")
    data = [(r.replace("\n", " "), c.replace("\n", " ")) for r, c in pairs(200, lines=3)]
    scores = [task.score(example(translation={"de": "", "en": r}), c) for r, c in data]
    references, candidates = [r for r, _ in data], [c.strip() for _, c in data]
    sums = {n: [sum(column) for column in zip(*(s.stats[n] for s in scores), strict=True)] for n in ("bleu", "chrf2")}
    assert len(sums["bleu"]) == 10
    bleu, chrf = sacrebleu.corpus_bleu(candidates, [references]), sacrebleu.corpus_chrf(candidates, [references])
    assert corpus_bleu(sums["bleu"]) == pytest.approx(bleu.score, abs=1e-9)
    assert corpus_chrf2(sums["chrf2"]) == pytest.approx(chrf.score, abs=1e-9)
    assert of_all(scores, task.metric_of("bleu")) == pytest.approx(bleu.score, abs=1e-9)
    mean = sum(score.values["diversed_sbleu"] for score in scores) / len(scores)
    assert of_all(scores, task.metric_of("diversed_sbleu")) == pytest.approx(mean)
    for score, (reference, candidate) in zip(scores, data, strict=True):
        lowered = sacrebleu.sentence_bleu(candidate.strip(), [reference], lowercase=True).score
        assert score.values["diversed_sbleu"] == lowered
        assert score.values["bleu"] == sacrebleu.sentence_bleu(candidate.strip(), [reference]).score
        assert score.values["chrf2"] == sacrebleu.sentence_chrf(candidate.strip(), [reference]).score


def test_statistics_of_a_resample_give_its_corpus_score():
    task, rng = load("wmt"), random.Random(1)
    data = [(r.replace("\n", " "), c.replace("\n", " ").strip()) for r, c in pairs(50, lines=2)]
    stats = [task.score(example(translation={"de": "", "en": r}), c).stats["bleu"] for r, c in data]
    drawn = rng.choices(range(50), k=50)
    sums = [sum(stats[i][j] for i in drawn) for j in range(10)]
    direct = sacrebleu.corpus_bleu([data[i][1] for i in drawn], [[data[i][0] for i in drawn]])
    assert corpus_bleu(sums) == pytest.approx(direct.score, abs=1e-9)


def test_signatures_name_the_tokenizer_and_the_case():
    assert "tok:13a" in load("wmt").signatures["bleu"]
    assert "case:mixed" in load("wmt").signatures["bleu"]
    assert "eff:no" in load("wmt").signatures["bleu"]
    assert "case:lc" in load("wmt").signatures["diversed_sbleu"]
    assert "stemmer on" in load("cnndm").signatures["rouge"]


def test_translation_goes_both_ways():
    into_german = load("wmt", direction="en-de")
    first = next(iter(into_german.examples()))
    assert first.prompt.text == "English phrase: The cat is sleeping on the roof.\nGerman phrase:"
    assert into_german.score(first, " Die Katze schläft auf dem Dach.\nmore").values["bleu"] == pytest.approx(100)
    assert load("wmt", direction="en-de", protocol="diversed").stop == ("\n\nGerman:",)
    with pytest.raises(ValueError, match="direction must be one of de-en, en-de"):
        load("wmt", direction="de-fr")


@pytest.mark.parametrize("protocol", protocols("gsm8k"))
def test_gsm8k_references_in_the_protocols_own_form_score_1(protocol):
    task = load("gsm8k", protocol=protocol)
    for one in task.examples():
        answer = GSM8K_FORMS[protocol].format(last_number(one.row))
        assert set(task.score(one, answer).values.values()) == {1.0}, (answer, one.row)


@pytest.mark.parametrize("protocol", ["lm-eval", "diversed"])
def test_raw_gsm8k_references_score_1(protocol):
    task = load("gsm8k", protocol=protocol)
    for one in task.examples():
        assert set(task.score(one, one.row["answer"]).values.values()) == {1.0}


@pytest.mark.parametrize("protocol", protocols("gsm8k"))
def test_real_gsm8k_references_score_1(protocol, real_data):
    task = sdbench.tasks.load("gsm8k", data=real_data / "gsm8k_test_first100.jsonl", protocol=protocol)
    scores = []
    for one in task.examples():
        scores.append(task.score(one, GSM8K_FORMS[protocol].format(last_number(one.row))))
        if protocol in ("lm-eval", "diversed"):
            scores.append(task.score(one, one.row["answer"]))
    assert len(scores) >= 100
    assert all(set(score.values.values()) == {1.0} for score in scores)


def test_strict_takes_the_first_marked_number_and_flexible_the_last_of_all():
    task = load("gsm8k")
    score = task.score(example(question="", answer="#### 7"), "#### 7\nand then 9 more")
    assert score.values == {"strict": 1.0, "flexible": 0.0, "numeric": 1.0}
    score = task.score(example(question="", answer="#### 7"), "so there are 7 of them")
    assert score.values == {"strict": 0.0, "flexible": 1.0, "numeric": 1.0}
    assert score.flags["is_extraction_failed"]


def test_text_after_a_stop_string_does_not_count():
    task = load("gsm8k")
    score = task.score(example(question="", answer="#### 7"), "#### 7\n\nQuestion: what is 2 + 2?\nAnswer: 4\n#### 4")
    assert score.values == {"strict": 1.0, "flexible": 1.0, "numeric": 1.0}


def test_ellipsis_is_a_number_to_flexible_and_none_to_numeric():
    text = "It is 18. Let me think again ..."
    assert lm_eval_flexible(text) == "..", "three dots, of which exact_match deletes the last"
    score = load("gsm8k").score(example(question="", answer="#### 18"), text)
    assert score.values == {"strict": 0.0, "flexible": 0.0, "numeric": 1.0}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 1,234", "1234"),
        ("#### -5", "-5"),
        ("#### $18.00", "18"),
        ("costs $1,234.50 in all", "1234.50"),
        ("10-5=5", "5"),
        ("16 - 3 = 13.", "13"),
        ("The answer is 42, not 43.", "42"),
        ("\\boxed{12} is it, of 99", "12"),
        ("x=.5", ".5"),
        ("12,345,678", "12345678"),
        ("1,2", "2"),
        ("7 apples ...", "7"),
        ("#### \u22126", "-6"),
        ("the change is \uff0d6", "-6"),
        ("so 10 \u2212 4 = 6", "6"),
        ("10\u22124", "4"),
        ("\\boxed{1{,}000}", "1000"),
        ("\\boxed{-12{,}000.5}", "-12000.5"),
        ("it costs 1\\,000", "1000"),
        ("#### 1 000", "1000"),
        ("1\u202f234\u202f567 in all", "1234567"),
        ("1\u00a0000", "1000"),
        ("in 2019 200 people", "200"),
        ("#### 6/2", "3"),
        ("#### -6/2", "-3"),
        ("#### 6 / 2 = 3", "3"),
        ("half of it, 1/2", "0.5"),
        ("by 3/4/2020", "2020"),
        ("#### 5/0", "5"),
        ("It is 6/2.", "3"),
        ("#### 1/3", "1/3"),
        ("#### 3 + 4 = 7 pens", "7"),
        ("#### 3 x $4 = $12.", "12"),
        ("the answer is: 20 - 2*3 = 20 - 6 = 14, as 1 + 1 = 2", "14"),
        ("#### 2 \\times (3+1) = 8", "8"),
        ("#### 7 = the number of pens, 8", "7"),
        ("#### 12, because 3 * 4 = 12 and 2 = 2", "12"),
        ("#### Step 2: Add them\nThat makes 15 pens.", "15"),
        ("#### **Step 2:** Add them\n3 + 4 = 7", "7"),
        ("#### 2. Add them\n3 + 4 = 7", "7"),
        ("#### 18\n#### Step 3: Check 5 of them", "18"),
        ("#### 18. ", "18"),
        ("#### 18 dollars", "18"),
        ("#### Answer: 18, of 20", "18"),
        ("none", None),
        ("...", None),
        ("", None),
    ],
)
def test_our_own_reading_of_a_number(text, number):
    assert numeric(text) == (None if number is None else Fraction(number))


READINGS = [(protocol, name) for protocol in protocols("gsm8k") for name in ("strict", "flexible", "gold")]
LONG = {
    "digits": "7", "marks": "#", "commas": "1,", "blanks": "1 ", "minus": "-", "dots": ".", "slashes": "6/", "dollars": "$",
    "marked": "#### ", "thousands": "000,", "tex": "1{,}", "boxes": "\\boxed{", "answers": "The answer is ", "spaces": " ",
    "sums": "1 + 1 = ",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("piece", LONG)
def test_the_readings_of_a_number_take_time_in_proportion(piece):
    """Quadratic time would be 64 times as much for eight times the text."""
    from sdbench.tasks.gsm8k import PROTOCOLS

    readings = [numeric, *(getattr(PROTOCOLS[protocol], name) for protocol, name in READINGS)]

    def seconds(count):
        text = LONG[piece] * (count // len(LONG[piece])) + "x"
        start = time.process_time()
        for reading in readings:
            reading(text)
        return time.process_time() - start

    short, long = (min(seconds(count) for _ in range(3)) for count in (25_000, 200_000))
    assert long < 30 * max(short, 0.01)


def test_lm_eval_reading_deletes_commas_dollars_and_a_last_dot():
    assert lm_eval_flexible("it is $1,080.") == "1080"
    assert lm_eval_flexible("nothing") is None


def test_diversed_rounds_and_takes_the_marked_number_first():
    task = load("gsm8k", protocol="diversed")
    assert task.score(example(question="", answer="#### 8"), "about 7.6").values["flexible"] == 1.0
    assert task.score(example(question="", answer="#### 8"), "### 8 or 9").values["flexible"] == 1.0


def test_diversed_decides_and_trains_on_the_papers_metrics():
    from sdbench.train.setup import reward_of

    task = load("gsm8k", protocol="diversed")
    score = task.score(example(question="", answer="#### 18"), "So there are 18 pens.")
    assert score.values[task.metric] == 1.0
    assert not score.flags["is_extraction_failed"]
    assert reward_of(task, None).name == "flexible"
    for name, usual in {"gsm8k": "strict", "cnndm": "rougeL", "xsum": "rouge2"}.items():
        headlines = {protocol: load(name, protocol=protocol).metric for protocol in protocols(name)}
        assert headlines.pop("diversed") == ("flexible" if name == "gsm8k" else "rouge2_nostem")
        assert set(headlines.values()) == {usual}


@pytest.mark.parametrize("protocol", protocols("gsm8k"))
@pytest.mark.parametrize("answer", ["9" * 9000, "#### " + "1" * 9000, "0." + "3" * 9000, "-0", "### 007", "٣", "¼ ²"])
def test_no_digits_are_too_many_or_too_strange(protocol, answer):
    score = load("gsm8k", protocol=protocol).score(example(question="", answer="#### 7"), answer)
    is_seven = answer == "### 007"
    assert score.values["numeric"] == is_seven
    assert score.values["flexible"] == (is_seven and protocol == "diversed")


def test_every_answer_carries_truncation_emptiness_and_extraction_flags():
    task = load("gsm8k")
    row = example(question="", answer="#### 7")
    assert task.score(row, "  \n").flags == {"is_truncated": False, "is_empty": True, "is_extraction_failed": True}
    assert task.score(row, "so 3 +", is_truncated=True).flags["is_truncated"]
    assert not task.score(row, "#### 7\nQuestion: no", is_truncated=True).flags["is_truncated"]


@pytest.mark.parametrize("name", ["cnndm", "xsum", "wmt16"])
def test_a_chat_answer_that_ends_after_its_opening_line_has_no_result(name):
    chat, text = load(name, chat=True), load(name)
    row = next(iter(chat.examples()))
    openings = ("Here is a summary:", "**Translation:** ", f"Here is a summary:{chat.stop[0]}A cat sat.")
    for answer in openings:
        assert chat.score(row, answer).flags["is_extraction_failed"]
        assert not text.score(row, answer).flags["is_extraction_failed"]
    for answer in ("A cat sat.", "He said: I sat.", ""):
        assert not chat.score(row, answer).flags["is_extraction_failed"]


def test_a_chat_answer_of_two_lines_is_no_opening_line():
    task = load("xsum", chat=True)
    assert not task.score(next(iter(task.examples())), "A cat:\nit sat:").flags["is_extraction_failed"]


def test_a_translation_that_ends_in_a_colon_as_its_reference_does_is_a_result():
    task = load("wmt16", chat=True)
    (row, *_) = task.examples()
    row = replace(row, row={"translation": {"de": "Er sagte:", "en": "He said:"}})
    assert not task.score(row, "He said this:").flags["is_extraction_failed"]


def test_scoring_is_pure_and_a_batch_equals_single_calls():
    task = load("gsm8k")
    batch = [(one, one.row["answer"]) for one in task.examples()]
    assert task.score_all(batch) == [task.score(*pair) for pair in batch] == task.score_all(batch)


def test_each_word_of_all_summaries_is_stemmed_once(monkeypatch):
    """rouge_score itself stems each word of a summary twice; everything else is its own code, so this is what scoring costs."""
    counts = Counter()

    class CountingStemmer(PorterStemmer):
        def stem(self, word, to_lowercase=True):
            counts["stems"] += 1
            return super().stem(word, to_lowercase)

    def counting_tokenize(text, stemmer, tokenize=rouge_tokenize.tokenize):
        counts["splits"] += 1
        return tokenize(text, stemmer)

    monkeypatch.setattr("nltk.stem.porter.PorterStemmer", CountingStemmer)
    monkeypatch.setattr(rouge_tokenize, "tokenize", counting_tokenize)
    monkeypatch.setattr(summaries, "_scorer", cache(summaries._scorer.__wrapped__))
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrst", k=rng.randint(4, 10))) for _ in range(300)]

    def text(num_lines):
        return "\n".join(" ".join(rng.choices(vocabulary, k=14)) for _ in range(num_lines))

    batch = [(example(article="", highlights=text(4)), text(7)) for _ in range(20)]
    load("cnndm").score_all(batch)
    words = {word for one, answer in batch for word in f"{one.row['highlights']} {answer}".split()}
    assert counts["stems"] == len(words)
    whole_texts, lines = 2 * 20, (4 + 7) * 20
    assert counts["splits"] == 2 * (whole_texts + lines), "with the stemmer and without"


def test_rows_written_here_have_the_real_fields(real_data):
    import json

    for own, real in (("gsm8k", "gsm8k_test_first100"), ("humaneval", "humaneval")):
        with (ROWS / f"{own}.jsonl").open() as ours, (real_data / f"{real}.jsonl").open() as theirs:
            assert set(json.loads(ours.readline())) == set(json.loads(theirs.readline()))


def test_an_extra_metric_that_the_task_scores_itself_is_refused_before_anything_is_decoded(monkeypatch):
    monkeypatch.setattr("sdbench.tasks.base.load_metric", lambda name: lambda text, answer: {"strict": 0.0})
    task = sdbench.tasks.load("gsm8k-tiny", n=1, extra_metrics=["there/strict"])
    with pytest.raises(ValueError, match=r"^extra_metrics: strict is a score of gsm8k-tiny itself: remove it$"):
        task.environment()
