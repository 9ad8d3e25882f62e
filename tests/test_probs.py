"""Laws: what the warpers make of logits, what exceeds what, drawing by the inverse CDF, total variation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from sdbench import probs
from sdbench.probs import Warp, at, by_slices, dense, draw, excess, is_ids, total_variation

V = 5
steady = settings(deadline=None, derandomize=True)  # a loaded machine is no failure, and nothing depends on luck
LAST = 1 - 2.0**-52  # the largest uniform there is

weights = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=V, max_size=V).filter(lambda x: sum(x) > 1e-3)
uniform = st.integers(0, 2**52 - 1).map(lambda bits: bits * 2.0**-52)


def law(values):
    x = torch.tensor(values, dtype=torch.float64)
    return x / x.sum()


@steady
@given(weights, uniform)
def test_draw_is_the_inverse_cdf(values, u):
    """The token x with cdf(x−1) <= u < cdf(x), in exact arithmetic; never one without mass."""
    p = law(values)
    token = int(draw(p, torch.tensor(u, dtype=torch.float64)))
    assert p[token] > 0
    total = math.fsum(p.tolist())
    below = math.fsum(p[:token].tolist())
    assert below <= u * total + 1e-12
    assert u * total < below + p[token] + 1e-12


@pytest.mark.parametrize("u", [0.0, 2.0**-52, 0.5, LAST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_of_the_interval_meet_tokens_with_mass(u, dtype):
    p = torch.tensor([[0, 0.25, 0, 0.75, 0], [0, 0, 1, 0, 0], [1e-30, 0, 0, 0, 1e-30]], dtype=dtype)
    token = draw(p, torch.full((3,), u, dtype=torch.float64))
    assert (at(p, token) > 0).all()
    assert token.dtype == torch.int64


def test_a_large_vocabulary_in_float32_never_draws_past_its_end():
    p = torch.zeros(2, 262_208)
    p[:, :200_000] = torch.rand(2, 200_000)
    token = draw(p.softmax(-1) * (p > 0), torch.tensor([LAST, 0.0], dtype=torch.float64))
    assert token[0] < 200_000
    assert (p.gather(1, token[:, None]) > 0).all()


def test_a_law_that_holds_a_nan_or_no_mass_gives_v_and_no_other_row_minds():
    p, u = torch.rand(4, V, dtype=torch.float64), torch.full((4,), 0.4, dtype=torch.float64)
    wanted = draw(p, u)
    p[1, 3], p[3] = torch.nan, 0
    assert draw(p, u).tolist() == [wanted[0], V, wanted[2], V]


def test_draws_have_their_law():
    p, count = law([0.1, 0, 0.2, 0.3, 0.4]), 40_000
    u = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    share = draw(p.expand(count, V), u).bincount(minlength=V) / count
    assert share[1] == 0
    assert (share - p).abs().max() < 5 * math.sqrt(0.25 / count)


@steady
@given(weights, weights)
def test_excess_is_a_law_where_p_exceeds_q_and_p_where_nothing_does(a, b):
    p, q = law(a), law(b)
    r = excess(p, q)
    assert abs(float(r.sum()) - 1) < 1e-12
    over = (p - q).clamp_min(0)
    if over.sum() > 0:
        assert torch.allclose(r * over.sum(), over, atol=1e-12)
    assert torch.equal(excess(p, p), p)


@steady
@given(weights, weights)
def test_total_variation_is_half_the_distance_and_what_exceeds(a, b):
    p, q = law(a), law(b)
    tv = float(total_variation(p, q))
    assert abs(tv - float((p - q).clamp_min(0).sum())) < 1e-12
    assert abs(tv - float(total_variation(q, p))) < 1e-15
    assert 0 <= tv <= 1 + 1e-12


def test_total_variation_of_ids_is_that_of_their_one_hot_laws():
    a, b = torch.tensor([[0, 3], [1, 2]]), torch.tensor([[0, 1], [4, 2]])
    assert torch.equal(total_variation(a, b), total_variation(dense(a, V, torch.float64), dense(b, V, torch.float64)))
    p = torch.stack([torch.stack([law([1, 2, 3, 4, 5])] * 2)] * 2)
    for first, second in ((a, p), (p, a)):
        assert torch.allclose(total_variation(first, second), total_variation(dense(a, V, torch.float64), p))
    assert torch.equal(at(a, b), (a == b).double())
    assert is_ids(a)
    assert not is_ids(p)


def logits(seed=0, rows=6, size=23):
    return torch.randn(rows, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("top_p", [None, 0.9, 0.5, 1e-6, 1.0])
@pytest.mark.parametrize("top_k", [None, 1, 4, 100])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_warpers_are_those_of_transformers_in_their_order(temperature, top_k, top_p):
    scores = logits()
    scores[0, :5] = scores[0, 5]  # ties at the cut
    ids, wanted = torch.zeros(6, 1, dtype=torch.int64), scores.clone()
    wanted = TemperatureLogitsWarper(temperature)(ids, wanted) if temperature != 1 else wanted
    wanted = TopKLogitsWarper(top_k)(ids, wanted) if top_k else wanted
    wanted = TopPLogitsWarper(top_p)(ids, wanted) if top_p is not None and top_p < 1 else wanted
    law, wanted = Warp(temperature, top_k, top_p).law(scores), wanted.softmax(-1)
    assert torch.equal(law[1:], wanted[1:])
    assert torch.equal(law[0].sort().values, wanted[0].sort().values), "which of equal logits stay is not defined there"


@steady
@given(st.floats(0.05, 5), st.integers(1, 30), st.floats(0.01, 1))
def test_a_warped_law_sums_to_1_and_keeps_the_likeliest_token(temperature, top_k, top_p):
    scores = logits(3)
    p = Warp(temperature, top_k, top_p).law(scores)
    assert torch.allclose(p.sum(-1), torch.ones(6, dtype=torch.float64), atol=1e-12)
    assert torch.equal(p.argmax(-1), scores.argmax(-1))
    assert int((p > 0).sum(-1).max()) <= top_k


def test_greedy_is_the_likeliest_id_and_v_for_nan():
    scores = logits()
    scores[2, 7] = torch.nan
    ids = Warp(0.0).law(scores)
    assert ids.dtype == torch.int64
    assert ids[2] == scores.shape[1]
    assert torch.equal(ids[[0, 1, 3, 4, 5]], scores[[0, 1, 3, 4, 5]].argmax(-1))


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_laws_are_float32_or_better(given_dtype, wanted):
    warp = Warp(0.7, top_k=5)
    assert warp.law(warp.logits(logits().to(given_dtype))).dtype == wanted


def test_ids_of_the_padding_get_no_mass():
    warp = Warp(1.0, vocab_size=20)
    assert warp.law(warp.logits(logits())).shape[-1] == 20


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": math.nan}, "temperature must be at least 0, got nan"),
        ({"top_k": 0}, "top_k must be at least 1 or None, got 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\] or None, got 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\] or None, got 1.5"),
    ],
)
def test_bad_warpers_are_sentences(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Warp(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@steady
@given(
    st.integers(8, 200),
    st.sampled_from((0.05, 0.5, 0.9, 0.95, 0.999)),
    st.sampled_from((None, 1.0, 0.25)),  # logits are multiples of it: ties
    st.floats(0.1, 8),
    st.integers(0, 2**31),
)
def test_the_head_of_a_vocabulary_gives_what_a_full_sort_gives(dtype, size, top_p, step, spread, seed):
    logits = torch.randn(2, 3, size, dtype=dtype, generator=torch.Generator().manual_seed(seed)) * spread
    logits = logits if step is None else (logits / step).round() * step
    logits[0, 0, : size // 2] = -torch.inf
    logits[1, 2, 3] = torch.nan
    law, wanted = probs.nucleus(logits, top_p, (2, 4)), probs.nucleus(logits, top_p)
    assert torch.equal(law > 0, wanted > 0)
    torch.testing.assert_close(law, wanted, rtol=8 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


def test_one_row_of_logits_is_cut_as_a_batch_of_one():
    logits = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Warp(top_p=0.9).law(logits), Warp(top_p=0.9).law(logits[None])[0])


def test_a_row_is_sorted_whole_only_where_its_head_does_not_decide(monkeypatch):
    sizes, honest = [], probs._cut_sorted
    monkeypatch.setattr(probs, "_cut_sorted", lambda rows, top_p: (sizes.append(len(rows)), honest(rows, top_p))[1])
    logits = torch.zeros(4, 50_000)
    logits[:3, :100] = 12 + torch.randn(
        3, 100, generator=torch.Generator().manual_seed(0)
    )  # some .97 of the mass or more
    logits[1] = logits[1].bfloat16()  # many tokens have equal logits
    Warp(top_p=0.9).law(logits)
    assert sizes == [1], "a flat row alone"


@pytest.mark.parametrize("size", [255, 256, 257, 1024, 1100])
@pytest.mark.parametrize("step", [None, 1.0])
def test_the_largest_logits_are_found_by_blocks(size, step, monkeypatch):
    monkeypatch.setattr(probs, "BLOCK", 16)
    rows = torch.randn(40, size, generator=torch.Generator().manual_seed(size))
    rows = rows if step is None else rows.div(step).round().mul(step)
    rows[:8, : size - 5] = -torch.inf
    values, ids = probs._largest(rows, 8)
    assert torch.equal(values, rows.gather(-1, ids))
    assert torch.equal(values.sort(descending=True).values, rows.topk(8).values)
    assert all(len(set(row)) == 8 for row in ids.tolist())


def test_of_equal_logits_top_p_leaves_out_those_with_the_lowest_ids():
    scores = torch.full((1, 5000), -1e4)
    scores[0, [7, 40, 300, 4000]] = 1.0
    for heads in ((), (2, 8), (8,)):
        assert probs.nucleus(scores, 0.6, heads).nonzero()[:, 1].tolist() == [40, 300, 4000]


def test_distributions_without_a_common_token_are_at_distance_1_whatever_rounding_adds():
    half, generator = 76_000, torch.Generator().manual_seed(0)
    p, q = torch.zeros(2, 8, 2 * half).unbind()
    p[:, :half] = torch.randn(8, half, generator=generator).softmax(-1) * (1 + 5e-5)
    q[:, half:] = torch.randn(8, half, generator=generator).softmax(-1)
    assert (p - q).abs().sum(-1).div(2).min() > 1
    assert total_variation(p, q).tolist() == [1.0] * 8


@pytest.mark.parametrize(
    "warp", [Warp(1.0), Warp(0.3), Warp(1.0, top_k=4), Warp(0.7, top_p=0.5), Warp(1.0, vocab_size=20)]
)
def test_the_log_of_a_law_is_finite_and_has_a_gradient_at_every_token(warp):
    raw = logits()
    raw[0, 3] = -torch.inf  # of the model itself
    raw.requires_grad_(True)
    log_law = warp.log_law(raw)
    torch.testing.assert_close(log_law.exp(), warp.law(raw), rtol=0, atol=1e-11)
    assert bool(log_law.isfinite().all())
    for token in range(log_law.shape[-1]):
        (gradient,) = torch.autograd.grad(log_law[:, token].sum(), raw, retain_graph=True)
        assert bool(gradient.isfinite().all())
        assert bool((gradient[1:, token] > 0).all())


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4)])
@pytest.mark.parametrize("size", [1, 50, 64, 1000])  # elements at a time, of 23 ids
@pytest.mark.parametrize("warp", [Warp(), Warp(0.7, top_k=9, top_p=0.8, vocab_size=20)], ids=str)
def test_laws_and_draws_in_slices_are_those_of_the_whole(monkeypatch, shape, size, warp):
    raw = logits(rows=math.prod(shape)).view(*shape, -1)
    u = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    law = warp.law(raw)
    tokens, distance = draw(law, u), total_variation(law, law.flip(-1))
    monkeypatch.setattr(probs, "SLICE", size)
    assert torch.equal(warp.law(raw), law)
    assert torch.equal(draw(law, u), tokens)
    assert torch.equal(by_slices(total_variation, law, law.flip(-1)), distance)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_slice_has_at_most_so_many_elements_a_thread(monkeypatch, num_threads):
    sizes = []

    def work(laws):
        sizes.append(laws.numel())
        return laws

    monkeypatch.setattr(probs, "SLICE", 50)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    raw = logits(rows=7)
    assert torch.equal(by_slices(work, raw), raw)
    assert sum(sizes) == raw.numel()
    assert max(sizes) == 2 * 23 * num_threads  # two rows of 23 ids are 46 elements
