"""GSM8K: grade-school word problems whose answers end in `#### N` (Cobbe et al. 2021, arXiv:2110.14168).

A row: {"question": "Tom has 3 red and 4 blue pens. How many has he?", "answer": "3 + 4 = <<3+4=7>>7 pens.\\n#### 7"}.
Not covered: answers that are not numbers, and expressions that would have to be evaluated (except a single fraction).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from sdbench.tasks.base import DataTask
from sdbench.tasks.protocol import Fields, Protocol, read_words
from sdbench.types import Example, Metric, Score

# lm-eval's `flexible-extract`, kept to the letter. It takes "..." for a number; `numeric` does not.
LM_EVAL_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
LM_EVAL_MARK = "#### "  # lm-eval deletes "(?s).*#### ", which takes quadratic time on a text without one
LM_EVAL_LAST_DOT = re.compile(r"\.$")

DIVERSED_MARKED = re.compile(r"###\s*(-?\d+)")
DIVERSED_NUMBER = re.compile(r"(?<!\d)-?\d+(?:\.\d+)?")

# A minus after a digit, a letter or a bracket is a subtraction, not a sign. Thousands are separated by a comma, by TeX's {,} or \,
# or by one blank (narrow, unbreakable or plain).
GROUPED = r"\d{1,3}(?:(?:,|\{,\}|\\,|[ \u00a0\u2009\u202f])\d{3})+(?!\d)"
WHOLE = rf"(?:{GROUPED}|\d+)"
SIGN = r"(?:(?<![\w).])-)?"
FRACTION = rf"(?<!/)({SIGN})\$?({WHOLE}(?:\.\d+)?) ?/ ?(\d{{1,9}})(?![\d/]|\.\d)"  # 6/2, but not a part of a date
NUMBER = re.compile(rf"{FRACTION}|({SIGN})(?:\$?({WHOLE}(?:\.\d+)?)|(?<!\d)(\.\d+))")
LONGEST_NUMERATOR = 100  # characters; longer ones are runs of digits, a common failure of weak models
SEPARATORS = re.compile(r"[,{}\\\s]")
MINUS = str.maketrans("\u2212\ufe63\uff0d", "---")  # Unicode's minus, small and full-width hyphens
HEADING = (
    r"[ *]*(?:(?:step|part|case)\b|\d+[.):] *\**[^\W\d_])"  # `#### Step 2: ...` and `#### 2. Add them` mark no answer
)
MARKER = re.compile(rf"####(?!{HEADING})|answer is:?|\\boxed\{{", re.IGNORECASE)
SUM = re.compile(
    r"(?:[\d.,$+*/×÷()% -]|x(?= ?\$?\d)|\\(?:times|cdot|div))*=[ $]*"
)  # what precedes the result of `3 + 4 = 7`


def lm_eval_normal(text: str) -> str:
    """Normalise as lm-eval's exact_match does: delete these characters, then lower the case."""
    text = text.replace(",", "").replace("$", "").rpartition(LM_EVAL_MARK)[2]
    return LM_EVAL_LAST_DOT.sub("", text).lower()


def numeric(text: str) -> Decimal | Fraction | None:
    """Return the number that a person would read: the first after the last marker of an answer, or else the last of the text.

    If a sum follows the marker (`#### 3 + 4 = 7`), it is the sum's result.
    """
    text = text.translate(MINUS)
    markers = list(MARKER.finditer(text))
    after = NUMBER.search(text, markers[-1].end()) if markers else None
    while after and (terms := SUM.match(text, after.start())) and (result := NUMBER.match(text, terms.end())):
        after = result
    match = after or max(NUMBER.finditer(text), key=re.Match.start, default=None)
    if match is None:
        return None
    sign, above, below, sign_too, number, decimals = match.groups()
    try:
        value = Decimal(f"{sign or sign_too or ''}{SEPARATORS.sub('', above or number or decimals)}")
    except InvalidOperation:  # digits of other scripts that Decimal does not read
        return None
    divisor = int(below or 0) if len(above or "") <= LONGEST_NUMERATOR else 0
    return Fraction(value) / divisor if divisor else value


def by_pattern(pattern: str | re.Pattern[str], pick: int) -> Callable[[str], str | None]:
    """Return lm-eval's reading: of the pick-th match of a pattern the first group that is not empty, normalised."""

    def extract(text: str) -> str | None:
        matches = re.findall(pattern, text)
        if not matches:
            return None
        groups = matches[pick] if isinstance(matches[pick], tuple) else (matches[pick],)
        return lm_eval_normal(next((group for group in groups if group), "").strip())

    return extract


lm_eval_flexible = by_pattern(LM_EVAL_NUMBER, -1)


def diversed_strict(text: str) -> str | None:
    match = DIVERSED_MARKED.search(text.replace(",", ""))
    return _whole(match[1]) if match else None


def diversed_flexible(text: str) -> str | None:
    """Return the number after ###, or the last one, rounded to an integer: the rule of the DIVERSED paper."""
    marked = diversed_strict(text)
    numbers = DIVERSED_NUMBER.findall(text.replace(",", ""))
    return marked if marked is not None else _whole(numbers[-1]) if numbers else None


def _whole(number: str) -> str:
    """Round half to even as `round` does, at any length: weak models often write endless digits."""
    rounded = Decimal(number).to_integral_value(ROUND_HALF_EVEN)
    return str(rounded) if rounded else "0"


@dataclass(frozen=True, kw_only=True)
class MathProtocol(Protocol):
    """A protocol with functions that read an answer: `gold` for the reference, the other two for the completion."""

    strict: Callable[[str], str | None]
    flexible: Callable[[str], str | None] = lm_eval_flexible
    gold: Callable[[str], str | None] = lm_eval_normal


def wei(ending: str) -> tuple[Fields, ...]:
    """Return the exemplars of Wei et al. 2022 as shots; `ending` states the answer in the protocol's words."""
    shots: list[dict[str, str]] = read_words("wei")
    return tuple({"question": s["question"], "answer": f"{s['reasons']} {ending.format(s['number'])}"} for s in shots)


PROTOCOLS: Mapping[str, MathProtocol] = MathProtocol.read(
    "gsm8k",
    {
        "lm-eval": {"strict": by_pattern(r"#### (\-?[0-9\.\,]+)", 0)},
        "cot": {"strict": by_pattern(r"The answer is (\-?[0-9\.\,]+).", 0), "fixed_shots": wei("The answer is {}.")},
        "llama": {
            "strict": by_pattern(r"The final answer is ((-?[$0-9.,]{2,})|(-?[0-9]+))", -1),
            "fixed_shots": wei("The final answer is {}"),
        },
        "diversed": {"strict": diversed_strict, "flexible": diversed_flexible, "gold": diversed_flexible},
        "plan": {"strict": by_pattern(r"####\s*\$?(-?[0-9.,]+)", -1)},
    },
)


@dataclass(kw_only=True)
class GSM8K(DataTask):
    """Accuracy by three readings of the same answer: the protocol's strict and flexible ones, and sdbench's numeric one."""

    VERSION = "3"
    PROTOCOLS = PROTOCOLS
    FIELDS = ("question", "answer")
    metrics = tuple(Metric(name, "share") for name in ("strict", "flexible", "numeric"))
    cut_side = "start"  # of a long question, which ends with what is asked

    @property
    def rules(self) -> MathProtocol:
        return PROTOCOLS[self.protocol]

    @property
    def metric(self) -> str:  # type: ignore[override] - the protocol decides it
        return self.rules.headline or "strict"

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        """Score answers unstripped: the pattern of `cot` needs a character after the number, which may be a blank."""
        return [self.measure(example, self.until_stop(completion)) for example, completion in pairs]

    def measure(self, example: Example, text: str) -> Score:
        rules, answer = self.rules, str(example.row["answer"])
        gold = rules.gold(answer)
        readings: dict[str, Any] = {
            "strict": (rules.strict(text), gold),
            "flexible": (rules.flexible(text), gold),
            "numeric": (numeric(text), numeric(answer)),
        }
        values = {name: float(read is not None and read == right) for name, (read, right) in readings.items()}
        return Score(values, flags={"is_extraction_failed": readings[self.metric][0] is None})
