"""German sentences and their English: gender, case, adjective endings, verb-second order and verb-final clauses.

A row of wmt-tiny:

    translation  {"de": "Gestern hat meine Schwester den roten Koffer gekauft, weil der Arzt einen Brief sucht.",
                  "en": "Yesterday my sister bought the red suitcase because the doctor looks for a letter."}

Real words, and one English sentence for each German one. The object comes first only where its article shows the case.
"""

from dataclasses import dataclass
from typing import NamedTuple

from sdbench.embedded.grammar.draw import Draw, table
from sdbench.embedded.grammar.synonyms import reword
from sdbench.embedded.grammar.voices import Voice


class Noun(NamedTuple):
    """A noun in both languages; gender is m, f or n."""

    gender: str
    de: str
    des: str
    en: str
    ens: str


class Phrase(NamedTuple):
    """A noun phrase, its number, and whether its form alone shows that it is an accusative."""

    de: str
    en: str
    is_plural: bool
    is_marked: bool


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(Noun(*words) for words in table(text))


PEOPLE = _nouns("""
m Lehrer Lehrer teacher teachers, m Arzt Ärzte doctor doctors, m Koch Köche cook cooks,
m Bruder Brüder brother brothers, m Freund Freunde friend friends, m Vater Väter father fathers,
m Sohn Söhne son sons, m Onkel Onkel uncle uncles, f Nachbarin Nachbarinnen neighbour neighbours,
f Mutter Mütter mother mothers, f Schwester Schwestern sister sisters, f Tochter Töchter daughter daughters,
f Tante Tanten aunt aunts, f Ärztin Ärztinnen physician physicians, n Kind Kinder child children,
n Mädchen Mädchen girl girls
""")
THINGS = _nouns("""
m Tisch Tische table tables, m Stuhl Stühle chair chairs, m Schlüssel Schlüssel key keys,
m Koffer Koffer suitcase suitcases, m Brief Briefe letter letters, m Ball Bälle ball balls, m Hut Hüte hat hats,
f Lampe Lampen lamp lamps, f Tasse Tassen cup cups, f Uhr Uhren clock clocks, f Blume Blumen flower flowers,
f Tür Türen door doors, n Buch Bücher book books, n Bild Bilder picture pictures, n Haus Häuser house houses,
n Auto Autos car cars, n Messer Messer knife knives, n Boot Boote boat boats
""")
# Third person singular, plural (= infinitive) and participle; English third person, base and past.
VERBS = table("""
sieht sehen gesehen sees see saw, kauft kaufen gekauft buys buy bought, findet finden gefunden finds find found,
sucht suchen gesucht looks_for look_for looked_for, malt malen gemalt paints paint painted,
holt holen geholt fetches fetch fetched, verkauft verkaufen verkauft sells sell sold,
wäscht waschen gewaschen washes wash washed, braucht brauchen gebraucht needs need needed,
verliert verlieren verloren loses lose lost, zeichnet zeichnen gezeichnet draws draw drew,
stiehlt stehlen gestohlen steals steal stole
""")
TRAITS = table("jung young, klein small, nett nice, reich rich, arm poor, klug clever")
LOOKS = table("""
alt old, neu new, rot red, blau blue, grün green, schwer heavy, schön beautiful, billig cheap, groß big,
schwarz black
""")
NOW = (("Heute", "Today"), ("Jetzt", "Now"), ("Oft", "Often"), ("Manchmal", "Sometimes"))
THEN = (("Gestern", "Yesterday"), ("Letzte Woche", "Last week"), ("Einmal", "Once"), ("Am Montag", "On Monday"))
MODALS = table("kann können can can, muss müssen must must, will wollen wants_to want_to")
LINKS = table("weil because, obwohl although, während while, wenn if")

_DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
_ENDING = {  # of ein-words
    "nom": {"m": "", "f": "e", "n": "", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}


def _adjective_ending(case: str, key: str, is_definite: bool) -> str:
    if case == "dat" or key == "p" or (case, key) == ("acc", "m"):
        return "en"
    if is_definite or key == "f":
        return "e"
    return "er" if key == "m" else "es"


def phrase(draw: Draw, nouns: tuple[Noun, ...], adjectives: tuple[tuple[str, ...], ...], case: str) -> Phrase:
    """A noun phrase with its article and sometimes an adjective, in one of three cases."""
    noun, is_plural = draw.pick(nouns), draw.chance(0.25)
    key = "p" if is_plural else noun.gender
    article = draw.below(2 if is_plural else 3)
    if article == 0:
        de, en = _DEFINITE[case][key], "the"
    else:
        stem, en = ("mein", "my") if article == 1 else ("ein", "a")
        de = stem + _ENDING[case][key]
    words, english = [de], [en]
    if draw.chance(0.4):
        adjective, translation = draw.pick(adjectives)
        words.append(adjective + _adjective_ending(case, key, article == 0))
        english.append(translation)
    name = noun.des if is_plural else noun.de
    words.append(name + "n" if is_plural and case == "dat" and name[-1] not in "ns" else name)
    english.append(noun.ens if is_plural else noun.en)
    if english[0] == "a" and english[1][0] in "aeiou":
        english[0] = "an"
    return Phrase(" ".join(words), " ".join(english), is_plural, case == "acc" and key == "m")


@dataclass(frozen=True, slots=True)
class Clause:
    """The parts of a clause: the finite verb and the closing verb of German apart, the English predicate whole."""

    subject: Phrase
    object: Phrase
    company: Phrase | None
    finite: str
    closing: str
    predicate: str
    is_past: bool

    @property
    def middle(self) -> str:
        return self.object.de + (f" mit {self.company.de}" if self.company else "")

    @property
    def english(self) -> str:
        tail = f" with {self.company.en}" if self.company else ""
        return f"{self.subject.en} {self.predicate} {self.object.en}{tail}"


def draw_clause(draw: Draw, *, is_short: bool) -> Clause:
    """A transitive clause in the present, the perfect or with a modal verb."""
    subject, target = phrase(draw, PEOPLE, TRAITS, "nom"), phrase(draw, THINGS, LOOKS, "acc")
    company = phrase(draw, PEOPLE, TRAITS, "dat") if not is_short and draw.chance(0.3) else None
    (de, des, participle, en, ens, past), many, tense = draw.pick(VERBS), subject.is_plural, draw.below(3)
    if tense == 0:
        finite, closing, predicate = (des, "", ens) if many else (de, "", en)
    elif tense == 1:
        finite, closing, predicate = "haben" if many else "hat", participle, past
    else:
        modal = draw.pick(MODALS)
        finite, closing, predicate = modal[many], des, f"{modal[2 + many]} {ens}"
    return Clause(subject, target, company, finite, closing, predicate, tense == 1)


def _main(draw: Draw, clause: Clause) -> tuple[str, str]:
    """The clause with its verb second: after the subject, an adverb or a marked object."""
    closing = f" {clause.closing}" if clause.closing else ""
    order = draw.below(3)
    if order == 0:
        de, en = draw.pick(THEN if clause.is_past else NOW)
        return f"{de} {clause.finite} {clause.subject.de} {clause.middle}{closing}", f"{en} {clause.english}"
    if order == 1 and clause.object.is_marked and not clause.company:
        return f"{clause.object.de} {clause.finite} {clause.subject.de}{closing}", clause.english
    return f"{clause.subject.de} {clause.finite} {clause.middle}{closing}", clause.english


def _final(clause: Clause) -> str:
    """The clause with its finite verb last."""
    return " ".join(part for part in (clause.subject.de, clause.middle, clause.closing, clause.finite) if part)


def sentence(draw: Draw, index: int, voice: Voice | None) -> dict:
    """One row of wmt-tiny."""
    has_second = draw.chance(0.45)
    de, en = _main(draw, draw_clause(draw, is_short=has_second))
    if has_second:
        second, (link, english_link) = draw_clause(draw, is_short=True), draw.pick(LINKS)
        de, en = f"{de}, {link} {_final(second)}", f"{en} {english_link} {second.english}"
    if voice is not None:
        en = reword(f"{en[0].lower()}{en[1:]}", voice.say)
    return {"translation": {"de": f"{de[0].upper()}{de[1:]}.", "en": f"{en[0].upper()}{en[1:]}."}}
