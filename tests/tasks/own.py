"""Rows written for the tests, in the schemas of the real data sets, and each protocol's own form of a right answer."""

from pathlib import Path

import sdbench.tasks

ROWS = Path(__file__).parent / "rows"
GOLDEN = Path(__file__).parent / "golden"
FILES = {
    "cnndm": "cnndm",
    "xsum": "xsum",
    "gsm8k": "gsm8k",
    "wmt14": "wmt",
    "wmt16": "wmt",
    "wmt": "wmt",
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "mbpp-sanitized": "mbpp-sanitized",
}
CODE = ("humaneval", "mbpp", "mbpp-sanitized")
TINY = ("cnndm-tiny", "xsum-tiny", "gsm8k-tiny", "wmt-tiny", "humaneval-tiny", "mbpp-tiny")
GSM8K_FORMS = {
    "lm-eval": "Some reasons.\n#### {}",
    "cot": "Some reasons. The answer is {}.",
    "llama": "Some reasons. The final answer is {}",
    "diversed": "Some reasons.\n#### {}",
    "plan": "Some steps.\n\n### Solution\nSome reasons.\n#### ${}",
}


def path(name):
    return ROWS / f"{FILES[name]}.jsonl"


def load(name, **options):
    return sdbench.tasks.load(name, data=path(name), **options)


def protocols(name):
    return list(load(name).PROTOCOLS)


def last_number(row):
    return row["answer"].split("####")[-1].strip()
