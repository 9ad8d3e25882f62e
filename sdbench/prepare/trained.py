"""Heads and drafts that were trained for the run's pair: `verifier.head=trained:TASK`, `model.distilled=LOSS`, a drafter's
head.

They are read from below results/, where the trainings write them; some heads ship with the package. For a missing one a
ConfigError names the command that trains it.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from sdbench import embedded
from sdbench.config import FAMILIES, LENGTH_OPTIONS, Component, ConfigError, RuleSweep, Run, config_dir
from sdbench.prepare.distilled import DRAFT_CARD
from sdbench.prepare.progress import warn

RESULTS = Path("results")  # the default folder of the trainings
TRAINED = "trained:"
HEAD_CARD, COURSE = "head.json", "training.json"
OF_TRAINING = (COURSE, "*.ckpt", "*.part", "states/*")  # files of the training in a head's folder, not part of the head
SUBCOMMANDS: Mapping[str, str] = {
    "heads": "ensemble",
    "judges": "judge",
    "drafts": "draft",
    **{f"drafters/{kind}": kind for kind in ("medusa", "mtp", "eagle", "eagle3", "block")},
}  # folder below results/ -> subcommand of sdbench.train that writes it
WITHOUT_TRAIN_SPLIT: Mapping[str, str] = {"humaneval": "mbpp"}  # a task -> a similar one to train on
GATE, GATES = "gate", "gates"  # the subcommand that trains a gate, and the folder with gates by class of drafter
USUAL_NUM_DRAFT = 5  # default of configs/run.yaml, and of the trainings of medusa and block
LENGTHS: Mapping[str, str] = {"drafters/medusa": "heads", "drafters/block": "positions"}  # options: the longest block


def with_trained(run: Run) -> Run:
    """Return the run with a folder in place of each of these options. Reads only small files and imports no large library, so
    that it fails early.
    """
    return replace(
        _with_draft(run),
        verifiers=tuple(_with_heads(run, sweep) for sweep in run.verifiers),
        drafters=tuple(with_drafter_head(run, drafter) for drafter in run.drafters),
    )


def _with_heads(run: Run, sweep: RuleSweep) -> RuleSweep:
    """Return the sweep with the folder of a head in place of trained:TASK."""
    kinds = {knob.name: knob.trained for knob in sweep.knobs if knob.trained}
    settings = tuple(
        {
            name: _folder(run, f"verifier.{name}", kinds[name], value.removeprefix(TRAINED))
            if name in kinds and isinstance(value, str) and value.startswith(TRAINED)
            else value
            for name, value in setting.items()
        }
        for setting in sweep.settings
    )
    return replace(sweep, settings=settings)


def with_drafter_head(run: Run, drafter: Component) -> Component:
    """Return a trained drafter with the folder of its head and of its gate, where the option is null or trained:TASK."""
    options = dict(drafter.options)
    for option, kind in kinds_of(drafter).items():
        head = options.get(option)
        if head is None or (isinstance(head, str) and head.startswith(TRAINED)):
            task = run.task.name if head is None else head.removeprefix(TRAINED)
            options[option] = _folder(run, f"drafter.{option}", kind, task, drafter)
    return replace(drafter, options=options)


def kinds_of(drafter: Component) -> dict[str, str]:
    """Return the options of a drafter that name something trained, each with its folder below results/."""
    kinds = {"head": f"drafters/{drafter.name}"} if f"drafters/{drafter.name}" in SUBCOMMANDS else {}
    if drafter.options.get("length") == GATE:
        kinds["length_head"] = f"{GATES}/{class_name(drafter)}"
    return kinds


def class_name(drafter: Component) -> str:
    """Return the name of a gate's folder: the class of its drafter."""
    return str(drafter.target).rpartition(".")[2]


def _folder(run: Run, option: str, kind: str, task: str, drafter: Component | None = None) -> str:
    """Return the folder of the head for this temperature, else the one that the training writes by default, else the shipped one.

    `option` is the name used in messages. A gate belongs to one temperature and one drafter.
    """
    is_gate = kind.startswith(GATES)
    model = target_name(run) if kind.startswith("drafters/") else run.model.name
    at = f"-T{run.temperature:g}"
    name = f"{model}-{task}"
    usual = RESULTS / kind / (name + at * is_gate)
    shipped = Path(str(embedded.__file__)).parent / kind / model / (task + at * is_gate)
    if not task.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(
            f"trained:{task} names no task: give trained:{run.task.name}, or the folder itself as {option}=FOLDER"
        )
    torn = None
    for folder in (usual.with_name(name + at), usual, shipped):
        if (folder / HEAD_CARD).is_file():
            if torn is not None:
                warn(f"the training in {torn} is not finished (no {HEAD_CARD}): the head in {folder} is used instead")
            return str(folder)
        torn = folder if folder.exists() else torn
    more = _length_words(run, kind)
    if is_gate and drafter is not None:
        more += [*words_of(drafter), f"temperature={run.temperature:g}"]
    more += [] if kind.startswith("drafters/") else _quantization_words(run)
    missing = "no gate was trained for" if is_gate else "no head was trained for"
    raise ConfigError(
        f"{missing} model={run.model.name} on task={task} ({usual} has no {HEAD_CARD}): "
        f"{_advice(run, kind, task, *more, then=option + '=trained:{}')}"
    )


def _length_words(run: Run, kind: str) -> list[str]:
    """Return the option with which a training fits the run's draft length; none if the default does."""
    longest = max(run.num_draft)
    if kind.startswith("drafters/"):  # mtp, eagle and eagle3 draft any number
        return [f"{LENGTHS[kind]}={longest}"] if kind in LENGTHS and longest > USUAL_NUM_DRAFT else []
    return [f"num_draft={longest}"] if len(run.num_draft) == 1 and longest != USUAL_NUM_DRAFT else []


def _quantization_words(run: Run) -> list[str]:
    """Return the options of the run that quantise its models."""
    model = run.model
    kinds = {"quantization": model.quantization, "draft_quantization": model.draft and model.draft_quantization}
    return [f"model.{option}={kind}" for option, kind in kinds.items() if kind is not None]


def words_of(drafter: Component) -> list[str]:
    """Return the options of a command that select this drafter, without its length policy."""
    options = {key: value for key, value in drafter.options.items() if key not in LENGTH_OPTIONS and value is not None}
    return [f"drafter={drafter.name}", *(f"drafter.{key}={value}" for key, value in options.items())]


def target_name(run: Run) -> str:
    """Return the name of the target alone: a drafter trained on its states works with any draft, or none."""
    target = run.model.target
    if target.startswith("embedded:"):
        return target.removeprefix("embedded:").partition("/")[0]
    return Path(target.rpartition(":")[2]).name.removesuffix(".gguf")


def _with_draft(run: Run) -> Run:
    """Return the run with the distilled draft in place of the draft."""
    model = run.model
    if model.distilled is None:
        return run
    folder = RESULTS / "drafts" / f"{model.pair}-{run.task.name}-{model.distilled}"
    if not (folder / DRAFT_CARD).is_file():
        then = f"model.draft={folder.parent}/{model.pair}-{{}}-{model.distilled} in place of model.distilled"
        raise ConfigError(
            f"no draft was distilled for model={model.pair} on task={run.task.name} ({folder} has no {DRAFT_CARD}): "
            f"{_advice(run, 'drafts', run.task.name, f'loss={model.distilled}', then=then)}"
        )
    return replace(run, model=replace(model, draft=str(folder), draft_revision=None))


def _advice(run: Run, kind: str, task: str, *more: str, then: str) -> str:
    """Return the command of the training; if the task has no rows to train on, on another task, whose name goes into `then`."""
    family = next((name for name in FAMILIES if task.startswith(f"{name}-")), None)
    member = task if family is None else task.removeprefix(f"{family}-")
    other = WITHOUT_TRAIN_SPLIT.get(member)
    if family is not None and other is None:
        other = member if (config_dir() / "task" / f"{member}.yaml").exists() else "gsm8k"
    if other is None:
        return f"train one with {training(run, kind, task, *more)}"
    without_options = replace(run, task=replace(run.task, options={}))  # the other task may not have this protocol
    file = "" if family else f", or train on rows of your own with task={task} task.data=FILE"
    return (
        f"task={task} has no train split to train on; train one on another task with "
        f"{training(without_options, kind, other, *more)} and give {then.format(other)}{file}"
    )


def training(run: Run, kind: str, task: str, *more: str) -> str:
    """Return the command of a training, with the run's options where they are not the default."""
    model = run.model
    if (config_dir() / "model" / f"{model.pair}.yaml").exists():
        pair = [f"model={model.pair}"]
    else:
        pair = [
            f"model.{role}={'null' if (name := getattr(model, role)) is None else name}" for role in ("target", "draft")
        ]
    if kind != "drafts" and model.distilled is not None:
        pair.append(f"model.distilled={model.distilled}")
    protocol = run.task.options.get("protocol")
    words = [f"task.protocol={protocol}"] if protocol not in (None, _usual_protocol(task)) else []
    name = GATE if kind.startswith(GATES) else SUBCOMMANDS[kind]
    return shlex.join(["python", "-m", "sdbench.train", name, *pair, f"task={task}", *words, *more])


def _usual_protocol(task: str) -> object:
    path = config_dir() / "task" / f"{task}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")).get("protocol") if path.exists() else None
