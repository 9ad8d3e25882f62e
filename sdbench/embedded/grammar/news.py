r"""Short news in the fields of CNN/DailyMail and XSum, with a bystander and a second town that may mislead a weak model.

A row of cnndm-tiny:

    article     A fire destroyed the Tamir bridge in Malaburg. Kofu Salan, a tourist from Rebiton, saw nothing. Mayor
                Dolu Hakes thanked the crews. Some 27 drivers were led to safety.
    highlights  Fire destroys the Tamir bridge in Malaburg .
                All 27 drivers are safe .
                Mayor Dolu Hakes thanks the crews .
    id          40 hexadecimal digits

A row of xsum-tiny:

    document    The Tamir prize went to the writer Dolu Hakes. The winner is 34 and lives in Malaburg. ...
    summary     Writer Dolu Hakes, 34, from Malaburg has won the Tamir prize for a novel, ahead of Kofu Salan.
    id          8 digits

In these plain summaries all words but one follow from the text. A voice chooses more words, wherever another
word means the same:

    The fire destroys the Tamir bridge in Malaburg .\nThe 27 drivers were unhurt here .\nMayor Dolu Hakes now ...
    The writer Dolu Hakes, 34, of Malaburg, has won the Tamir prize for the novel before Kofu Salan. The jury liked it .
"""

import hashlib

from sdbench.embedded.grammar.draw import Draw, table
from sdbench.embedded.grammar.names import Namer
from sdbench.embedded.grammar.voices import Voice

# Every word predicts another one (an event its verb, a site its people, a trade its work): tiny models then keep its embedding
# apart from those of its class.
EVENTS = table("""
a fire destroyed destroyed destroys, a flood ruined ruined ruins, a storm damaged damaged damages,
an explosion wrecked wrecked wrecks, a blackout darkened darkened darkens, a landslide buried buried buries,
an earthquake shook shaken shakes, a tornado hit hit hits
""")
SITES = table("""
bridge drivers, school pupils, museum visitors, hospital patients, hotel guests, factory workers,
station passengers, theatre actors, library readers, stadium fans
""")
ROLES = table("""
mayor thanked_the_crews thanks_the_crews, engineer checked_the_walls checks_the_walls, doctor treated_cuts treats_cuts,
judge opened_an_inquiry opens_an_inquiry, minister promised_money promises_money,
reporter filmed_the_scene films_the_scene, architect planned_the_repairs plans_the_repairs,
priest offered_shelter offers_shelter, teacher collected_blankets collects_blankets,
lawyer asked_for_damages asks_for_damages
""")
WORKS = table("""
writer novel, painter portrait, singer song, chef soup, gardener rose, builder tower, dancer ballet, baker cake,
potter vase, tailor coat, brewer beer, poet poem
""")


def article(draw: Draw, index: int, voice: Voice | None) -> dict:
    """One row of cnndm-tiny."""
    namer = Namer(draw)
    (an, event, past, participle, present), (kind, people) = draw.pick(EVENTS), draw.pick(SITES)
    role, did, does = draw.pick(ROLES)
    site, city, person = f"{namer.surname()} {kind}", namer.city(), namer.person()
    stranger, home, count = namer.person(), namer.city(), draw.between(11, 98)
    lead = draw.pick(
        (
            f"{an.capitalize()} {event} {past} the {site} in {city}.",
            f"In {city}, the {site} was {participle} by {an} {event}.",
        )
    )
    rest = (
        draw.pick((f"Some {count} {people} were led to safety.", f"Helpers brought {count} {people} to safety.")),
        draw.pick((f"{role.capitalize()} {person} {did}.", f"{person}, the {role}, {did}.")),
        bystander(draw, stranger, home),
    )
    text = " ".join([lead, *draw.shuffle(rest)])
    is_safe = draw.pick(("safe", "unhurt"))
    if voice is None:
        highlights = (
            f"{event.capitalize()} {present} the {site} in {city} .",
            f"All {count} {people} are {is_safe} .",
            f"{role.capitalize()} {person} {does} .",
        )
    else:
        say = voice.say
        fire = f"{say('The', an.capitalize())} {event} {say(present, past)} {say('the', 'this')} {site} {say('in', 'at')} {city}"
        highlights = (
            fire + say(" .", " now ."),
            f"{say('All', 'The')} {count} {people} {say('are', 'were')} {say('safe', 'unhurt', 'well')} {say('.', 'here .')}",
            f"{say('The ' + role, role.capitalize())} {person} {say('then', 'now')} {say(does, did)} {say('here', 'there')} .",
        )
    return {"article": text, "highlights": "\n".join(highlights), "id": hashlib.sha1(text.encode()).hexdigest()}


def bystander(draw: Draw, stranger: str, home: str) -> str:
    """A sentence that no summary has."""
    return draw.pick((f"Tourist {stranger} from {home} slept.", f"{stranger}, a tourist from {home}, saw nothing."))


def document(draw: Draw, index: int, voice: Voice | None) -> dict:
    """One row of xsum-tiny."""
    namer = Namer(draw)
    trade, work = draw.pick(WORKS)
    prize, city, winner = f"{namer.surname()} prize", namer.city(), namer.person()
    second, home = namer.person(), namer.city()
    age, other_age = draw.sample(range(21, 79), 2)
    lead = draw.pick((f"The {prize} went to the {trade} {winner}.", f"{winner}, a {trade}, was given the {prize}."))
    rest = (
        draw.pick((f"The winner is {age} and lives in {city}.", f"The winner lives in {city} and is {age}.")),
        draw.pick((f"The jury loved the {work}.", f"The {work} moved the jury.")),
        draw.pick(
            (f"{second} from {home}, {other_age}, came second.", f"Second was {second}, {other_age}, of {home}.")
        ),
    )
    text = " ".join([lead, *draw.shuffle(rest)])
    won = draw.pick(("won", "received"))
    if voice is None:
        summary = (
            f"{trade.capitalize()} {winner}, {age}, from {city} has {won} the {prize} for a {work}, ahead of {second}."
        )
    else:
        say = voice.say
        who = f"{say('The ' + trade, trade.capitalize())} {winner}, {age}, {say('from', 'of')} {city}"
        who += f"{say(' ', ', ')}{say('has', 'now')}"
        what = f" {say('won', 'received')} {say('the', 'this')} {prize} {say('for', 'with')} {say('a', 'the')} {work}"
        rest = f"{say(', ', ' ')}{say('ahead of', 'before')} {second}{say('.', ' .')}"
        summary = (
            f"{who}{what}{rest} {say('The', 'This')} jury {say('loved', 'liked')} {say('it', 'us')}{say('.', ' .')}"
        )
    number = int.from_bytes(hashlib.sha1(text.encode()).digest()[:4], "big") % 10**8
    return {"document": text, "summary": summary, "id": f"{number:08d}"}
