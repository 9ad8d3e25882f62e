"""The audit's command line: words become a frozen AuditCommand. Nothing here loads torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdbench.config import ConfigError, nearest, show
from sdbench.subcommand import Compose
from sdbench.words import key_of

CLAIMS = ("law", "losslessness", "q", "acceptance", "prefixes", "pit", "knob", "invariance", "greedy", "counters")
OPTIONS = ("backend", "mode", "generations", "end", "replay", "samples", "tv", "claims", "out")
BACKENDS: Mapping[str, float] = {"sdbench": 0.05, "transformers": 0.15}  # with the TV to be detected by default
ENDS = ("emitted", "removed")


def all_refused(keys: Sequence[str], why: str) -> dict[str, str]:
    return dict.fromkeys(keys, why)


# Options that an audit would ignore, by what is audited, with the end of the sentence that refuses each.
NO_RUN = all_refused(("force", "margin", "tracker", "report", "timing", "shard"), "it belongs to runs")
NO_RUN |= all_refused(("results", "name"), "use out=")
REFUSED: Mapping[str, Mapping[str, str]] = {
    "trained pair": NO_RUN,
    "random pair": NO_RUN
    | all_refused(
        ("task", "n", "batch_size", "device", "dtype", "experiment"),
        "without model= a random pair is audited, with prompts of its own: give model= too",
    ),
    "generations": NO_RUN
    | all_refused(
        (
            *(
                "backend",
                "engine",
                "verifier",
                "w",
                "drafter",
                "num_draft",
                "max_new_tokens",
                "n",
                "task",
                "batch_size",
            ),
            *("samples", "seed"),
        ),
        "the texts of generations= exist already",
    )
    | {"model.packed": "no engine reads the texts of generations="},
    "transformers": NO_RUN
    | all_refused(
        ("model", "engine", "verifier", "w", "drafter", "num_draft", "max_new_tokens", "experiment", "method"),
        "backend=transformers builds its own pair and rule: give mode= only",
    )
    | all_refused(
        ("n", "task", "batch_size", "device", "dtype"),
        "backend=transformers has a prompt of its own and takes one text at a time",
    ),
}
HELP = """\
sdbench.audit: test whether a rule, a drafter or an engine emits the distribution it claims, with known power.

  python -m sdbench.audit [KEY=VALUE ...] [--config-dir DIR]

  python -m sdbench.audit                                          the default rule and drafter on a tiny random pair
  python -m sdbench.audit verifier=typical model=llama-tiny temperature=0.7 top_p=0.9
  python -m sdbench.audit verifier._target_=mine.Rule drafter._target_=mine.Drafter
  python -m sdbench.audit backend=transformers mode=assistant      or ensemble, universal, lookup, early_exit
  python -m sdbench.audit generations=theirs.jsonl model=llama-tiny   texts sampled by another engine

Options of the audit; it also takes those of python -m sdbench --help
  model=NAME      a trained pair (default: a random pair of 4 ids, whose texts are enumerated)
  backend=NAME    sdbench, or transformers: its own generate on a random pair, in the mode of mode=             (sdbench)
  generations=F   a file with one JSON object per line: {"prompt": text or ids, "tokens": ids} or "completion": text;
                  independent samples of one distribution, several for each prompt
  end=emitted     the tokens of a file hold the end token that the engine emitted (default for tokens), or
  end=removed     they do not (always so for completions)
  tv=X            the total variation to be detected with probability .95  (0.05; with backend=transformers, whose generate
                  takes one text at a time, 0.15)
  samples=N       the most texts of a prompt and setting (default: as many as tv needs)
  claims=[A,B]    of law, losslessness, q, acceptance, prefixes, pit, knob, invariance, greedy, counters         (all)
  out=DIR         where audit.json and replay files are written                     (results/audit-runs/NAME-DIGEST)
  replay=FILE     repeat the test of a violated claim and show the cell that deviates most

Unless its knobs are given, a rule is audited at its lossless end and at the middle of its sweep. The default temperature is 1.
Exit codes: 0 sound, 1 a claim is violated, 2 bad configuration, 3 not enough samples to tell, 4 an error in the audit itself,
which is no verdict. See docs/audit.md.
"""


@dataclass(frozen=True)
class AuditOptions:
    """How sure the audit is to be. samples: the most texts of a prompt and setting; None: as many as the power needs."""

    tv: float = 0.05
    samples: int | None = None
    claims: Sequence[str] = CLAIMS
    num_subjects: int = 1  # audits of one run, which share its family-wise error

    @property
    def names_claims(self) -> bool:
        """Return whether only some claims are requested, each by its name."""
        return set(self.claims) != set(CLAIMS)


@dataclass(frozen=True)
class AuditCommand:
    """The audit's own options as they were typed and as they are used, and the words of the configuration."""

    argv: tuple[str, ...]
    values: Mapping[str, str]
    options: AuditOptions
    configuration: tuple[str, ...]
    compose: Compose

    def has(self, key: str) -> bool:
        """Return whether a key of the configuration, or one below it, is given."""
        return any(name == key or name.startswith(f"{key}.") for name in self.keys)

    @property
    def keys(self) -> list[str]:
        return [key_of(word) for word in self.configuration]


def parse_audit(argv: Sequence[str], compose: Compose) -> AuditCommand:
    values = {key_of(word): word.partition("=")[2] for word in argv if _is_option(word)}
    if "replay" in values and len(argv) > 1:
        other = next((word for word in argv if key_of(word) != "replay"), argv[-1])
        raise ConfigError(f"replay= repeats the command in its file and takes no other option, got {show(other)}")
    configuration = tuple(word for word in argv if not _is_option(word))
    backend = values.get("backend", "sdbench")
    if backend not in BACKENDS:
        raise ConfigError(f"backend cannot be {show(backend)} (choices: {', '.join(BACKENDS)})")
    if "mode" in values and backend != "transformers":
        raise ConfigError("mode= is an option of backend=transformers: give both")
    if values.get("end", ENDS[0]) not in ENDS:
        raise ConfigError(f"end cannot be {show(values['end'])} (choices: {', '.join(ENDS)})")
    if "end" in values and "generations" not in values:
        raise ConfigError("end= is an option of generations=FILE: give both")
    given = AuditCommand(tuple(argv), values, _options_of(values), configuration, compose)
    refuse_ignored(given)
    return given


def refuse_ignored(given: AuditCommand) -> None:
    """Raise ConfigError for an option that this audit would ignore."""
    if "generations" in given.values:
        refused = REFUSED["generations"]
    elif given.values.get("backend") == "transformers":
        refused = REFUSED["transformers"]
    else:
        refused = REFUSED["trained pair" if given.has("model") else "random pair"]
    for key in [*given.values, *given.keys]:
        if why := refused.get(key) or refused.get(key.partition(".")[0]):
            raise ConfigError(f"{key}= is not an option of this audit; {why}")


def refuse_claims(given: AuditCommand, tested: Sequence[str], by: str) -> None:
    """Raise ConfigError for a claim that claims= names and that this audit never tests."""
    for claim in given.options.claims if "claims" in given.values else ():
        if claim not in tested:
            raise ConfigError(f"claims cannot hold {claim}: {by} tests {', '.join(tested)}")


def _is_option(word: str) -> bool:
    return key_of(word) in OPTIONS and "=" in word


def _options_of(values: Mapping[str, str]) -> AuditOptions:
    claims = tuple(values["claims"].strip("[]").split(",")) if "claims" in values else CLAIMS
    for claim in claims:
        if claim not in CLAIMS:
            raise ConfigError(f"claims cannot hold {show(claim)} {nearest(claim, CLAIMS)}")
    samples = int(_number(values, "samples", 0, 1, 10**9)) if "samples" in values else None
    tv = BACKENDS[values.get("backend", "sdbench")]
    return AuditOptions(_number(values, "tv", tv, 0, 1), samples, claims)


def _number(values: Mapping[str, str], key: str, default: float, low: float, high: float) -> float:
    if key not in values:
        return default
    try:
        value = float(values[key])
    except ValueError:
        raise ConfigError(f"{key} must be a number, got {show(values[key])}") from None
    if not low < value <= high and not (low == value == 1):
        raise ConfigError(f"{key} must be a number above {low:g} and at most {high:g}, got {values[key]}")
    return value
