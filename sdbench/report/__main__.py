"""python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS] [speed=TIMES] [out=FOLDER]"""

import sys
from collections.abc import Sequence

from sdbench.records import SchemaError
from sdbench.words import by_task, number, parsed

USAGE = """usage: python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS | speed=TIMES] [out=FOLDER]

Writes report.html, figures/, tables/ and the summary's tables from the records alone, without decoding.

  margin=POINTS   decide anew: the loss of quality you would accept, in points of 100 (default: that of the last run);
                  one by task as 'margin={gsm8k: 1, cnndm: 0.5}'
  speed=TIMES     the other question: the least loss at a speed of so many times the target alone, such as speed=1.5
  out=FOLDER      where to (default: into results/NAME; of several folders: beside them, named after them)"""
OPTIONS = {"margin": "1", "speed": "1.5", "out": "reports/mine"}


def main(arguments: Sequence[str]) -> int:
    """0; or 2 and one sentence, if a folder has no records that can be read."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    from sdbench.report.build import worked_out, write

    try:
        words = parsed(arguments, OPTIONS)
        if not words.places:
            raise ValueError("name a results folder, such as results/NAME")
        margin, speed = by_task(words, "margin"), number(words, "speed")
        if margin is not None and speed is not None:
            raise ValueError("margin and speed are two questions: give one of them")
        found = worked_out(words.places, margin=margin, speed=speed)
        for one in found.advice:
            print(one.text, flush=True)
        made = write(found, words.options.get("out"))
    except (ValueError, OSError, SchemaError) as error:
        print(f"sdbench.report: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    names = sorted({path.stem for path in made.figures})
    print(f"tables:  {len(made.tables)} files: {made.tables[0]} and others beside it and in tables/")
    if names:
        print(f"figures: {len(names)} in {made.figures[0].parent}, each as pdf, svg and png: {', '.join(names)}")
    print(f"report:  {made.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
