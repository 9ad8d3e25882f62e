"""python -m sdbench [run]: decode, time, score and report what a command line describes."""

from collections.abc import Sequence

from sdbench.config import ConfigError
from sdbench.subcommand import Compose, Exit, Subcommand, print_text


def run(words: Sequence[str], _compose: Compose) -> int:
    from sdbench.cli.command import parse
    from sdbench.cli.compose import Composer
    from sdbench.cli.help import listing

    command = parse(words)
    if command.show == "version":
        from sdbench import __version__

        print(f"sdbench {__version__}")
        return Exit.DONE
    if command.group is not None:
        print_text(listing(command.group, command.config_dir))
        return Exit.DONE
    composer = Composer(command.config_dir)
    jobs = composer.jobs(command)
    runs = [composer.run(job) for job in jobs]
    if command.show == "config":
        print_text(composer.yaml(jobs))
        return Exit.DONE
    if command.show in ("plan", "prefetch"):
        from sdbench.cli import plan

        for each in runs:
            plan.show(command.show, each)
        return Exit.DONE
    from sdbench.passes.job import run_job
    from sdbench.passes.track import check_login

    for each in runs:
        check_login(each)  # a missing library or login must fail before anything is decoded
    names_launcher = any(
        word.lstrip("+").startswith(("hydra/launcher", "hydra.launcher.")) for word in command.overrides
    )
    if len(jobs) == 1 and not command.is_multirun and not names_launcher:
        return run_job(runs[0], words)
    from sdbench.cli.launch import launch

    codes = launch(composer, jobs, command, is_forced=any(each.force for each in runs))
    return next((code for code in (Exit.INTERRUPTED, Exit.FAILED, Exit.BAD_CONFIG) if code in codes), Exit.DONE)


def help_text(_words: Sequence[str]) -> str:
    from sdbench.cli.help import text

    return text()


COMMAND = Subcommand("sdbench", help_text, run, mistakes=(ConfigError,), interrupted="interrupted")
