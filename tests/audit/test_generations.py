"""Texts of another engine: prompts with few texts, texts that end, and files that say nothing."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from sdbench import embedded
from sdbench.audit import pairs
from sdbench.audit.claims import PAIRS, TableTest
from sdbench.audit.evidence import CountEvidence, least_tv
from sdbench.audit.generations import ids_of
from sdbench.audit.large_vocabulary import ClaimedLaw, EmittedTest, PrefixTest
from sdbench.audit.plan import threshold
from sdbench.audit.report import AuditReport, ClaimResult, _power
from sdbench.audit.source import Forwards, Sampling
from sdbench.audit.texts import TextBatch
from sdbench.cli import main as front_door
from sdbench.config import ConfigError

WIDE, STOPS, BUDGET = 40, tuple(range(30, 40)), 4
PROMPTS = [[0, 1, 2, 0, 1], [3, 1]]


def main(words: list[str]) -> int:
    return front_door(["audit", *words])


@pytest.fixture(scope="module")
def source() -> Forwards:
    return Forwards({"target": pairs.random_pair(vocab=WIDE)[0]}, PROMPTS, WIDE)


def texts_that_end(source: Forwards, count: int) -> list[list[int]]:
    """Sample texts of the first prompt without the token that ends them; some are empty."""
    generator = torch.Generator().manual_seed(0)
    texts: list[list[int]] = [[] for _ in range(count)]
    for position in range(BUDGET):
        going = [text for text in texts if len(text) == position]
        batch = torch.tensor([[*text, 0] for text in going])
        law = Sampling().law(source.outputs("target", [0] * len(going), batch).logits[:, -1])
        for text, token in zip(going, torch.multinomial(law, 1, generator=generator)[:, 0].tolist(), strict=True):
            if token not in STOPS:
                text.append(token)
    return texts


def log_es(source: Forwards, texts: list[list[int]], excluded: tuple[int, ...]) -> list[float]:
    claimed = ClaimedLaw(source, Sampling(), None, has_draft=False, is_exact=True, excluded=excluded)
    tests: list[TableTest] = [
        PrefixTest(claimed, [len(texts)], with_second=False),
        EmittedTest("pit", sum(map(len, texts)), claimed=claimed),
    ]
    for test in tests:
        test.add(TextBatch.of([0] * len(texts), texts, BUDGET), None)
    return [float(test.log_e()) for test in tests]


def test_texts_without_their_end_follow_the_law_of_going_on(source):
    texts = [text for text in texts_that_end(source, 2000) if text]
    assert max(log_es(source, texts, STOPS)) < threshold(2)
    assert min(log_es(source, texts, ())) > threshold(2)


def test_a_table_whose_cells_are_all_pooled_detects_nothing():
    few = CountEvidence(np.full(100, 0.01), 10)
    np.testing.assert_array_equal(few.shift_evenly(0.1), few.expected)
    assert least_tv([few], [10], threshold(1)) == float("inf")
    certain = CountEvidence(np.array([1.0, 0.0]), 100)  # any other token has probability 0
    assert certain.shift_evenly(0.1)[-1] == pytest.approx(0.1)
    assert least_tv([certain], [1000], threshold(1)) < 0.01


def test_a_prompt_with_few_texts_leaves_the_power_of_the_others(source):
    claimed = ClaimedLaw(source, Sampling(), None, has_draft=False, is_exact=True)
    few = PrefixTest(claimed, [1, 1], with_second=False)
    assert few.least([1, 1], threshold(1)) == float("inf")
    most = PrefixTest(claimed, [4000, 1], with_second=False)
    assert [bool((counts.expected > 0).sum() > 5) for counts in most.parts[0]] == [True, False]
    assert most.least([4000, 1], threshold(1)) < 0.1


class CertainFirst:
    """The first token is certain, the second any of 20."""

    source = SimpleNamespace(vocab=20)

    def out(self, prompts: list[int], tokens: torch.Tensor) -> torch.Tensor:
        laws = torch.full((*tokens.shape, 20), 1 / 20)
        laws[:, 0] = torch.eye(20)[0]
        return laws


def test_what_follows_another_first_token_is_named_as_such():
    claimed: Any = CertainFirst()
    test = PrefixTest(claimed, [500], with_second=True)
    assert test.name_of(1, 0, 7) == "0, then 7 after prompt 0"
    assert test.name_of(1, 0, 20) == "a first token other than the 1 likeliest after prompt 0"


def test_the_power_of_prefixes_is_that_of_their_hardest_table():
    """A fault of the second token is not found as soon as one of a certain first token."""
    claimed: Any = CertainFirst()
    firsts, both = (PrefixTest(claimed, [500], with_second=with_second) for with_second in (False, True))
    texts = TextBatch.of([0] * 500, [[0, n % 10] for n in range(500)], 2)
    for test in (firsts, both):
        test.add(texts, None)
    first, pair = (test.effect(threshold(2)) for test in (firsts, both))
    assert (first.view, first.untested, pair.view, pair.untested) == ("first tokens", PAIRS, PAIRS, "")
    assert first.least < 0.05 < pair.least == both.least([500], threshold(2))
    assert (first.value, pair.value) == (0, pytest.approx(0.5))


def test_texts_of_half_precision_with_a_cut_are_not_tested(tmp_path, capsys):
    file = tmp_path / "theirs.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": [5], "tokens": [6, n]}) for n in range(50)))
    words = [f"generations={file}", "model=llama-tiny", "temperature=1", "top_p=0.5", f"out={tmp_path}"]
    assert main([*words, "dtype=bfloat16"]) == 3
    rows = json.loads((tmp_path / "audit.json").read_text())["rows"]
    assert [(row["claim"], row["verdict"], row["samples"]) for row in rows] == [
        ("prefixes", "too few", 0),
        ("pit", "too few", 0),
    ]
    assert main([*words, "dtype=float32"]) == 1, "tokens that such a cut never leaves"


def sentencepiece(*more: Any) -> PreTrainedTokenizerFast:
    """As Llama 2 has it: a blank is put before every text, and the first one is removed when ids are decoded."""
    model = Tokenizer(models.BPE())
    model.normalizer = normalizers.Sequence([*more, normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(vocab_size=70, initial_alphabet=["\n"], show_progress=False)
    model.train_from_iterator(pairs.CORPORA, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=model)


def test_completions_of_a_tokenizer_that_adds_a_blank_get_the_ids_that_were_sampled():
    """Tokenized alone, "a" got the ids of " a"."""
    tokenizer = sentencepiece()
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in pairs.CORPORA]
    lines, expected = [], []
    for ids in texts:
        for cut in range(1, len(ids)):
            completion = tokenizer.decode(ids).removeprefix(tokenizer.decode(ids[:cut]))
            lines.append((len(lines) + 1, {"prompt": ids[:cut], "completion": completion}))
            expected.append(ids[cut:])
    twice = [line for line in lines for _ in range(2)]
    assert {completion["completion"][0] == " " for _, completion in lines} == {True, False}
    new = ids_of("file", twice, tokenizer, len(tokenizer))[2][::2]
    assert np.mean([got == wanted for got, wanted in zip(new, expected, strict=True)]) > 0.95
    assert [tokenizer.decode([*row["prompt"], *ids]) for (_, row), ids in zip(lines, new, strict=True)] == [
        tokenizer.decode([*row["prompt"], *ids]) for (_, row), ids in zip(lines, expected, strict=True)
    ]


def test_a_completion_that_no_ids_decode_to_is_refused():
    with pytest.raises(ConfigError, match=r"line 7 has a completion to which no ids .* decode: give tokens"):
        ids_of("file", [(7, {"prompt": [1], "completion": "The"})] * 2, sentencepiece(normalizers.Lowercase()), 999)


class RareTokens:
    """Three tokens of .2, and 400 of .001 whatever came before."""

    source = SimpleNamespace(vocab=403)

    def out(self, prompts: list[int], tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.2] * 3 + [0.001] * 400).expand(*tokens.shape, 403)


def test_the_power_of_prefixes_excludes_those_that_are_pooled():
    """Nothing shows that rare tokens changed places, and a TV was stated as if it did."""
    claimed: Any = RareTokens()
    usual = np.repeat(np.arange(403), [200] * 3 + [1] * 400)
    log_es = []
    for tokens in (usual, np.where(usual < 3, usual, 3)):
        test = PrefixTest(claimed, [1000], with_second=False)
        test.add(TextBatch.of([0] * 1000, [[int(token)] for token in tokens], 1), None)
        log_es.append(test.log_e())
    assert log_es[0] == log_es[1]
    row = ClaimResult("theirs", "prefixes", "sound", 0, 1, test.effect(threshold(2)), 1000)
    assert "apart from changes among the 40 % of first tokens that are too rare" in _power(AuditReport("", [row]))
    pairs_of_tokens = PrefixTest(claimed, [1000], with_second=True).parts[1][0]
    assert pairs_of_tokens.pooled == pytest.approx(1 - 9 * 0.04), "those after a rare token too"


def test_prefixes_that_texts_of_one_token_do_not_have_are_named(tmp_path, capsys):
    file = tmp_path / "theirs.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": [5], "tokens": tokens}) for tokens in ([6, 7], [6])))
    words = [f"generations={file}", "model=llama-tiny", "temperature=1", "claims=[prefixes]", f"out={tmp_path}"]
    assert main(words) == 3
    printed = capsys.readouterr().err
    assert "1 of 2 texts have a single token, so first tokens are tested, but no prefixes of two" in printed
    assert "between first tokens would not have been detected with probability .95" in printed
    assert "Of theirs, prefixes of two tokens were not tested." in printed


@pytest.mark.parametrize(
    ("lines", "words", "sentence"),
    [
        (
            [{"prompt": [5], "tokens": []}] * 2,
            [],
            "line 1 has no token: a text that ends at once has its end token, or give end=removed",
        ),
        ([{"prompt": [5], "completion": ""}] * 2, [], "all 2 texts are empty, so nothing can be tested"),
        ([{"prompt": [5], "tokens": [6]}] * 2, ["end=cut"], "end cannot be cut (choices: emitted, removed)"),
        (
            [{"prompt": [5], "completion": "a"}] * 2,
            ["end=emitted"],
            "end=emitted needs tokens: a completion does not hold the end token",
        ),
        ([{"prompt": [], "tokens": [6]}] * 2, [], "line 1 has an empty prompt"),
    ],
)
def test_a_file_without_what_its_end_needs_is_one_sentence(tmp_path, capsys, lines, words, sentence):
    file = tmp_path / "theirs.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert main([f"generations={file}", "model=llama-tiny", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_end_token_where_none_may_be_is_one_sentence(tmp_path, capsys):
    file = tmp_path / "theirs.jsonl"
    stop = 2  # of llama-tiny
    file.write_text("\n".join([json.dumps({"prompt": [5], "tokens": [6, stop]})] * 2))
    assert main([f"generations={file}", "model=llama-tiny", "end=removed"]) == 2
    assert f"line 1 has the end token {stop}, but end=removed" in capsys.readouterr().err


def test_end_without_a_file_is_one_sentence(capsys):
    assert main(["end=removed"]) == 2
    assert "end= is an option of generations=FILE: give both" in capsys.readouterr().err


@pytest.mark.slow
def test_tokens_whose_end_was_removed_are_sound_if_the_command_says_so(tmp_path, capsys):
    """After this prompt llama-tiny ends four texts of five at once."""
    path = embedded.path("llama-tiny", "target")
    model: Any = AutoModelForCausalLM.from_pretrained(path).float()
    prompt = AutoTokenizer.from_pretrained(path)("a b c.")["input_ids"]
    torch.manual_seed(0)
    with torch.no_grad():
        ids = torch.tensor([prompt]).expand(3000, -1)
        out = model.generate(ids, do_sample=True, top_k=0, max_new_tokens=3, pad_token_id=2)
    texts = [[token for token in row[len(prompt) :] if token != 2] for row in out.tolist()]
    num_empty = sum(not text for text in texts)
    assert 2000 < num_empty < 2900
    for end, code in (("removed", 0), ("emitted", 1)):
        lines = [{"prompt": prompt, "tokens": text} for text in texts if text or end == "removed"]
        file = tmp_path / f"{end}.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        assert main([f"generations={file}", "model=llama-tiny", f"end={end}", "tv=0.4", f"out={tmp_path}"]) == code
    assert f"{num_empty} of 3000 texts end before their first token and say nothing" in capsys.readouterr().err
