"""python -m sdbench.train: read the options of a training, pass all others to the runner, report errors as one sentence."""

import errno
import fcntl
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sdbench.config import ConfigError, nearest, show
from sdbench.hub import HubError
from sdbench.imports import import_object
from sdbench.prepare.progress import warn
from sdbench.subcommand import Compose, Exit, Subcommand
from sdbench.train.failed_files import FailedFileError
from sdbench.train.options import OPTIONS, RECIPES, help_of, parse_recipe
from sdbench.train.recipes import TrainingRecipe
from sdbench.words import key_of, parse_words

HELP = """\
sdbench.train: train a head, a judge, a gate, a draft or a drafter for a pair and a task.

  python -m sdbench.train ensemble   the weight of the ensemble at each position (DIVERSED), by policy gradient
  python -m sdbench.train judge      a judge of the tokens that the lossless rule rejects, from mined labels
  python -m sdbench.train gate       a gate that estimates which drafts the target keeps (drafter.length=gate)
  python -m sdbench.train draft      the pair's draft, distilled towards its target
  python -m sdbench.train pruned     a draft of some of the target's layers, healed on the target's own answers
  python -m sdbench.train medusa     heads on the target's states that draft (drafter=medusa)
  python -m sdbench.train mtp        a layer that drafts from the target's states, then from its own (drafter=mtp)
  python -m sdbench.train eagle      the same, trained to give the target's states (drafter=eagle)
  python -m sdbench.train eagle3     the same on states of three of the target's layers (drafter=eagle3)
  python -m sdbench.train block      layers that draft a whole block in one forward (drafter=block)
  python -m sdbench.train TRAINING --help

drafter=medusa names that training too. A training that was interrupted continues when the same command is run again.
Exit codes: 0 done, 1 a fault, 2 bad configuration, 130 interrupted. docs/learned.md describes each training.
"""
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # as of network file systems
TINY = "the tiny pairs are trained from scratch in a checkout of the repository, by python scripts/train_tiny.py"


def run(words: Sequence[str], compose: Compose) -> int:
    """Run the training that the words name."""
    name, rest = split_name(words)
    if name == "tiny":
        raise ConfigError(TINY)
    if name not in RECIPES:
        raise ConfigError(f"the training cannot be {show(name) or 'empty'} {nearest(name, RECIPES)}")
    try:
        _train(name, rest, compose)
    except FailedFileError as error:
        print(f"sdbench.train: {error}", file=sys.stderr)
        return Exit.FAILED
    return Exit.DONE


def split_name(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the training and the other words. The name is the first word or, without one, the value of drafter=."""
    drafters = [word for word in words if word.startswith("drafter=")]
    if drafters and words[0] not in RECIPES and "=" in words[0]:
        return drafters[0].partition("=")[2], [word for word in words if word != drafters[0]]
    return (words[0], words[1:]) if words else ("", ())


def help_text(words: Sequence[str]) -> str:
    name, _ = split_name(words)
    return help_of(name) if name in RECIPES else HELP


COMMAND = Subcommand("sdbench.train", help_text, run, mistakes=(ConfigError, HubError))


def _train(name: str, argv: Sequence[str], compose: Compose) -> None:
    recipe, options, words = parse(name, argv)
    from sdbench.prepare.trained import class_name, target_name
    from sdbench.train.setup import TrainingSetup, run_of

    words = with_temperature(words, recipe)
    run = run_of(words, recipe, compose)
    model = run.model.name if recipe.needs_draft else target_name(run)
    names = {"MODEL": model, "TASK": run.task.name, "LOSS": getattr(recipe, "loss", "")}
    names |= {"DRAFTER": class_name(run.drafters[0]), "TEMPERATURE": f"{run.temperature:g}"}
    folder = re.sub("|".join(names), lambda name: names[name[0]], recipe.folder)
    out = Path(options.get("out", f"results/{folder}"))
    if out.is_file() or (recipe.is_model and out.exists()):
        raise ConfigError(f"out={out} exists already: give another out=, or delete it")
    with lock(out):
        setup = TrainingSetup.make(run, words, recipe, reward=options.get("reward"))
        import_object(recipe.trainer)(setup, recipe, out)()
    print(out)


def with_temperature(words: Sequence[str], recipe: TrainingRecipe) -> list[str]:
    """Return the words with the training's usual temperature, unless they set one or name an experiment, which has its own."""
    if {"temperature", "decode", "experiment"} & set(map(key_of, words)):
        return list(words)
    return [*words, f"temperature={0 if recipe.is_greedy else 1}"]


def parse(name: str, argv: Sequence[str]) -> tuple[TrainingRecipe, dict[str, str], list[str]]:
    """Return the recipe of a training, all its options as text, and the other arguments, which go to the run."""
    examples = {name: show(f.default) for name, f in OPTIONS.items()} | {"out": "FOLDER", "reward": "METRIC"}
    try:
        given = parse_words(argv, examples, keeps_unknown=True)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return parse_recipe(name, given.options), dict(given.options), list(given.paths)


@contextmanager
def lock(out: Path) -> Iterator[None]:
    """Hold an exclusive lock on `out`; raise ConfigError if another training holds it, or the folder cannot be written to.

    A file system without locks is warned of.
    """
    path = out.with_name(f".{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115 - held until the end
    except OSError as error:
        raise ConfigError(f"out={out} cannot be written to ({error.strerror}): give another out=") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another training is writing to out={out}: give another out=, or wait") from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            warn(
                f"the file system of out={out} has no locks ({error.strerror}), so another training that writes there "
                "is not noticed: start no second one"
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
