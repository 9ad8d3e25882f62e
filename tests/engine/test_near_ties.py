"""Where lossless texts part from the target's own: near-ties of bfloat16 are rounding, a perturbed logit is a fault."""

import weakref

import pytest
import torch

import sdbench
from sdbench.cli import main
from sdbench.engines.native import margins
from sdbench.engines.native.decode import Decoder
from sdbench.engines.native.margins import PartingTexts, margins_of
from sdbench.lm.model import LM
from sdbench.metrics.summary import summarise
from sdbench.passes import near_ties
from sdbench.prepare import progress
from sdbench.report.sweep import sweeps_of
from tests.engine.models import tiny
from tests.patience import is_soon

PROMPT = list(range(5, 25))


def greedy(lm: LM, num: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(num):
        ids.append(int(lm.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@torch.inference_mode()
def partings(lm: LM, text: list[int]) -> dict[int, tuple[float, int]]:
    """{token: the margin of the best two logits there, and the second best}"""
    logits = lm.model(torch.tensor([PROMPT + text])).logits[0, len(PROMPT) - 1 : -1].float()
    best = logits.topk(2)
    return {
        at + 1: (float(v[0] - v[1]), int(i[1])) for at, (v, i) in enumerate(zip(best.values, best.indices, strict=True))
    }


def test_near_ties_of_bfloat16_are_rounding_and_other_tokens_are_not():
    lm = LM(tiny("llama").to(torch.bfloat16), capture="off")
    text = greedy(lm, 60)
    found = partings(lm, text)
    near, far = (choose(found, key=lambda token: found[token][0]) for choose in (min, max))
    texts = [PartingTexts(PROMPT, text, [*text[: token - 1], found[token][1], 7], token) for token in (near, far)] + [
        PartingTexts(PROMPT, text, text[:20], 21)
    ]
    (close, wide, ended), explained = margins_of(lm, texts)
    assert close <= explained < wide
    assert ended != ended
    assert wide == pytest.approx(found[far][0], abs=explained)


def test_a_forward_whose_shapes_disagree_explains_no_more_than_the_dtype(monkeypatch):
    lm = LM(tiny("llama").to(torch.bfloat16), capture="off")
    text = greedy(lm, 40)
    (_,), honest = margins_of(lm, [PartingTexts(PROMPT, text, [*text[:9], 7], 10)])
    forward = lm.forward
    bump = torch.zeros(lm.vocab_size).index_fill(0, torch.tensor([7]), 50.0)
    monkeypatch.setattr(lm, "forward", lambda ids, *more: forward(ids, *more) + bump * (ids.shape[1] > 1))
    (margin,), explained = margins_of(lm, [PartingTexts(PROMPT, text, [*text[:9], 7], 10)])
    with torch.inference_mode():
        largest = float(lm.model(torch.tensor([PROMPT + text])).logits.abs().max())
    assert honest <= explained <= 2 * 9 * largest * torch.finfo(torch.bfloat16).eps < 50
    assert margin > 0


@pytest.mark.parametrize("off", [1.0, 1.5, 2.0])
def test_blocks_that_are_off_by_a_logit_or_two_are_at_fault(off, monkeypatch):
    """The logits are as large as a real model's, so that this is within eight steps of bfloat16."""
    model = tiny("llama").to(torch.bfloat16)
    model.lm_head.weight.data.mul_(4)
    lm = LM(model, capture="off")
    text = greedy(lm, 60)
    near = {token: gap for token, gap in partings(lm, text).items() if gap[0] < off}
    token = max(near, key=lambda token: near[token][0])
    (_, second), forward = near[token], lm.forward
    bump = torch.zeros(lm.vocab_size).index_fill(0, torch.tensor([second]), off)
    monkeypatch.setattr(lm, "forward", lambda ids, *more: forward(ids, *more) + bump * (ids.shape[1] > 1))
    (margin,), explained = margins_of(lm, [PartingTexts(PROMPT, text, [*text[: token - 1], second], token)], rows=4)
    assert 0 < explained < margin < 2 * off


def test_rounding_of_a_batch_is_measured_in_a_batch(monkeypatch):
    """A kernel for many rows rounds as another does; blocks of one text equal single tokens."""
    lm = LM(tiny("llama").to(torch.bfloat16), capture="off")
    text = greedy(lm, 20)
    step = torch.finfo(torch.bfloat16).eps

    def scores(ids, *more):
        logits = torch.zeros(*ids.shape, lm.vocab_size)
        logits[..., 3] = 1 + step * (ids.numel() >= 16)
        return logits

    monkeypatch.setattr(lm, "forward", scores)
    texts = [PartingTexts(PROMPT, text, [*text[:9], 7], 10)]
    assert margins_of(lm, texts)[1] == 0
    assert margins_of(lm, texts, rows=4)[1] == pytest.approx(2 * step)


def test_rounding_is_measured_in_blocks_as_wide_as_those_of_the_run(monkeypatch):
    lm = LM(tiny("llama").to(torch.bfloat16), capture="off")
    text = greedy(lm, 20)
    step = torch.finfo(torch.bfloat16).eps

    def scores(ids, *more):
        logits = torch.zeros(*ids.shape, lm.vocab_size)
        logits[..., 3] = 1 + step * (ids.shape[1] >= 9)
        return logits

    monkeypatch.setattr(lm, "forward", scores)
    texts = [PartingTexts(PROMPT, text, [*text[:9], 7], 10)]
    assert margins_of(lm, texts, width=8)[1] == 0
    assert margins_of(lm, texts, width=9)[1] == pytest.approx(2 * step)


def test_texts_are_counted_while_their_margins_are_measured(monkeypatch, capsys):
    """64 texts of a real pair take seven minutes on two cores; rounding is measured first."""
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.01)
    lm, printed = LM(tiny("llama").to(torch.bfloat16), capture="off"), []
    text = greedy(lm, 20)
    texts = [PartingTexts(PROMPT, text, [*text[:9], 7], 10), PartingTexts(PROMPT, text, [*text[:4], 7], 5)]

    def slowly(measure):
        def measured(*parts, **shape):
            done = f"measuring near-ties: {clocked.pop(0)}/2 in "
            assert is_soon(lambda: printed.append(capsys.readouterr().err) or done in "".join(printed))
            return measure(*parts, **shape)

        return measured

    clocked = [0, 0, 1]
    for name in ("explained_margin", "margin_of"):
        monkeypatch.setattr(margins, name, slowly(getattr(margins, name)))
    margins_of(lm, texts)
    assert not clocked
    assert capsys.readouterr().err.startswith("measuring near-ties: 2/2 in ")


@pytest.fixture
def bumped(monkeypatch):
    """Blocks of several tokens prefer another token than single steps, now and then, once a decoder has begun.

    Clear the returned list before the next engine checks itself.
    """
    honest, stream, begun = LM.forward_hidden, Decoder.stream, []

    def forward_hidden(self, ids, *more, **options):
        logits, states = honest(self, ids, *more, **options)
        if begun and self.role == "target" and logits.shape[1] > 1:
            logits = logits.clone()
            logits[..., 11] += 60 * (ids % 5 == 0).to(logits.dtype)[:, -logits.shape[1] :]
        return logits, states

    def begin(self, *more):
        begun.append(self.engine)  # the engine has checked itself by now, and would refuse this model
        return stream(self, *more)

    monkeypatch.setattr(LM, "forward_hidden", forward_hidden)
    monkeypatch.setattr(Decoder, "stream", begin)
    return begun


@pytest.mark.slow
@pytest.mark.parametrize("is_timed", [True, False])
def test_a_lack_of_memory_where_texts_part_costs_neither_the_times_nor_the_page(
    is_timed, bumped, tmp_path, monkeypatch, capsys
):
    logits: list[weakref.ref] = []

    def fail(*_, **__):
        held = torch.zeros(9)
        logits.append(weakref.ref(held))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    def stop(*_):
        assert logits[0]() is None, "the latency pass needs the memory of what has failed"
        raise RuntimeError("no clock")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sdbench.prepare.progress._printed", set())
    monkeypatch.setattr(margins, "margins_of", fail)
    if not is_timed:
        monkeypatch.setattr("sdbench.engines.native.timing.latency_pass", stop)
    words = ["n=2", "max_new_tokens=24", "w=0.5", "dtype=bfloat16", "num_draft=7"]
    assert main([*words, "timing.examples=1", "timing.cells=1"]) == 1
    error = capsys.readouterr().err
    assert "it could not be measured where lossless texts part from the target's" in error
    (reason,) = [line for line in error.splitlines() if "out of memory" in line]
    assert reason.startswith(
        "sdbench: OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.; the traceback is in "
    )
    assert "Traceback" not in error
    folder = tmp_path / "results/llama-tiny-gsm8k-tiny"
    results = sdbench.read(folder)
    assert results.partings.empty
    assert results.timings.empty != is_timed
    assert ("sdbench: RuntimeError: no clock; the traceback is in " in error) != is_timed
    assert (folder / "summary.csv").is_file()
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_a_run_calls_a_perturbed_logit_a_fault_and_a_report_needs_no_model(bumped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "n=2",
        "max_new_tokens=24",
        "w=0.5",
        "timing=off",
        "dtype=bfloat16",
        "report=off",
        "batch_size=4",
        "num_draft=7",
    ]
    widths: list[int] = []
    honest = margins.explained_margin
    monkeypatch.setattr(
        margins, "explained_margin", lambda *parts, **shape: widths.append(shape["width"]) or honest(*parts, **shape)
    )
    main(words)
    assert widths == [8]
    printed = capsys.readouterr()
    assert "sdbench: FAULT: lossless K=7 equals the target alone in " in printed.err
    assert "and rounding in bfloat16 explains" in printed.err
    results = sdbench.read("results/llama-tiny-gsm8k-tiny")
    assert len(results.partings) in (1, 2)
    assert (results.partings["margin"] > results.partings["explained"]).any()
    (sweep,) = sweeps_of([results], [summarise(results, resamples=50)])
    (compared,) = sweep.equal_texts
    assert compared.is_fault
    assert compared.text in printed.err
    main(words)
    again = sdbench.read("results/llama-tiny-gsm8k-tiny").partings
    assert len(again) == len(results.partings), "measured once"
    bumped.clear()
    main([*words, "force=true"])
    forced = sdbench.read("results/llama-tiny-gsm8k-tiny").partings
    keys = ["cell", "example", "sample", "token"]
    assert forced[keys].equals(results.partings[keys])
    assert set(forced["epoch"]) == {1}, "measured again, though the new texts part at the same tokens"


@pytest.mark.slow
def test_repeating_a_command_measures_the_texts_that_are_left(bumped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(near_ties, "MOST", 2)
    words = ["n=3", "max_new_tokens=24", "w=0.5", "timing=off", "dtype=bfloat16", "report=off", "num_draft=7"]
    for num, left in ((2, 1), (3, 0), (3, 0)):
        bumped.clear()
        main(words)
        printed = capsys.readouterr().err
        assert len(sdbench.read("results/llama-tiny-gsm8k-tiny").partings) == num
        assert ("run the command again for the others" in printed) == bool(left)
        assert (f"the difference of logits was not measured for {left} of 3 texts" in printed) == bool(left)
