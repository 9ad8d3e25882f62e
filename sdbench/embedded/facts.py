"""The facts of a tiny row, which its answer must state in whatever wording."""

import re
from collections import Counter

from sdbench.embedded.grammar.news import EVENTS, ROLES
from sdbench.embedded.grammar.synonyms import SYNONYMS

_NAME = r"[A-Z][a-z]+"
_PERSON = rf"({_NAME} {_NAME})"
_ROLES = "|".join(role.capitalize() for role, *_ in ROLES)
_PAST = "|".join(past for _, _, past, _, _ in EVENTS)
_SITE_FIRST = rf"(?:In ({_NAME}), the ({_NAME} \w+) was \w+ by an? (\w+)\.)"

_ARTICLE = (
    re.compile(rf"An? (\w+) (?:{_PAST}) the ({_NAME} \w+) in ({_NAME})\.|{_SITE_FIRST}"),
    re.compile(r"(?:Some|brought) (\d+ \w+)"),
    re.compile(rf"\b(?:{_ROLES}) {_PERSON}|{_PERSON}, the (?:{_ROLES.lower()})"),
)
_DOCUMENT = (
    re.compile(rf"The ({_NAME} prize) went to the (\w+) {_PERSON}\.|{_PERSON}, a (\w+), was given the ({_NAME} prize)"),
    re.compile(rf"is (\d+) and lives in ({_NAME})|lives in ({_NAME}) and is (\d+)"),
    re.compile(r"loved the (\w+)|(\w+) moved the jury"),
    re.compile(rf"{_PERSON} from {_NAME}, \d+, came second|Second was {_PERSON},"),
)
_WORD = re.compile(r"[a-zà-ÿ0-9-]+")
_SMALL = frozenset(["the", "a", "an", "my", "to", "for"])  # articles, and words that are part of the first wordings
_FIRST_OF = {second.lower(): first.lower() for first, second in SYNONYMS.items()}
_SECOND = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(_FIRST_OF, key=len, reverse=True)))})\b")


def article_facts(article: str) -> list[str]:
    """Return the event, the site, the town, the number of people, and the person who acted, of a row of cnndm-tiny."""
    return _read(_ARTICLE, article)


def document_facts(document: str) -> list[str]:
    """Return the prize, the trade, the winner, the age, the town, the work and the runner-up, of a row of xsum-tiny."""
    return _read(_DOCUMENT, document)


def _read(patterns: tuple[re.Pattern[str], ...], text: str) -> list[str]:
    matches = [pattern.search(text) for pattern in patterns]
    return [part for match in matches if match for part in match.groups() if part]


def share_stated(facts: list[str], answer: str) -> float:
    """Return the share of the facts that an answer states."""
    text = answer.lower()
    return sum(re.search(rf"\b{re.escape(fact.lower())}\b", text) is not None for fact in facts) / max(1, len(facts))


def share_translated(reference: str, answer: str) -> float:
    """Return the share of a translation's content words that an answer has, in either wording."""
    wanted, given = _content(reference), _content(answer)
    return (wanted & given).total() / max(1, wanted.total())


def _content(english: str) -> Counter[str]:
    first = _SECOND.sub(lambda match: _FIRST_OF[match[0]], english.lower())
    return Counter(word for word in _WORD.findall(first) if word not in _SMALL)
