"""Tasks of lm-evaluation-harness: `task=lm-eval:NAME` builds prompts, reads and scores answers with the harness's own objects.

A row is one of the data set that the harness's task names, as `gsm8k` has {"question": "...", "answer": "... #### 18"}; its id
is its number. Not covered: sampling settings of the harness's task (the run has its own), and whole-sample metrics that are
neither BLEU, chrF, chrF++, TER, a mean without NaN nor a share of all judgements of all answers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sdbench.config import ConfigError
from sdbench.config.checks import integer, number
from sdbench.errors import first_line
from sdbench.hub import COMMIT, fetch
from sdbench.tasks import harness, harness_files
from sdbench.tasks.base import DataTask, Row
from sdbench.tasks.data import read_even_rows
from sdbench.tasks.harness_api import check_library
from sdbench.tasks.harness_rows import ShotSource, fix_seeds, refuse_unused_shots
from sdbench.tasks.harness_scores import HarnessReading, MetricKind, check_bounds, kind_of, read_answers
from sdbench.tasks.prompting import LM_EVAL_SHOT_SEED, last_part
from sdbench.tasks.protocol import Fields, Protocol
from sdbench.types import Example, Metric, Prompt, Score

if TYPE_CHECKING:
    from sdbench.tasks.sandbox import Sandbox

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # as the harness prefers them
LENGTH = 256  # of an answer, where the task's file gives none
SHOTS = "shots_data"  # the split of the rows of this option, where the harness would draw from the evaluated ones


@dataclass(kw_only=True)
class LmEvalTask(DataTask):
    """A `generate_until` task. Metrics are named as in the harness, with the filter after a comma where there are several."""

    task: str | None = None
    include_path: str | None = None
    headline: str | None = None
    bounds: Mapping[str, Sequence[float] | None] | None = None
    multiturn: bool = True
    system: str | None = None
    sandbox: str = "auto"
    timeout_s: float = 3.0
    workers: int = 2
    first_row: Row | None = field(init=False, default=None)  # a scoring process builds the task from this row only

    PROTOCOLS: ClassVar[Mapping[str, Protocol]] = {"lm-eval": Protocol(ask="", max_new_tokens=LENGTH)}
    WORDS: ClassVar[tuple[str, ...]] = ("task", "include_path", "headline", "system")
    scores_rows = True

    def __post_init__(self) -> None:
        if not self.task:
            raise ConfigError("task=lm-eval needs the name of a task of lm-evaluation-harness: task=lm-eval:gsm8k")
        if self.pad_to is not None:
            raise ConfigError(
                f"task.pad_to={self.pad_to} does not apply to tasks of lm-evaluation-harness, which build their prompts: remove it"
            )
        check_library()
        number("timeout_s", self.timeout_s, 0, math.inf, is_open=True)
        self.workers = integer("workers", self.workers, 1)
        harness.refuse_undecoded(self.task, self._tree)
        if self.shots and self._tree.get("num_fewshot") == 0:
            raise ConfigError(
                f"task.shots={self.shots} has no effect: the file of {self.task} sets num_fewshot: 0, which lm_eval never "
                "overrides; leave it out, or set another number in a copy of the file (task.include_path=)"
            )
        if self.shots_data is not None:
            refuse_unused_shots(self.task, str(self.shots_data), self._tree, has_data=self.data is not None)
        self.dataset = str(self._tree.get("dataset_path") or self.task)
        self.dataset_config = self._tree.get("dataset_name")
        self.first_row = next(iter(self.rows.values()))
        self.metrics = self._declare_metrics()
        super().__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_file": self._file}

    def _declare_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics that can be stored, the headline first."""
        assert self.first_row is not None, "rows are read before answers are scored"
        names = self._read([(self.first_row, "")])[0].items
        if isinstance(self.bounds, Mapping):
            self.bounds = {str(name): ends for name, ends in self.bounds.items()}  # such as 4096 in RULER
        check_bounds(self.bounds, names, str(self.task))
        if not (kinds := self._kinds):
            raise ConfigError(
                f"no metric of {self.task} can be stored per answer ({', '.join(names) or 'it has none'}): give one the line "
                "`aggregation: mean` in a copy of the task's file (task.include_path=), over rows of one length for tasks of RULER"
            )
        if left_out := [name for name in names if name not in kinds]:
            warnings.warn(f"{self.name}: cannot store {', '.join(left_out)} per answer: left out", stacklevel=2)
        headline = next(iter(kinds)) if self.headline is None else str(self.headline)
        if headline not in kinds:
            raise ConfigError(
                f"headline must be a metric of {self.task} that sdbench can store ({', '.join(kinds)}), got {headline}"
            )
        return tuple(kinds[name].metric for name in sorted(kinds, key=lambda name: name != headline))

    @property
    def metric(self) -> str:  # type: ignore[override] - known once its task is built
        return self.metrics[0].name

    # Rows and prompts

    @cached_property
    def _file(self) -> Path:
        return harness_files.file_of(str(self.task), self.include_path)

    @cached_property
    def _tree(self) -> Mapping[str, Any]:
        return harness.read_file(self._file)

    @cached_property
    def _object(self) -> Any:
        """The harness's task, with the whole data set, or in a scoring process with its first row only."""
        self._run_code_here()  # modules of code tasks run a program when they are imported
        if self.first_row is not None:
            return self._build([self.first_row], process_docs=None, fewshot_config=None, num_fewshot=0)
        shots: dict[str, Any] = {} if self.shots is None else {"num_fewshot": integer("shots", self.shots, 0)}
        if self.data is not None:
            return self._build(read_even_rows(Path(self.data)), **shots)
        return fetch(lambda: harness.build(str(self.task), self._file, **shots), self.dataset, kind="dataset")

    def _build(self, rows: Sequence[Row], **changes: Any) -> Any:
        """Build the harness's task over given rows; shots come from its file, else from `shots_data`, else from the other rows."""
        import datasets

        pool = rows if self.shots_data is None else read_even_rows(Path(self.shots_data), "task.shots_data")
        named = {kind: self._tree.get(f"{kind}_split") for kind in ("training", "validation", "test", "fewshot")}
        split = named["test"] or named["validation"]
        shots = self._tree.get("fewshot_config") or {}
        shown = (
            shots.get("split") or named["fewshot"]
        )  # in the harness before `samples`, which are the shots themselves
        names = [name for name in (*named.values(), shown, SHOTS) if name is not None]
        splits = {
            name: datasets.Dataset.from_list([dict(row) for row in (rows if name == split else pool)]) for name in names
        }
        is_drawn = shown is not None or shots.get("samples") is None
        if is_drawn and changes.get("num_fewshot", self._tree.get("num_fewshot")):
            if self.shots_data is None:
                changes |= {"shots_split": split, "test_split": split}
            elif split == (shown or named["training"] or named["validation"] or split):
                changes["shots_split"] = SHOTS
        return harness.build(str(self.task), self._file, custom_dataset=lambda **_: splits, **changes)

    @property
    def rules(self) -> Protocol:
        config = self._object.config
        options, until = config.generation_kwargs, config.generation_kwargs.get("until") or ()
        return Protocol(
            source=f"lm-evaluation-harness {self.task} {self._object.VERSION}",
            ask="",
            num_shots=config.num_fewshot or 0,
            split=str(config.test_split or config.validation_split),
            max_new_tokens=int(next((options[name] for name in LENGTHS if options.get(name) is not None), LENGTH)),
            stop=tuple(text for text in ([until] if isinstance(until, str) else until) if text),
        )

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {str(index): row for index, row in enumerate(self._object.eval_docs)}

    @property
    def dataset_commit(self) -> str | None:
        """The commit of rows from the hub, which names the folder of the cache of `datasets`; None for other rows."""
        files = getattr(self._object.dataset.get(self.split), "cache_files", ())
        folders = (Path(file["filename"]).parent.name for file in files)
        return next(filter(COMMIT.fullmatch, folders), None)

    def fields(self, row: Row) -> Fields:
        """Return the reference only, as in the harness: the prompt is not made of fields."""
        target = self._object.doc_to_target(row)
        if isinstance(target, int) and self._object.config.doc_to_choice is not None:
            target = self._object.doc_to_choice(row)[target]
        return {"answer": "\n".join(map(str, target)) if isinstance(target, list) else str(target)}

    def prompt_of(self, key: str) -> Prompt:
        return self._prompts[key]

    @cached_property
    def _prompts(self) -> dict[str, Prompt]:
        """The prompts of all rows, built in order: shots are drawn in one random stream over the rows."""
        self._object.set_fewshot_seed(LM_EVAL_SHOT_SEED)
        try:
            with harness.quiet(), fix_seeds():
                self._object.build_all_requests(
                    apply_chat_template=self.chat,
                    fewshot_as_multiturn=self.multiturn,
                    chat_template=harness.prompt_of_turns if self.chat else None,
                    system_instruction=self.system,
                )
        except (AssertionError, ValueError) as error:  # from its samplers, where there are too few rows for the shots
            raise ConfigError(f"shots={self.shots} for {self.name}: {first_line(error)}") from None
        except harness.MISSING_COLUMN as error:
            raise harness.unread_rows(str(self.task), error) from None
        contexts = {str(instance.doc_id): instance.args[0] for instance in self._object.instances}
        return {key: each if isinstance(each, Prompt) else Prompt(text=each) for key, each in contexts.items()}

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """Shorten a prompt that is too long: the oldest shots that are turns go first, then its beginning is cut.

        The harness cuts the beginning of the rendered text, and with it the system turn; here that stays while the question fits.
        """
        if num_tokens(example.prompt) <= limit:
            return example
        return replace(example, prompt=last_part(example.prompt, num_tokens, limit), is_prompt_cut=True)

    @property
    def cut_rule(self) -> str:
        return "oldest shots first, then the end is kept" if self.chat and self.multiturn else "the end is kept"

    @property
    def shots_from(self) -> str:
        return str(ShotSource.of_file(self._tree))

    @property
    def draws_shots(self) -> bool:
        return bool(self.shots) and ShotSource.of_file(self._tree).order != "first"

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "multiturn": self.multiturn,
            "system": self.system,
            "harness": {
                "task": self.task,
                "version": self._object.VERSION,
                "files": harness_files.digests_of(self._file),
                "metrics": [metric.to_json() for metric in self.metrics],
                **({"programs": "answer and test in one scope"} if self._tree.get("unsafe_code") else {}),
            },
        }

    # Scores

    @cached_property
    def _sandbox(self) -> Sandbox:
        from sdbench.tasks.sandbox import Sandbox

        return Sandbox(backend=self.sandbox, timeout_s=self.timeout_s, workers=self.workers)

    def _run_code_here(self) -> None:
        """Let the harness's code_eval, of which there is one for all tasks, run programs in the sandbox of this task."""
        harness.CODE_EVAL.run = lambda programs: self._sandbox.run(programs)

    @property
    def signatures(self) -> dict[str, str]:
        limits = f"{self.timeout_s:g} s a program, sandbox {self.sandbox}"
        return {metric.name: limits for metric in self.metrics} if self._tree.get("unsafe_code") else {}

    def environment(self) -> dict[str, Any]:
        facts = super().environment() | {"lm_eval": package_version("lm_eval")}
        return facts | (self._sandbox.record() if self._tree.get("unsafe_code") else {})

    @cached_property
    def _kinds(self) -> dict[str, MetricKind]:
        """Return how each metric is stored, from the results of an empty answer to the first row."""
        assert self.first_row is not None, "rows are read before answers are scored"
        items = self._read([(self.first_row, "")])[0].items
        kinds = {name: kind_of(self._object, name, item, self.bounds or {}) for name, item in items.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def _read(self, answers: Sequence[tuple[Row, str]]) -> list[HarnessReading]:
        self._run_code_here()
        with harness.quiet():
            return read_answers(self._object, answers)

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        readings = self._read([(example.row, self.until_stop(completion)) for example, completion in pairs])
        headline = self.metric.partition(",")[2]
        flags = {"is_uncontained": not self._sandbox.is_contained} if self._tree.get("unsafe_code") else {}
        return [
            Score(
                {name: kind.value(reading.items[name]) for name, kind in self._kinds.items() if name in reading.items},
                {
                    name: kind.statistics(reading.items[name])[1]
                    for name, kind in self._kinds.items()
                    if kind.statistics
                },
                {"is_extraction_failed": reading.is_unread(headline), **flags},
            )
            for reading in readings
        ]

    def measure(self, example: Example, text: str) -> Score:
        return self.measure_all([(example, text)])[0]
