"""sdbench.report: write report.html, figures/ and tables/ of results folders anew, from their records alone.

  python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS | speed=TIMES] [joint=true] [out=FOLDER]

  margin=POINTS   decide at another margin: the acceptable loss of quality, in points of 100 (default: that of the last run);
                  by task as 'margin={gsm8k: 1, cnndm: 0.5}'
  speed=TIMES     decide for a speed instead: the least loss at so many times the speed of the target alone, such as speed=1.5
  joint=true      of several folders: one setting that is safe on all of them, or where the nearest ones fail
  out=FOLDER      where to write (default: results/NAME; for several folders: beside them, named after them)

A FOLDER of `python -m sdbench.lm_eval … --output_path FOLDER` gives tables and a page of its evaluations, without a decision.

Exit codes: 0 done, 1 something unexpected happened, 2 bad configuration, 130 interrupted.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sdbench.subcommand import Exit, Subcommand
from sdbench.words import by_task, number, parse_words

HELP = f"{__doc__}"
OPTIONS = {"margin": "1", "speed": "1.5", "joint": "true", "out": "reports/mine"}


def run(words: Sequence[str], _compose: None) -> int:
    if not words:
        print(HELP, file=sys.stderr)
        return Exit.BAD_CONFIG
    given = parse_words(words, OPTIONS)
    if not given.paths:
        raise ValueError("name a results folder, such as results/NAME")
    from sdbench.report.build import worked_out, write
    from sdbench.report.evaluations import results_files
    from sdbench.report.page.facts import warning_lines

    files = {path: results_files(Path(path)) for path in given.paths}
    if any(files.values()):
        return report_evaluations(files, given.options)
    margin, speed = by_task(given, "margin"), number(given, "speed")
    if margin is not None and speed is not None:
        raise ValueError("margin= and speed= exclude each other: give one of them")
    joint = given.options.get("joint", "false")
    if joint not in ("true", "false"):
        raise ValueError(f"joint must be true or false, got {joint}")
    work = worked_out(given.paths, margin=margin, speed=speed, is_joint=joint == "true")
    for text in (*(advice.text for advice in work.advice), *work.together, *warning_lines(work.sweeps)):
        print(text, flush=True)
    try:
        report = write(work, given.options.get("out"))
    except OSError as error:
        reason = f"{error.filename or given.paths[0]} cannot be written ({error.strerror or error})"
        raise ValueError(f"{reason}: write out=FOLDER for another folder") from error
    names = sorted({path.stem for path in report.figures})
    print(f"tables:  {len(report.tables)} files: {report.tables[0]}, others beside it and in tables/")
    if names:
        print(f"figures: {len(names)} in {report.figures[0].parent}, each as pdf, svg and png: {', '.join(names)}")
    print(f"report:  {report.page}")
    return Exit.DONE


def report_evaluations(files: Mapping[str, Sequence[Path]], options: Mapping[str, str]) -> int:
    """Report the results files of lm_eval that each folder holds."""
    from sdbench.report.evaluations import evaluations_of, notes_of, write_evaluations

    if other := next((folder for folder, paths in files.items() if not paths), None):
        raise ValueError(
            f"{other} holds no evaluation of lm_eval, but another folder does: report them in two commands"
        )
    if other := next((name for name in options if name != "out"), None):
        raise ValueError(f"{other} needs the records of a run, which evaluations of lm_eval do not have: remove it")
    frame = evaluations_of(path for paths in files.values() for path in paths)
    command = shlex.join(
        ["python", "-m", "sdbench.report", *files, *(f"{name}={value}" for name, value in options.items())]
    )
    report = write_evaluations(Path(options.get("out", next(iter(files)))), frame, command)
    for note in notes_of(frame):
        print(note)
    print(f"tables:  {', '.join(map(str, report.tables))}")
    print(f"report:  {report.page}")
    return Exit.DONE


COMMAND = Subcommand("sdbench.report", lambda _: HELP, run, mistakes=(ValueError, OSError))
