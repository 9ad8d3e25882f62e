"""Laws (distributions over the vocabulary): warpers, excess, drawing, total variation.

A law is a float tensor [..., V], or int64 ids [...] with all mass on one token. Laws of float64 logits are float64; those of
smaller types are float32.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdbench.config import COLDEST

SLICE = 1 << 18  # elements of laws that a core processes at a time, at least one law: in float32 they fit in its cache
CHUNK = 1 << 24  # elements that another device processes at a time: temporaries below 64 MB in float32
CUT = 27.6  # nats: in `Warp.log_law` a token that is cut keeps a fraction of 1e-12 of its probability
LOWEST = -1e30  # in `Warp.log_law`, for logits of −∞
HEADS = 64, 2048  # numbers of largest logits that are sorted before all are: they decide nearly all cuts by top_p
BLOCK = 128  # logits of which the largest is found first, where only few of many are looked for
ROUNDING = {torch.float32: 3e-5, torch.float64: 1e-10}  # how far two sums of one law may differ


@dataclass(frozen=True, slots=True)
class Warp:
    """From logits to the law that is sampled: temperature, then top-k, then top-p, in transformers' order.

    Of tokens with equal logits on both sides of the cut, top-k keeps all, and top-p as many as transformers (see `nucleus`), where
    it depends on the processor which.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    vocab_size: int | None = None  # ids from this one on have no mass: they are padding of the embedding matrix

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if 0 < self.temperature < COLDEST:
            raise ValueError(f"temperature must be 0, or at least {COLDEST:g}, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1 or None, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] or None, got {self.top_p}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def used(self, logits: Tensor) -> Tensor:
        """Return the logits [..., V] of the used ids: the same tensor if all ids are used, otherwise a view."""
        has_more = self.vocab_size is not None and logits.shape[-1] > self.vocab_size
        return logits[..., : self.vocab_size] if has_more else logits

    def logits(self, logits: Tensor) -> Tensor:
        """Return un-tempered logits [..., V] of the used ids, in float32 or better."""
        return in_float32(self.used(logits))

    def law(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the law [..., V] of a model's logits, or ids [...] at temperature 0, which are V for NaN logits (`has_nan_law`).

        A law is written to `out` if given.
        """
        if self.is_greedy:
            logits = self.used(logits)  # without a copy in float32
            highest, ids = logits.max(-1)
            return ids.masked_fill(highest.isnan(), logits.shape[-1])

        def work(part: Tensor, out: Tensor | None = None) -> Tensor:
            return self._law(self._scale(part), out)

        logits = self.used(logits)
        if out is None and is_sliced(logits):
            out = logits.new_empty(logits.shape, dtype=law_dtype(logits.dtype))
        return by_slices(work, logits, out=out)

    def log_law(self, logits: Tensor) -> Tensor:
        """Return the logarithm of the law [..., V] above temperature 0, for losses: finite, and with a gradient at every token.

        The logit of a token that top-k or top-p cuts is lowered by CUT instead of set to −∞.
        """
        assert not self.is_greedy, "a law written as ids has no gradient"
        logits = self._scale(logits)
        is_cut = self._top_k(logits) == -torch.inf if self.top_p in (None, 1) else self._law(logits.detach()) == 0
        return torch.where(is_cut, (logits - CUT).clamp_min(LOWEST), logits).log_softmax(-1)

    def _scale(self, logits: Tensor) -> Tensor:
        """Return logits [..., V] of the used ids over the temperature."""
        logits = self.logits(logits)
        return logits if self.temperature == 1 else logits / self.temperature

    def _law(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the law [..., V] of tempered logits, which has no gradient."""
        logits = self._top_k(logits)
        if self.top_p is None or self.top_p == 1:
            return torch.softmax(logits, -1, out=out)
        is_cpu = logits.device.type == "cpu" and torch._C._get_tracing_state() is None
        return nucleus(logits, self.top_p, HEADS if is_cpu and logits.shape[-1] >= 2 * HEADS[-1] else (), out)

    def _top_k(self, logits: Tensor) -> Tensor:
        """Return tempered logits [..., V] with −∞ for the tokens that top-k cuts."""
        if self.top_k is None or self.top_k >= logits.shape[-1]:
            return logits
        return logits.masked_fill(logits < logits.topk(self.top_k).values[..., -1:], -torch.inf)


def nucleus(logits: Tensor, top_p: float, heads: Sequence[int] = (), out: Tensor | None = None) -> Tensor:
    """Return the law [..., V] of logits without the least likely tokens, whose total mass is at most 1 − top_p. Of tokens with
    equal logits those with the lowest ids are left out first.

    Without `heads` all logits are sorted. Otherwise only the largest are, first heads[0] of them. A row that these do not decide is
    treated with the other heads: if a token outside them may stay, or if rounding could move the cut.
    """
    if not heads:
        return torch.softmax(_cut_sorted(logits, top_p), -1, out=out)
    law = torch.softmax(logits, -1, out=out)
    rows, laws = logits.reshape(-1, logits.shape[-1]), law.view(-1, law.shape[-1])
    head, ids = _largest_first(rows, heads[0])
    share = laws.gather(-1, ids).double()
    before = share.cumsum(-1) - share  # the mass of more likely tokens
    count = (before < top_p).sum(-1, keepdim=True)  # number of tokens that stay; 0 if the row has a NaN
    last, first_out = (count - 1).clamp_min(0), count.clamp_max(heads[0] - 1)
    distance = torch.minimum(top_p - before.gather(-1, last), before.gather(-1, first_out) - top_p)
    is_decided = (head.gather(-1, last) > head[:, -1:]) & (distance > ROUNDING[logits.dtype])
    kept = head.masked_fill(torch.arange(heads[0]) >= count, -torch.inf).softmax(-1)
    laws.zero_().scatter_(-1, ids, kept)
    undecided = (~is_decided)[:, 0].nonzero()[:, 0]
    if len(undecided):
        laws[undecided] = nucleus(rows[undecided], top_p, heads[1:])
    return law


def _largest_first(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest logits [N, count] of rows [N, V] and their ids, of equal logits the one with the highest id first."""
    values, ids = _largest(rows, count)
    ids, order = ids.sort(descending=True)
    values, order = values.gather(-1, order).sort(descending=True, stable=True)
    return values, ids.gather(-1, order)


def _largest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest logits [N, count] of rows [N, V] and their ids, in any order.

    In a long row they are looked for in the `count` blocks with the largest maxima and in what is left over after the last block: a
    maximum takes a tenth of the time of `topk`.
    """
    size = rows.shape[-1]
    if size < 2 * count * BLOCK:
        return rows.topk(count, sorted=False)
    blocks = rows[:, : size // BLOCK * BLOCK].unflatten(-1, (-1, BLOCK))
    best = blocks.amax(-1).topk(count, sorted=False).indices[..., None]
    left_over = torch.arange(size // BLOCK * BLOCK, size).expand(len(rows), -1)
    ids = torch.cat([(best * BLOCK + torch.arange(BLOCK)).flatten(1), left_over], -1)
    values, order = rows.gather(-1, ids).topk(count, sorted=False)
    return values, ids.gather(-1, order)


def _cut_sorted(logits: Tensor, top_p: float) -> Tensor:
    """Return logits [..., V] with −∞ for the tokens that `nucleus` leaves out."""
    ordered, order = logits.sort(stable=True)
    drop = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    drop[..., -1] = False
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def law_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the laws of a model with this dtype."""
    return torch.promote_types(dtype, torch.float32)


def in_float32(logits: Tensor) -> Tensor:
    """Return logits in float32 or better."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def has_nan_law(ids: Iterable[int], vocab_size: int) -> bool:
    """Return whether one of the ids is V, which `Warp.law` and `draw` return for NaN logits."""
    return max(ids, default=0) >= vocab_size


def clamp_nan_ids(ids: Tensor, vocab_size: int) -> Tensor:
    """Return ids that are valid as indices: V, which stands for NaN logits, becomes V − 1."""
    return ids.clamp_max(vocab_size - 1)


def is_ids(law: Tensor) -> bool:
    """Return whether a law is written as ids, with all its mass on one token."""
    return not law.is_floating_point()


def dense(law: Tensor, vocab_size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the law as floats [..., V]."""
    if not is_ids(law):
        return law
    return torch.zeros(*law.shape, vocab_size, dtype=dtype, device=law.device).scatter_(-1, law[..., None], 1)


def at(law: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability [...] of tokens [...] under a law."""
    if is_ids(law):
        return (law == tokens).to(torch.float64)
    return law.gather(-1, tokens[..., None]).squeeze(-1)


def excess(p: Tensor, q: Tensor) -> Tensor:
    """Return norm((p − q)+) [..., V], or p where (p − q)+ vanishes to rounding."""
    return normalise((p - q).clamp_min_(0), p)


def normalise(mass: Tensor, fallback: Tensor) -> Tensor:
    """Divide masses [..., V] by their sum, in place; where there is no mass, the result is the law `fallback`."""
    total = mass.sum(-1, keepdim=True)
    vanishes = (total == 0).to(total)  # a product with it takes half the time of torch.where
    return mass.addcmul_(fallback, vanishes).div_(total + vanishes)


def draw(law: Tensor, u: Tensor) -> Tensor:
    """Draw by inverse CDF in float64: the first token [...] whose cumulative mass exceeds u·total, never one without mass.

    u [...] has at most 52 bits, so that u·total < total even after rounding. A law with a NaN, or without mass, gives V.
    """
    if law.device.type == "mps":  # it has no float64
        return draw(law.cpu(), u.cpu()).to(law.device)
    return by_slices(_draw, law, u)


def _draw(law: Tensor, u: Tensor) -> Tensor:
    cdf = law.to(torch.float64, copy=True).cumsum_(-1)  # in place: half the memory
    return torch.searchsorted(cdf, u[..., None] * cdf[..., -1:], right=True)[..., 0]


def rest_of(law: Tensor, u: Tensor, tokens: Tensor) -> Tensor:
    """Return the position of u [...] within its token's part of the cdf, where tokens [...] = draw(law, u). It is uniform in [0, 1)
    again and independent of the token. If all mass is on one token it is u.
    """
    if law.device.type == "mps":  # it has no float64
        return rest_of(law.cpu(), u.cpu(), tokens.cpu()).to(law.device)
    cdf = law.cumsum(-1, dtype=torch.float64)
    end, mass = (x.gather(-1, tokens[..., None])[..., 0].double() for x in (cdf, law))
    return ((u * cdf[..., -1] - (end - mass)) / mass).clamp(0, 1 - 2**-52)


def slice_size(device: str) -> int:
    """Return how many elements of laws are processed at a time, at least one law."""
    return SLICE * torch.get_num_threads() if device == "cpu" else CHUNK


def by_slices(work: Callable[..., Tensor], laws: Tensor, *more: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `work` of laws or logits [..., V] and of other tensors [...], computed in slices; `work` treats each law separately.

    On a CPU large temporaries cost more time than the arithmetic, because the system clears the memory of each. In a trace nothing
    is sliced, because the number of slices would be fixed. `out`, if given, is contiguous; `work` then gets a part of it as its
    last argument and writes there.
    """
    inputs = (laws, *more) if out is None else (laws, *more, out)
    if not is_sliced(laws):
        return work(*inputs)
    count = max(1, slice_size(laws.device.type) // laws.shape[-1])
    slices = zip(*(x.flatten(0, laws.ndim - 2).split(count) for x in inputs), strict=True)
    results = [work(*parts) for parts in slices]
    return torch.cat(results).view(*laws.shape[:-1], *results[0].shape[1:]) if out is None else out


def is_sliced(laws: Tensor) -> bool:
    """Return whether `by_slices` processes these laws in slices."""
    is_large = laws.numel() > max(slice_size(laws.device.type), laws.shape[-1])
    return is_large and torch._C._get_tracing_state() is None


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return ½ Σ|p − q| over the last axis; 1 − [equal] for laws written as ids."""
    if is_ids(p) and is_ids(q):
        return (p != q).to(torch.float64)
    if is_ids(p) or is_ids(q):
        ids, law = (p, q) if is_ids(p) else (q, p)
        return 1 - at(law, ids)
    return ((p - q).abs_().sum(-1) / 2).clamp(max=1)  # in float32 over many ids the sum is rounded
