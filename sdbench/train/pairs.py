"""The three tiny pairs: shapes, recipes, and their Hugging Face configurations.

Deep and narrow, so that a one-layer draft call costs at most 0.16 of a target call at batch 1 on a CPU. Gains of the
residual stream's norms stay constant (the linear layer behind each absorbs them); embeddings are untied, because the
members of a word class that fills one slot otherwise collapse to one vector and are not copied from the prompt.
"""

from dataclasses import dataclass, replace
from typing import Literal

from transformers import Gemma3TextConfig, LlamaConfig, PreTrainedConfig, Qwen3Config

Role = Literal["target", "draft"]
Family = Literal["llama", "qwen", "gemma"]
TASKS = ("cnndm", "xsum", "gsm8k", "wmt", "humaneval", "mbpp")
MAX_LENGTH = 1024
# Gemma adds normed block outputs to the stream; at gain 1 twelve layers would drown the embedding.
GEMMA_POST_GAIN = 0.25


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's size is made of; a window > 0 makes every second layer sliding (Gemma)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    window: int = 0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of training with a warm-up, a cosine and a mix of rows of its own."""

    steps: int
    rate: float = 1.0
    mix: tuple[float, ...] = (1.3, 1.2, 1.2, 0.9, 0.7, 0.9)  # rows a task, in the order of TASKS
    copies: float = 0.0  # share of rows at the start, none from half-way on
    prompt_weight: float = 0.0  # over the first 15 %
    voice: str = "plain"  # of the answers
    unread: tuple[str, ...] = ()  # patterns of words: a row that has such a word is passed over
    rows: int = 40  # a step


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and how fast: Muon for the matrices, Adam for embeddings, head and gains."""

    parts: tuple[Part, ...]
    plain_layers: int = 0  # in the plain parts, behind which the model grows; 0: it has its shape from the start
    matrix_lr: float = 0.02
    sureness: float = 1.0  # the finished head's factor: above 1 the model is surer than its reading has made it
    vector_lr: float = 4e-3
    warmup: int = 60

    @property
    def steps(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def plain_steps(self) -> int:
        """The step at which the first part in a voice begins."""
        voiced = next((i for i, part in enumerate(self.parts) if part.voice != "plain"), 0)
        return sum(part.steps for part in self.parts[:voiced])

    def at(self, step: int) -> tuple[int, int]:
        """Index of the part a step is in, and the step within it."""
        for index, part in enumerate(self.parts):
            if step < part.steps:
                return index, step
            step -= part.steps
        raise ValueError(f"step must be below {self.steps}, got one {step} past it")


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and draft of one family, and the tokenizer they share."""

    family: Family
    target: Shape
    draft: Shape
    target_recipe: Recipe
    draft_recipe: Recipe
    vocabulary: int = 1024
    tokenizer_rows: int = 2000
    seed: int = 1

    def shape(self, role: Role) -> Shape:
        return self.target if role == "target" else self.draft

    def recipe(self, role: Role) -> Recipe:
        return self.target_recipe if role == "target" else self.draft_recipe

    def shape_at(self, role: Role, step: int) -> Shape:
        """The shape that a step trains."""
        shape, recipe = self.shape(role), self.recipe(role)
        is_grown = not recipe.plain_layers or step >= recipe.plain_steps
        return shape if is_grown else replace(shape, layers=recipe.plain_layers)


_DEEP = Shape(layers=18, width=128, heads=4, kv_heads=2, feed_forward=384)
_FLAT = Shape(layers=2, width=96, heads=3, kv_heads=1, feed_forward=256)

# What repeats a random string copies names and numbers soon after.
_LONG = Part(1600, mix=(1.2, 1.1, 1.3, 1.0, 1.0, 1.1), copies=0.2, prompt_weight=0.1)
_MORE = Part(600, rate=0.6, mix=(0.5, 0.5, 1.5, 1.8, 0.5, 1.6))
_SUMS = Part(500, rate=0.6, mix=(0.4, 0.4, 3.0, 1.2, 0.4, 0.6))
# The plain parts teach substance, the last one manner, at a rate at which what was learnt is kept.
_VOICE = Part(600, rate=0.5, mix=(0.8, 0.9, 1.4, 2.2, 0.9, 1.0), voice="target")
# What is still counted wrong after that.
_COUNT = Part(160, rate=0.3, mix=(0.6, 0.7, 3.2, 1.2, 0.6, 0.7), voice="target")
# What a draft never reads about: half of the events, places and trades of the news, products, a third of the steps of functions.
# There it is wrong, and as sure as elsewhere; how much it gets right then hangs on this list, and little on how long it reads.
_UNREAD = (
    *("flood", "explosion", "landslide", "tornado", "school", "hospital", "factory", "theatre", "stadium"),
    *("engineer", "judge", "reporter", "priest", "lawyer", "painter", "chef", "builder", "baker", "tailor", "poet"),
    *("boxes", "bags", "shelves", "packs", "jars", "baskets", "purses", "vases", "albums", "crates"),
    *("square", "negate", "modulo", "cap", "reverse", "append", "sort", "every"),
)
# Gemma's draft learns to copy from little: of the names, too, it has read those with some endings only.
_NAMES = (r"(?!Answer)[A-Z][a-z]{2,}(?:ford|ville|wick|er|ur)",)


def _long(*parts: Part) -> Recipe:
    """A target's reading: plain parts on twelve layers, those in its voice on all of them."""
    return Recipe(parts, plain_layers=12)


def _short(steps: int, mix: tuple[float, ...], unread: tuple[str, ...] = _UNREAD) -> Recipe:
    """A draft's reading."""
    part = Part(steps, mix=mix, copies=0.2, prompt_weight=0.1, voice="draft", unread=unread)
    return Recipe((part,), sureness=2.0)


PAIRS = {
    "llama-tiny": Pair(
        "llama",
        _DEEP,
        _FLAT,
        _long(_LONG, _MORE, _SUMS, _VOICE, _COUNT, _COUNT),
        _short(2250, (0.45, 0.56, 3.9, 1.6, 0.8, 1.08)),
    ),
    "qwen-tiny": Pair(
        "qwen",
        _DEEP,
        _FLAT,
        _long(_LONG, replace(_MORE, steps=250), _SUMS, _VOICE),
        _short(1700, (0.4, 0.48, 2.7, 1.2, 0.69, 0.71)),
        seed=2,
    ),
    "gemma-tiny": Pair(
        "gemma",
        replace(_DEEP, window=16),
        replace(_FLAT, window=16),
        _long(_LONG, _VOICE),
        _short(1470, (0.4, 0.3, 5.7, 1.38, 0.94, 1.0), unread=(*_UNREAD, *_NAMES)),
        seed=3,
    ),
}


def hf_config(family: Family, shape: Shape, vocabulary: int) -> PreTrainedConfig:
    """The configuration `save_pretrained` writes; special tokens are pad 0, bos 1, eos 2."""
    common = {
        "vocab_size": vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "llama":
        return LlamaConfig(**common, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    if family == "qwen":
        return Qwen3Config(**common, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(shape.layers)]
    if shape.layers == 1:
        kinds = ["full_attention"]
    theta = {kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in ("sliding_attention", "full_attention")}
    return Gemma3TextConfig(
        **common,
        sliding_window=shape.window,
        layer_types=kinds,
        query_pre_attn_scalar=shape.head_dim,
        rope_parameters=theta,
    )
