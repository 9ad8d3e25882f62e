"""The three tiny pairs: shapes, recipes, and their Hugging Face configurations.

The targets are deep and narrow, so that a call of the one-layer draft costs at most 0.16 of a target call at batch 1 on a CPU.
Gains of the residual stream's norms stay constant, since the linear layer after each norm can absorb them. Embeddings are untied,
because otherwise the words that can fill the same slot of a sentence collapse to one vector and are not copied from the prompt.
"""

from dataclasses import dataclass, replace
from typing import Literal

from transformers import Gemma3TextConfig, LlamaConfig, PreTrainedConfig, Qwen3Config

Role = Literal["target", "draft"]
Family = Literal["llama", "qwen", "gemma"]
TASKS = ("cnndm", "xsum", "gsm8k", "wmt", "humaneval", "mbpp")
MAX_LENGTH = 1024
# Gemma adds normed block outputs to the stream; with a gain of 1, those of twelve layers would be far larger than the embedding.
GEMMA_POST_GAIN = 0.25


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; with a window > 0 every second layer has sliding-window attention (Gemma)."""

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
class Phase:
    """A phase of training, with its own warm-up, cosine schedule and mix of rows."""

    steps: int
    rate: float = 1.0
    mix: tuple[float, ...] = (1.3, 1.2, 1.2, 0.9, 0.7, 0.9)  # weights of the tasks' rows, in the order of TASKS
    copies: float = 0.0  # share of copying rows at the start; none in the second half
    prompt_weight: float = 0.0  # over the first 15 %
    voice: str = "plain"  # the wording of the answers
    unread: tuple[str, ...] = ()  # patterns of words: a row with such a word is skipped
    rows: int = 40  # per step


@dataclass(frozen=True, slots=True)
class PairRecipe:
    """The phases and rates of one model: Muon for the matrices, Adam for embeddings, head and gains."""

    phases: tuple[Phase, ...]
    plain_layers: int = 0  # layers in the plain phases, after which the model grows; 0: all layers from the start
    matrix_lr: float = 0.02
    sureness: float = 1.0  # factor of the trained head: above 1 sharpens the distribution
    vector_lr: float = 4e-3
    warmup: int = 60
    exit_share: float = 0.0  # share of the losses at every second layer, with the model's own norm and head (LayerSkip)

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def plain_steps(self) -> int:
        """The step at which the first phase in a voice begins."""
        voiced = next((i for i, phase in enumerate(self.phases) if phase.voice != "plain"), 0)
        return sum(phase.steps for phase in self.phases[:voiced])

    def at(self, step: int) -> tuple[int, int]:
        """Return the index of a step's phase, and the step within this phase."""
        for index, phase in enumerate(self.phases):
            if step < phase.steps:
                return index, step
            step -= phase.steps
        raise ValueError(f"step must be below {self.steps}, got one {step} past it")


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and draft of one family, and the tokenizer they share."""

    family: Family
    target: Shape
    draft: Shape
    target_recipe: PairRecipe
    draft_recipe: PairRecipe
    vocabulary: int = 1024
    tokenizer_rows: int = 2000
    seed: int = 1

    def shape(self, role: Role) -> Shape:
        return self.target if role == "target" else self.draft

    def recipe(self, role: Role) -> PairRecipe:
        return self.target_recipe if role == "target" else self.draft_recipe

    def shape_at(self, role: Role, step: int) -> Shape:
        """Return the shape that is trained in a step."""
        shape, recipe = self.shape(role), self.recipe(role)
        is_grown = not recipe.plain_layers or step >= recipe.plain_steps
        return shape if is_grown else replace(shape, layers=recipe.plain_layers)


_DEEP = Shape(layers=18, width=128, heads=4, kv_heads=2, feed_forward=384)
_FLAT = Shape(layers=2, width=96, heads=3, kv_heads=1, feed_forward=256)

# A model that can repeat a random string soon copies names and numbers too.
_LONG = Phase(1600, mix=(1.2, 1.1, 1.3, 1.0, 1.0, 1.1), copies=0.2, prompt_weight=0.1)
_MORE = Phase(600, rate=0.6, mix=(0.5, 0.5, 1.5, 1.8, 0.5, 1.6))
_SUMS = Phase(500, rate=0.6, mix=(0.4, 0.4, 3.0, 1.2, 0.4, 0.6))
# The plain phases teach facts, the last one wording, at a rate at which the facts are kept.
_VOICE = Phase(600, rate=0.5, mix=(0.8, 0.9, 1.4, 2.2, 0.9, 1.0), voice="target")
# This phase reduces the counting errors that remain.
_COUNT = Phase(160, rate=0.3, mix=(0.6, 0.7, 3.2, 1.2, 0.6, 0.7), voice="target")
# Words that no training row of a draft contains: half of the events, places and trades of the news, products, a third of the steps
# of functions. At these words the draft is wrong but as confident as elsewhere, so this list determines its accuracy more than
# the training time does.
_UNREAD = (
    *("flood", "explosion", "landslide", "tornado", "school", "hospital", "factory", "theatre", "stadium"),
    *("engineer", "judge", "reporter", "priest", "lawyer", "painter", "chef", "builder", "baker", "tailor", "poet"),
    *("boxes", "bags", "shelves", "packs", "jars", "baskets", "purses", "vases", "albums", "crates"),
    *("square", "negate", "modulo", "cap", "reverse", "append", "sort", "every"),
)
# Gemma's draft learns copying from few rows, so its rows also lack names with these endings.
_NAMES = (r"(?!Answer)[A-Z][a-z]{2,}(?:ford|ville|wick|er|ur)",)


def _long(*phases: Phase) -> PairRecipe:
    """Return a target's recipe: the plain phases train twelve layers, those in its voice train all layers."""
    return PairRecipe(phases, plain_layers=12)


def _short(steps: int, mix: tuple[float, ...], unread: tuple[str, ...] = _UNREAD) -> PairRecipe:
    """Return a draft's recipe."""
    phase = Phase(steps, mix=mix, copies=0.2, prompt_weight=0.1, voice="draft", unread=unread)
    return PairRecipe((phase,), sureness=2.0)


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
    """Return the configuration that `save_pretrained` writes; special tokens are pad 0, bos 1, eos 2."""
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
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    if family == "llama":
        return LlamaConfig(**common, rope_parameters=rope)
    if family == "qwen":
        return Qwen3Config(**common, rope_parameters=rope)
    is_full = [bool(i % 2) or shape.layers == 1 for i in range(shape.layers)]
    return Gemma3TextConfig(
        **common,
        sliding_window=shape.window,
        layer_types=["full_attention" if full else "sliding_attention" for full in is_full],
        query_pre_attn_scalar=shape.head_dim,
        rope_parameters={kind: dict(rope) for kind in ("sliding_attention", "full_attention")},
    )
