"""Run the jobs of a multirun through Hydra's launcher, possibly on other machines, and collect their exit codes."""

import re
import secrets
import sys
import traceback
from collections.abc import Sequence
from functools import partial

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from sdbench import config
from sdbench.cli.command import Command, collapse, expand
from sdbench.cli.compose import Composer, without_sweeps
from sdbench.errors import WITHOUT_FORCE, first_line
from sdbench.passes.slurm import batch_job
from sdbench.subcommand import Exit

ENDINGS = {1: "some cells failed", 2: "bad configuration", 130: "interrupted"}


def launch(composer: Composer, jobs: Sequence[Sequence[str]], command: Command, *, is_forced: bool) -> list[int]:
    """Run all jobs through Hydra's launcher and return the exit code of each. A job that fails does not stop the others."""
    cfg = composer.compose(without_sweeps(command.overrides), mode=RunMode.MULTIRUN)
    kind = cfg.hydra.launcher._target_.rpartition(".")[2]
    if kind == "LocalLauncher" and not cfg.hydra.launcher.gpus_per_node:
        _refuse_hidden_gpus()
    context = HydraContext(config_loader=composer.hydra.config_loader, callbacks=Callbacks(cfg))
    launch_id = batch_job() or f"launch {secrets.token_hex(8)}"  # a requeue of a batch job launches again
    task = partial(job, launch=launch_id, config_dir=command.config_dir)
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=cfg)
    lines = [[word for word in line if not word.startswith("hydra")] for line in jobs]
    logs = f"; what they say is below {cfg.hydra.sweep.dir}" if "submitit_folder" in cfg.hydra.launcher else ""
    print(f"sdbench: {len(lines)} job{'s' if len(lines) > 1 else ''}{logs}", file=sys.stderr)
    try:
        results = launcher.launch([expand(line) for line in lines], initial_job_idx=0)
    except KeyboardInterrupt:
        again = f", {WITHOUT_FORCE}" if is_forced else ""
        ends = "; submitted jobs go on until scancel ends them" if kind == "SlurmLauncher" else ""
        print(f"sdbench: to continue all jobs, run the whole command with -m again{again}{ends}", file=sys.stderr)
        raise
    except Exception as error:  # noqa: BLE001 - launchers raise the error of the first job that died
        again = f" ({WITHOUT_FORCE})" if is_forced else ""
        sentence = f"sdbench: a job died{name_of_job(error, lines)} ({type(error).__name__}: {first_line(error)})"
        print(f"{sentence}; the others go on: when they have ended, run the same command again{again}", file=sys.stderr)
        return [1]
    codes = [exit_code_of(result) for result in results]
    shared = set(lines[0]).intersection(*lines[1:]) if len(lines) > 1 else set()
    for line, code in zip(lines, codes, strict=True):
        if code:
            rest = " ".join(word for word in line if word not in shared)
            print(f"sdbench: {ENDINGS.get(code, f'code {code}')}: {rest}", file=sys.stderr)
    return codes


def job(cfg: DictConfig, *, launch: str, config_dir: str | None) -> int:
    """Run one job. The launcher imports this function by name, possibly on another machine. `launch`: an id of the multirun.
    `config_dir`: the folder of --config-dir, for the command that continues the job.
    """
    from sdbench.passes.job import run_job

    words = collapse([str(word) for word in HydraConfig.get().overrides.task])
    folder = [] if config_dir is None else ["--config-dir", config_dir]
    code = run_job(config.check(Composer.tree(cfg, words)), [*folder, *words], launch=launch)
    if code == Exit.INTERRUPTED:
        raise KeyboardInterrupt  # stops the launcher from starting the next job
    return code


def _refuse_hidden_gpus() -> None:
    """Raise if there is a GPU, which submitit's local launcher hides from jobs that do not ask for one."""
    import torch

    if torch.cuda.is_available():
        raise config.ConfigError(
            "hydra/launcher=submitit_local hides this machine's GPUs from the jobs: write hydra.launcher.gpus_per_node=1, with "
            "which all jobs use the first GPU at once, or leave the launcher out, and the jobs run one after another"
        )


def name_of_job(error: Exception, lines: Sequence[Sequence[str]]) -> str:
    """Return the pair and task of the job that an error of submitit gives by its index in the array, or "" if it gives none."""
    match = re.search(r"Job \d+(?:_(\d+))?\b", str(error))
    index = int(match[1] or 0) if match and (match[1] or len(lines) == 1) else len(lines)
    return f": {' '.join(lines[index])}" if index < len(lines) else ""


def exit_code_of(result: JobReturn) -> int:
    if result.status is JobStatus.COMPLETED:
        return int(result.return_value)
    error = result._return_value
    trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else str(error)
    print(f"sdbench: a job died: {' '.join(result.overrides or [])}\n{trace}", file=sys.stderr)
    return Exit.FAILED
