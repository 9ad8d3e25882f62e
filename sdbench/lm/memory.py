"""Free memory, and a run's peak from shapes: no weights are read, and torch is not imported."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK = 512  # prompt tokens of a prefill call
ROOM = 512  # slots of a cache are multiples of it and grow by half: few copies, few repeated captures
KNOWN_BYTES = 256 << 20  # keys and values that a model keeps for prompts with the same beginning
SLICE, CHUNK_OF_LAWS = 1 << 18, 1 << 24  # elements of laws that a core, or a GPU, processes at a time (probs.py)
WORK = 6 * SLICE  # numbers of a rule's work on a slice, with temporaries


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The memory of a model: its weights, the keys and values of a token, and distributions over its vocabulary."""

    weights: float  # bytes
    token: int  # bytes of the keys and values of one token in all layers
    vocab_size: int
    width: int  # bytes per number of its dtype
    mode: str = "off"  # how its steps run (lm/capture.py)

    @classmethod
    def of(cls, config: Any, weights: float, width: int, mode: str = "off") -> "ModelShape":
        """Return the shape of a transformers configuration."""
        config = config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(weights, 2 * config.num_hidden_layers * heads * head_dim * width, config.vocab_size, width, mode)

    def cache(self, num_rows: int, length: int) -> int:
        """Return the bytes of a cache of rows of at most `length` tokens: with captured steps of a multiple of ROOM."""
        slots = length if self.mode == "off" else -(-length // ROOM) * ROOM
        return num_rows * (slots + 1) * self.token


@dataclass(frozen=True, slots=True)
class PeakBytes:
    """The parts of a run's peak memory."""

    weights: float
    cache: float  # keys and values of all rows, and of the prompt that is being prefilled
    laws: float  # logits and distributions of a round

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.laws


def peak_bytes(
    target: ModelShape,
    draft: ModelShape | None,
    *,
    num_rows: int,
    length: int,
    num_draft: int,
    temperature: float = 0.0,
    top_p: float | None = None,
    sorted_ids: int | None = None,
    keeps_logits: bool = False,
    keeps_prompts: bool = False,
    cache_share: float = 0.0,
    num_cores: int = 1,
    is_cpu: bool = True,
) -> PeakBytes:
    """Return the peak memory of a batch of `num_rows` texts, the longest with `length` tokens including its answer.

    draft None: a drafter without a model; num_draft 0: the target alone. sorted_ids: how many of the largest logits top_p sorts
    (None: all), which suffices unless a distribution is flat (probs.nucleus). keeps_logits: a rule reads un-tempered logits
    ("raw" in its needs, or "raw_if_greedy" at temperature 0). keeps_prompts: prompts are kept for others with the same
    beginning, as in a run. cache_share: what the drafter keeps itself, as a share of the target's keys and values. num_cores:
    of a CPU (is_cpu), each of which processes a slice of the distributions at a time. Not included are activations, about 0.1
    GiB for an 8B model, and what CUDA graphs of further KV lengths and numbers of rows keep: a round's distributions each.
    """
    tokens = [target.token, 0 if draft is None else draft.token, target.token * cache_share]
    models = [model for model in (target, draft) if model is not None]
    caches = sum(model.cache(num_rows, length + num_draft + 1) for model in models)
    caches += target.cache(num_rows, length + num_draft + 1) * cache_share + sum(tokens) * max(CHUNK, length)
    wide = max(4, target.width)  # laws are float32, or float64 if the model is
    is_sampled = temperature > 0
    kept = wide * is_sampled + target.width * keeps_logits  # bytes per slot and id, from the draft to the verdict
    # Models give logits in their own precision, and laws are computed from a slice of them at a time: it is copied to float32,
    # or divided by the temperature, in which the copy is freed.
    is_copied = target.width < wide or temperature != 1
    warped = wide * (is_sampled and is_copied)
    if is_sampled and top_p is not None and top_p < 1:
        if sorted_ids is None:
            warped += 4 * wide + 9  # a full sort: values, int64 ids, sums, the mask
        else:  # of rows that fewer logits do not decide, the logits and the law; of the sorted ones, values, ids and sums
            warped += 2 * wide + 40 * sorted_ids / target.vocab_size
    a_slot = num_rows * target.vocab_size
    at_once = a_slot * (num_draft + 1)
    if target.mode != "trace":
        most = SLICE * num_cores if is_cpu and target.mode != "graphs" else CHUNK_OF_LAWS
        at_once = min(at_once, max(target.vocab_size, most))
    held, judged = a_slot * num_draft * kept, a_slot * (num_draft + 1) * kept
    scoring = a_slot * (num_draft + 1) * (target.width + wide * is_sampled) + at_once * warped
    drafting = held + (num_draft > 0) * a_slot * (target.width + wide * is_sampled)
    judging = held + judged + (wide * WORK if kept else 0)
    # A graph keeps its temporaries, and its results are copied.
    laws = drafting + scoring + judging if target.mode == "graphs" else max(drafting, held + scoring, judging)
    # A prompt longer than that is kept, too, until the next one.
    known = keeps_prompts * sum(max(token * length, min(KNOWN_BYTES, token * num_rows * length)) for token in tokens)
    return PeakBytes(
        target.weights + (0 if draft is None else draft.weights),
        caches + known,
        laws,
    )


def free_system_bytes(root: Path = Path("/")) -> int:
    """Return the free memory of the system or, where that is less, of a control group that limits this process, as those of
    containers and of cluster jobs do. Cached pages of files count as free, since they give way.
    """
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([free, *(left for group in _control_groups(root) if (left := _free_in_group(group)) is not None)])


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that may limit this process's memory: its own, and those that hold it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):  # of version 2, or the one of version 1
            top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            group = top / path.lstrip(
                "/"
            )  # in a container it may be a path of the host, and the top be the container's group
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _free_in_group(group: Path) -> int | None:
    """Return the bytes that a control group's limit leaves; None without a limit."""
    for names in (
        ("max", "current", "stat"),
        ("limit_in_bytes", "usage_in_bytes", "stat"),
    ):  # of version 2, and of version 1
        try:
            limit, used, stat = ((group / f"memory.{name}").read_text() for name in names)
        except OSError:
            continue
        counts = dict(line.split() for line in stat.splitlines())
        cached = sum(int(counts.get(f"total_{name}", counts.get(name, 0))) for name in ("active_file", "inactive_file"))
        return None if limit.strip() == "max" else int(limit) - int(used) + cached
    return None
