"""Retrieval from a frozen corpus: the index against a plain search, its cache, what is refused, and what is emitted."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sdbench
from sdbench.cli import compose_run, main
from sdbench.config import ConfigError
from sdbench.draft import NoDraft
from sdbench.draft import corpus as corpora
from sdbench.draft.corpus import BREAK, IndexedCorpus, refuse_corpus
from sdbench.files import digest_of_path
from sdbench.prepare.refuse import refuse_drafter_options
from sdbench.prepare.rules import build_parts
from sdbench.records import Cell, GenerationRecord, Rounds, Store
from sdbench.verify import Ensemble, Exact
from tests.draft.toys import word_tokenizer, words_of
from tests.engine.models import pair

TOKENS = st.lists(st.sampled_from([BREAK, 0, 1, 2]), min_size=1, max_size=80)
BIG = 1 << 20  # ids up to here: the index sorts by four tokens only


def agreements(tokens: list[int], ending: list[int]) -> dict[int, int]:
    """How many tokens before each position of a text agree with an ending."""
    lengths = {}
    for position in range(len(tokens)):
        length = 0
        while length < min(len(ending), position) and tokens[position - 1 - length] == ending[-1 - length]:
            length += 1
        lengths[position] = length
    return lengths


@settings(max_examples=200, deadline=None)
@given(TOKENS, st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3), st.integers(1, 1000))
def test_the_index_finds_what_a_plain_search_finds(tokens, ending, shortest, most):
    check_occurrences(tokens, ending, shortest, most)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0, 0, 0, BREAK, BIG]), min_size=60, max_size=80),
    st.lists(st.sampled_from([0, 0, 0, BIG]), min_size=5, max_size=12),
    st.sampled_from([1, 5, 6, 7, 8]),  # also more tokens than are sorted by
    st.integers(1, 4),
)
def test_what_agrees_longest_is_found_among_more_occurrences_than_are_taken(tokens, ending, shortest, most):
    check_occurrences(tokens, ending, shortest, most)


def check_occurrences(tokens: list[int], ending: list[int], shortest: int, most: int) -> None:
    found, agreed = IndexedCorpus.of_ids(np.array(tokens, dtype=np.int32)).occurrences(ending, shortest, most)
    lengths = agreements(tokens, ending)
    longest = max(lengths.values())
    if longest < shortest:
        assert (found, agreed) == ([], 0)
        return
    assert agreed == longest
    wanted = {position for position, length in lengths.items() if length == longest}
    assert set(found) <= wanted
    assert len(found) == len(set(found)) == len(range(0, len(wanted), -(-len(wanted) // most)))


def test_many_occurrences_are_taken_at_equal_steps_and_sorting_has_no_ties():
    tokens = np.array([1, 2] * 500, dtype=np.int32)
    found, agreed = IndexedCorpus.of_ids(tokens).occurrences([9, 1, 2], 1, 16)
    assert agreed == 2
    assert len(found) == 16
    order = IndexedCorpus.of_ids(np.zeros(50, dtype=np.int32)).order
    assert order.tolist() == list(range(50)), "equal contexts stand in the order of the text, the shortest first"


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "CACHE", tmp_path / "cache")
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(words_of([5, 6, 7, n % 61, 8, 5, 6, 9, 11, 12, n % 13]) for n in range(200)))
    return path


def test_a_corpus_is_built_once_and_again_for_other_texts_or_tokenizers(corpus, monkeypatch):
    tokenizer = word_tokenizer(61)
    first = IndexedCorpus.open(corpus, tokenizer)
    assert first.tokens[:4].tolist() == [5, 6, 7, 0]
    assert isinstance(first.order.base, np.memmap), "read where it lies on the disk"
    monkeypatch.setattr(IndexedCorpus, "of_ids", None)
    again = IndexedCorpus.open(corpus, tokenizer)
    assert (again.order == first.order).all()
    for path, other in ((corpus, word_tokenizer(61, range(61)[::-1])), (corpus.with_name("more.txt"), tokenizer)):
        path.write_text(corpus.read_text() + (" t1" if path != corpus else ""))
        with pytest.raises(TypeError):
            IndexedCorpus.open(path, other)


@pytest.mark.slow
def test_the_index_of_a_large_text_is_small_and_a_second_start_builds_nothing(tmp_path, monkeypatch):
    """Counts, not seconds: bytes for each token of the text, and calls of what builds."""
    monkeypatch.setattr(corpora, "CACHE", tmp_path / "cache")
    path, draw = tmp_path / "large.txt", random.Random(0)
    lines = (words_of(draw.choices(range(61), range(61, 0, -1), k=100)) for _ in range(10_000))
    path.write_text("\n".join(lines))
    calls: Counter[str] = Counter()
    for name in ("ids_of", "texts_of"):
        monkeypatch.setattr(corpora, name, counted(name, getattr(corpora, name), calls))
    tokenizer = word_tokenizer(61)
    first = IndexedCorpus.open(path, tokenizer)
    assert len(first.tokens) > 1_000_000
    size = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert size <= 64 * len(first.tokens)
    built = Counter(calls)
    assert built == {"ids_of": 1, "texts_of": 1}
    again = IndexedCorpus.open(path, tokenizer)
    assert calls == built, "the second start reads no text"
    assert all(isinstance(part.base, np.memmap) for part in (again.tokens, again.order))
    assert again.occurrences([5, 6], 1, 16) == first.occurrences([5, 6], 1, 16)


def counted(name: str, function: Any, calls: Counter[str]) -> Any:
    def call(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    return call


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_the_targets_and_do_not_depend_on_the_batch(corpus, temperature):
    target = pair("llama")[0]
    prompts = [[5, 6, 7, 8, 5, 6], [9, 11], [11, 12], [5], [8, 5, 6]]
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 16, "stop_ids": ()}
    texts = []
    for batch_size, order in ((1, 1), (3, 1), (32, -1)):
        engine = sdbench.Engine(target, None, word_tokenizer(61))
        drafter = engine.drafter("retrieval", engine.warp(temperature), {"corpus": str(corpus), "shortest": 1})
        decoded = sdbench.generate(
            None, None, prompts[::order], [Exact(), Ensemble(w=0.5)], keys=range(5)[::order], drafter=drafter,
            engine=engine, batch_size=batch_size, **options,
        )  # fmt: skip
        texts.append({(prompts[::order].index(prompts[g.prompt]), g.verifier): g.tokens for g in decoded})
        assert sum(len(g.draft_tokens or ()) for g in decoded) > 10
    in_order = {(n, v): text for (n, v), text in texts[2].items()}
    assert texts[0] == texts[1]
    assert sorted(in_order.values()) == sorted(texts[0].values())
    if temperature == 0:
        alone = sdbench.generate(target, None, prompts, [Exact()], drafter=NoDraft(), **options)
        assert [texts[0][n, 0] for n in range(5)] == [g.tokens for g in alone]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "drafter=retrieval: corpus must name a text file or a records folder, got None: give drafter.corpus=PATH"),
        (["drafter.corpus=/no/such/file"], "corpus=/no/such/file does not exist"),
        (["drafter.corpus={}/empty.txt"], "empty.txt is empty"),
        (["drafter.corpus={}"], "is a folder without recorded texts"),
        (["drafter.corpus={}/some.txt", "drafter.least=2"], r"least in \(0, 1\], got factor=2, least=2"),
        (["drafter.corpus={}/some.txt", "drafter.shortest=0"], "shortest must be from 1 to longest=16"),
    ],
)
def test_what_cannot_be_a_corpus_is_refused_before_weights(words, sentence, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "some.txt").write_text("t1 t2")
    run = compose_run(["drafter=retrieval", "model.draft=null", *(word.format(tmp_path) for word in words)])
    with pytest.raises(ConfigError, match=sentence):
        refuse_drafter_options(run, build_parts(run))


def test_the_texts_of_a_records_folder_are_a_corpus_for_their_own_tokenizer(tmp_path, monkeypatch, capsys):
    """The records are those of a run, and runs read them."""
    monkeypatch.setattr(corpora, "CACHE", tmp_path / "cache")
    words = ["task=gsm8k-tiny", "w=1", "n=2", "max_new_tokens=24", "timing=off", "report=off", f"results={tmp_path}"]
    assert main([*words, "model=llama-tiny", "drafter=lookup", "model.draft=null", "name=read"]) == 0
    texts = sorted(set(sdbench.read(tmp_path / "read").generations["text"]))
    retrieval = [*words, "drafter=retrieval", "model.draft=null", f"drafter.corpus={tmp_path / 'read'}"]
    assert main([*retrieval, "model=llama-tiny", "name=drafted"]) == 0
    results = sdbench.read(tmp_path / "drafted")
    assert results.generations["drafted"].sum() > 0
    [tokenizer] = {content["shown"]["tokenizer"] for content in results.cells["content"]}
    assert refuse_corpus(tmp_path / "read", object(), tokenizer) == tmp_path / "read"
    assert list(corpora.texts_of(tmp_path / "read")) == texts
    capsys.readouterr()
    assert main([*retrieval, "model=qwen-tiny", "name=refused"]) == 2
    assert f"corpus={tmp_path / 'read'} holds texts of another tokenizer" in capsys.readouterr().err


def test_only_a_run_refuses_its_folder_as_a_corpus(tmp_path, monkeypatch, capsys):
    """Its texts would change while they are read. A training and an audit write none there."""
    monkeypatch.setattr(corpora, "CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    words = ["model=llama-tiny", "task=gsm8k-tiny"]
    folder = "results/llama-tiny-gsm8k-tiny"
    quick = ["w=1", "n=1", "max_new_tokens=8", "timing=off", "report=off"]
    assert main([*words, *quick]) == 0
    retrieval = [*words, "drafter=retrieval", f"drafter.corpus={folder}"]
    capsys.readouterr()
    for more in ([], ["--plan"], [f"results={folder}/.."]):
        assert main([*retrieval, *quick, *more]) == 2
        sentence = f"drafter=retrieval: corpus={folder} is the folder of this run, whose texts change while it runs"
        assert sentence in capsys.readouterr().err
    assert main(["train", "gate", *retrieval, "max_new_tokens=1", "out=gate"]) == 2
    assert "max_new_tokens must be at least 2" in capsys.readouterr().err, "it gets as far as a later check"
    assert main(["audit", *retrieval, "claims=[law]", "out=audit"]) == 2
    assert "too many to enumerate; test the distribution by claims=[prefixes,pit]" in capsys.readouterr().err


def test_each_distinct_text_of_a_records_folder_is_read_once(tmp_path):
    tokenizer = word_tokenizer(61)
    cell = Cell("m", "t", "exact", 1, 0.0, {})
    with Store.open(tmp_path / "run", config={}, provenance={}) as store:
        store.add_cells([cell])
        rounds = Rounds([0], [0], [0])
        texts = ["t5 t6", "t5 t6", "t7"]
        store.append_generations(
            [
                GenerationRecord(cell.key, str(n), 0, 1, text, "eos", [5], [2], rounds, [])
                for n, text in enumerate(texts)
            ]
        )
    assert corpora.ids_of(corpora.texts_of(tmp_path / "run"), tokenizer).tolist() == [5, 6, BREAK, 7, BREAK]


def test_a_records_folder_is_keyed_by_its_distinct_texts(tmp_path, corpus, monkeypatch):
    """A run, a report or a compaction writes files there and adds no text: the keys of cells and the index stay."""

    def key_of(path) -> str:
        run = compose_run(["drafter=retrieval", "model.draft=null", f"drafter.corpus={path}"])
        return build_parts(run).drafters[0].files["drafter.corpus"]

    def write(*texts: str) -> None:
        with Store.open(folder, config={}, provenance={}) as store:
            store.add_cells([cell])
            records = [
                GenerationRecord(cell.key, text, 0, 1, text, "eos", [5], [2], Rounds([0], [0], [0]), [])
                for text in texts
            ]
            store.append_generations(records)
            store.compact()

    folder, tokenizer = tmp_path / "run", word_tokenizer(61)
    cell = Cell("m", "t", "exact", 1, 0.0, {})
    write("t5 t6", "t7")
    first, index = key_of(folder), IndexedCorpus.open(folder, tokenizer)
    write("t5 t6")
    (folder / "report.html").write_text("a page")
    assert key_of(folder) == first
    with monkeypatch.context() as patch:
        patch.setattr(IndexedCorpus, "of_ids", None)
        assert (IndexedCorpus.open(folder, tokenizer).tokens == index.tokens).all()
    write("t8")
    assert key_of(folder) != first
    assert len(IndexedCorpus.open(folder, tokenizer).tokens) > len(index.tokens)
    assert key_of(corpus) == digest_of_path(corpus), "a text file keeps its key"
