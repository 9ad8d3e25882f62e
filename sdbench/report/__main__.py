"""python -m sdbench.report results/NAME [results/OTHER …]"""

import sys

from sdbench.records import SchemaError

USAGE = """usage: python -m sdbench.report results/NAME [results/OTHER …]

Writes report.html, figures/, tables/ and the summary's tables into results/NAME, from the records alone; the records of
the other folders are shown beside its own."""


def main(arguments: list[str]) -> int:
    """0; or 2 and one sentence, if a folder has no records that can be read."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    from sdbench.report.build import report

    try:
        made = report(arguments[0], arguments[1:])
    except (ValueError, OSError, SchemaError) as error:
        print(f"sdbench.report: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for one in made.advice:
        print(one.text)
    names = sorted({path.stem for path in made.figures})
    print(f"tables:  {len(made.tables)} files: {made.tables[0]} and others beside it and in tables/")
    if names:
        print(f"figures: {len(names)} in {made.figures[0].parent}, each as pdf, svg and png: {', '.join(names)}")
    print(f"report:  {made.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
