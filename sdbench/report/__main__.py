"""python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS] [speed=TIMES] [out=FOLDER]"""

import sys
from collections.abc import Sequence

from sdbench.records import SchemaError
from sdbench.words import by_task, number, parse_words

USAGE = """usage: python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS | speed=TIMES] [joint=true] [out=FOLDER]

Writes report.html, figures/, tables/ and the summary's tables from the records alone, without decoding.

  margin=POINTS   decide at another margin: the acceptable loss of quality, in points of 100 (default: that of the last run);
                  by task as 'margin={gsm8k: 1, cnndm: 0.5}'
  speed=TIMES     decide for a speed instead: the least loss at so many times the speed of the target alone, such as speed=1.5
  joint=true      of several folders: one setting that is safe on all of them, or where the nearest ones fail
  out=FOLDER      where to write (default: results/NAME; for several folders: beside them, named after them)"""
OPTIONS = {"margin": "1", "speed": "1.5", "joint": "true", "out": "reports/mine"}


def main(arguments: Sequence[str]) -> int:
    """Write a report and return 0; or say in a sentence why not and return 2."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    from sdbench.report.build import worked_out, write

    try:
        words = parse_words(arguments, OPTIONS)
        if not words.paths:
            raise ValueError("name a results folder, such as results/NAME")
        margin, speed = by_task(words, "margin"), number(words, "speed")
        if margin is not None and speed is not None:
            raise ValueError("margin and speed are two questions: give one of them")
        joint = words.options.get("joint", "false")
        if joint not in ("true", "false"):
            raise ValueError(f"joint must be true or false, got {joint}")
        work = worked_out(words.paths, margin=margin, speed=speed, is_joint=joint == "true")
        for decision in (*work.advice, *filter(None, [work.joint])):
            print(decision.text, flush=True)
        report = write(work, words.options.get("out"))
    except (ValueError, OSError, SchemaError) as error:
        print(f"sdbench.report: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    names = sorted({path.stem for path in report.figures})
    print(f"tables:  {len(report.tables)} files: {report.tables[0]}, others beside it and in tables/")
    if names:
        print(f"figures: {len(names)} in {report.figures[0].parent}, each as pdf, svg and png: {', '.join(names)}")
    print(f"report:  {report.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
