"""Audit all rules × temperatures × warpers on the tiny random pair: results/audit/matrix.{json,md}.

    python scripts/audit_matrix.py [tv=0.08] [rules=A,B] [workers=2] [out=results/audit]
    python scripts/audit_matrix.py model=llama-tiny [tv=0.1] [samples=1000] …   # a trained pair at T = 0 and 1: matrix-llama-tiny.*
    python scripts/audit_matrix.py model=llama-tiny drafters=all|A,B [missing=on] …   # drafters on it: drafters-llama-tiny.*

The rules of a combination are audited in one batch, on a trained pair eight at a time. A combination that a rule's limits exclude
is listed with the reason. Files are written after each batch, which takes minutes. With rules= and drafters= the lines of other
rules and drafters are kept. With missing=on the lines of this call are kept too, unless they had too few samples or another tv,
number of samples or version of the rule; only the rest is audited. drafters= audits each drafter at T = 0, at T = 1 and at T = 1
with top-p, with `exact` and the ensemble at two weights in one batch, unless rules= names others. `retrieval` gets a corpus of
solved examples, and drafters for another tokenizer get the draft of another pair. `all` includes the length policies and a draft in
int8; `healed` and `distilled` need the drafts that drafter_tables.py trains.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.drafter_variants import AUDITED
from sdbench import embedded
from sdbench.audit.build import build
from sdbench.audit.command import AuditOptions, parse_audit
from sdbench.audit.native import audit, knob_results
from sdbench.audit.report import finite
from sdbench.cli import compose_run
from sdbench.config import ConfigError, RuleSweep, config_dir
from sdbench.draft import class_of
from sdbench.imports import import_object
from sdbench.prepare.rules import rule_of
from sdbench.prepare.versions import version_of, version_of_rule
from sdbench.types import DRAFTER_NEEDS, Limits, needs_of
from sdbench.verify.head import SHIP, Head
from sdbench.words import choose, exit_on_mistake, number, parse_words

WARPERS = ("", "top_k=2", "top_p=0.8")
OF_DRAFTERS = (("0", ""), ("1", ""), ("1", "top_p=0.8"))  # temperatures and warpers with which each drafter is audited
RECORDS = Path("results")  # its folder drafts/ has the drafts that drafter_tables.py trains
MARKERS = ("Answer", "'####'")  # texts that begin and end a span: single tokens of the embedded pairs
HEADS_TASK = "gsm8k-tiny"
DRAFTERS_RULES = ("exact", "ensemble")  # the ensemble at its lossless end and at a lenient weight
OTHER_DRAFT = {"qwen-tiny": "llama-tiny"}  # pair -> a pair with another tokenizer; qwen-tiny for other pairs
CORPUS = Path("results/corpora") / f"{HEADS_TASK}.txt"
TV = {False: 0.08, True: 0.1}  # deviations to detect on the random pair, and on a trained one
TRAINED_SAMPLES = 1000  # default texts per prompt of a trained pair; each costs 100 times one of the random pair
BATCH = 8  # rules of a trained pair in one batch
DEFAULTS = {
    "model": "llama-tiny",
    "tv": "0.05",
    "rules": "exact,typical",
    "workers": "2",
    "samples": "1000",
    "drafters": "all",
    "missing": "on",
    "out": "results/audit",
}


def names(group: str) -> list[str]:
    """Return the names of the files of a group in configs/."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def sweep_of(rule: str) -> RuleSweep:
    """Return every knob that declares a sweep, with all of its values."""
    tree = yaml.safe_load((config_dir() / "verifier" / f"{rule}.yaml").read_text())
    swept = [knob for knob, declared in (tree.get("knobs") or {}).items() if "sweep" in declared and knob != "w"]
    return RuleSweep.check({**tree, **dict.fromkeys(swept)}, None)


def kind_of_head(rule: str) -> str | None:
    """Return the kind of a rule's trained head, from the knobs of its file; None for a rule without one."""
    folders = {knob.trained for knob in sweep_of(rule).knobs}
    return next((kind for kind, folder in SHIP.items() if folder in folders), None)


def combinations(
    model: str, rules: Sequence[str], drafters: Sequence[str] = ()
) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Return (drafter, temperature, warper, rules of one batch) of each combination; `drafters` are audited separately."""
    if drafters:
        yield from ((drafter, *sampling, rules) for drafter in drafters for sampling in OF_DRAFTERS)
        return
    if model:
        for temperature in ("0", "1"):
            yield from (("model", temperature, "", rules[at : at + BATCH]) for at in range(0, len(rules), BATCH))
        return
    yield "model", "0", "", rules
    yield from (("model", temperature, warper, rules) for temperature in ("0.7", "1") for warper in WARPERS)


def head_of(rule: str, model: str) -> str | None:
    """Return the name of the head that ships for a trained pair, if there is one."""
    kind = kind_of_head(rule)
    if kind is None or not model:
        return None
    folder = Path(str(embedded.__file__)).parent / SHIP[kind] / model / HEADS_TASK
    return f"embedded:{model}/{HEADS_TASK}" if folder.is_dir() else None


def head_words(rule: str, model: str) -> list[str]:
    head = head_of(rule, model)
    return [f"verifier.{rule}.head={head}"] if head else []


def marker_words(rule: str) -> list[str]:
    """Return options for the texts that begin and end a span, for a rule with such knobs."""
    knobs = [knob.name for knob in sweep_of(rule).knobs if knob.is_text and not knob.trained]
    return [f"verifier.{rule}.{knob}={marker}" for knob, marker in zip(knobs, MARKERS, strict=False)]


def short_words(rule: str) -> list[str]:
    """Return the values at which a rule needs the fewest drafts, for each knob on which this number depends.

    The audit enumerates all texts of that length.
    """
    if kind_of_head(rule):
        return []
    sweep, words = sweep_of(rule), list[str]()
    least = [(getattr(rule_of(sweep.target, s), "limits", None) or Limits()).num_draft[0] for s in sweep.settings]
    for knob in sweep.knobs:
        by_value = {
            value: min(n for n, setting in zip(least, sweep.settings, strict=True) if setting[knob.name] == value)
            for value in knob.values
        }
        if len(set(by_value.values())) > 1:
            words.append(f"verifier.{rule}.{knob.name}={min(by_value, key=lambda value: by_value[value])}")
    return words


def drafter_words(drafter: str, model: str) -> list[str]:
    """Return what a drafter needs besides a trained pair: no draft, a draft with another tokenizer, a corpus, its options."""
    if drafter in AUDITED:
        return AUDITED[drafter].words_in(RECORDS)
    kind, options = class_of(drafter)
    needs = needs_of(kind, DRAFTER_NEEDS)
    words = [] if "draft" in needs else ["model.draft=null"]
    if "draft_tokenizer" in needs:
        words.append(f"model.draft=embedded:{OTHER_DRAFT.get(model, 'qwen-tiny')}/draft")
    return words + ([f"drafter.corpus={CORPUS}"] if "corpus" in options else [])


def command_line(rules: Sequence[str], drafter: str, temperature: str, warper: str, model: str = "") -> list[str]:
    listed = f"verifier=[{','.join(rules)}]" if len(rules) > 1 else f"verifier={rules[0]}"
    knobs = [word for rule in rules for word in [*short_words(rule), *head_words(rule, model)]]
    knobs += [word for rule in rules if model for word in marker_words(rule)]
    if len(rules) == 1:
        knobs = [word.replace(f"verifier.{rules[0]}.", "verifier.") for word in knobs]
    pair = [f"model={model}"] if model else []
    if model and drafter != "model":
        pair += drafter_words(drafter, model)
    name = "model" if drafter in AUDITED else drafter
    return [*pair, listed, f"drafter={name}", f"temperature={temperature}", *([warper] if warper else []), *knobs]


def run(
    drafter: str,
    temperature: str,
    warper: str,
    rules: Sequence[str],
    tv: float,
    model: str = "",
    samples: int = TRAINED_SAMPLES,
) -> list[dict[str, Any]]:
    """Return rows of one combination: all rules that work in it are audited in one stream."""
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    able = []
    for rule in rules:
        try:
            # Refused combinations use the random pair, unless rule or drafter need this one, so that no weights are read.
            pair = model if head_of(rule, model) or drafter != "model" else ""
            build(parse_audit(command_line([rule], drafter, temperature, warper, pair), compose_run))
        except ConfigError as error:
            lines.append({"rule": rule, "verdict": "not applicable", "why": str(error)})
        else:
            able.append(rule)
    lines += audited_lines(able, drafter, temperature, warper, tv, model, samples) if able else []
    combination = {"drafter": drafter, "temperature": temperature, "warper": warper}
    return [{**combination, **settings_of(line["rule"], tv, samples, model), **line} for line in lines]


def audited_lines(
    rules: Sequence[str], drafter: str, temperature: str, warper: str, tv: float, model: str, samples: int
) -> list[dict[str, Any]]:
    """Return a line for each of these rules, which are audited in one stream."""
    built = build(parse_audit(command_line(rules, drafter, temperature, warper, model), compose_run))
    report = audit(built.subject, AuditOptions(tv=tv, samples=samples if model else None))
    results = [*report.rows, *knob_results(built)]
    lines: list[dict[str, Any]] = []
    for rule in rules:
        all_rows = [row for row in results if row.setting.split()[0] == rule]
        rows = [row for row in all_rows if row.samples]
        largest = max((row.statistic for row in rows if row.p is not None), default=0.0)
        verdicts = {row.verdict for row in rows}
        verdict = next((name for name in ("violated", "too few") if name in verdicts), "sound")
        bad = [
            f"{row.setting}, {row.claim}: {row.cell.name if row.cell else ''}" for row in rows if row.verdict != "sound"
        ]
        effects = [row.effect for row in rows if row.effect is not None and row.effect.name == "TV"]
        weakest = max(effects, key=lambda effect: effect.least, default=None)
        lines.append(
            {
                "rule": rule,
                "verdict": verdict,
                "claims": len(rows),
                "texts": max((row.samples for row in rows if row.claim == "law"), default=0),
                "largest_log_e": largest,
                "found_tv": None if weakest is None else weakest.least,
                "view": None if weakest is None else weakest.view,
                "first_only": [row.setting for row in rows if row.effect is not None and row.effect.untested],
                **({"head": Head.load(head, str(kind_of_head(rule))).label} if (head := head_of(rule, model)) else {}),
                "untested": [row.setting for row in all_rows if not row.samples],
                "why": "; ".join(bad),
            }
        )
    return lines


@cache
def version_of_name(rule: str) -> str | None:
    """Return the version of a rule and of the rules within it, in the form of cells' keys."""
    sweep = sweep_of(rule)
    if kind_of_head(rule):  # cannot be built without its head
        return version_of(import_object(sweep.target))
    return version_of_rule(rule_of(sweep.target, sweep.settings[0]))


def settings_of(rule: str, tv: float, samples: int, model: str) -> dict[str, Any]:
    """Return the settings with which a rule is audited in every combination; the random pair has as many samples as `tv` needs."""
    return {"tv": tv, "samples": samples if model else None, "version": version_of_name(rule)}


def key_of(line: dict[str, Any]) -> tuple[str, str, str, str]:
    return line["drafter"], line["temperature"], line["warper"], line["rule"]


def page(lines: Sequence[dict[str, Any]], seconds: float, pair: str = "the tiny random pair") -> str:
    """Return a table with a line per rule and a column per combination, or transposed if it has more columns than lines."""
    combined = {(line["drafter"], line["temperature"], line["warper"]): line for line in lines}
    rules = sorted({line["rule"] for line in lines})
    cells = {
        (line["rule"], line["drafter"], line["temperature"], line["warper"]): line["verdict"]
        + ("\\*" if line.get("untested") else "")
        for line in lines
    }
    heads = [
        f"{drafter}, T={temperature}{f', {warper}' if warper else ''}" for drafter, temperature, warper in combined
    ]
    verdicts = [
        [cells.get((rule, *column), "").replace("not applicable", "–") for column in combined] for rule in rules
    ]
    columns, named = heads, [f"`{rule}`" for rule in rules]
    if len(heads) > len(rules):  # a line a combination
        columns, named, verdicts = named, heads, [list(row) for row in zip(*verdicts, strict=True)]
    rows = [f"| {name} | {' | '.join(row)} |" for name, row in zip(named, verdicts, strict=True)]
    tested = [line for line in lines if line["verdict"] != "not applicable"]
    alarms = sum(line["verdict"] == "violated" for line in tested)
    few = sum(line["verdict"] == "too few" for line in tested)
    untested = sorted({setting for line in tested for setting in line.get("untested", ())})
    asterisk = (
        f" \\*: the distribution of texts was not tested at {', '.join(f'`{setting}`' for setting in untested)}; counters, "
        "recorded probabilities and batches were."
    )
    first_only = sorted({setting for line in tested for setting in line.get("first_only", ())})
    seconds_untested = (
        f" Prefixes of two tokens were not tested at {', '.join(f'`{setting}`' for setting in first_only)}."
    )
    detected = [(float(line["found_tv"]), line["view"]) for line in tested if line.get("found_tv")]
    least, view = max(detected, default=(0.0, "prefixes of two tokens"))
    return "\n".join(
        [
            "# The audit over the rules and drafters of the package",
            "",
            f"{len(tested)} combinations of rule, drafter, temperature and warper on {pair}: {alarms} false alarms, "
            f"{few} with too few samples; {sum(line['claims'] for line in tested):,} claims tested in {seconds:,.0f} s. "
            f"Where the distribution of texts was tested, a TV of {least:g} "
            f"between {view} would have been detected with probability .95.{seconds_untested if first_only else ''} "
            f"–: the rule's limits exclude this combination.{asterisk if untested else ''} "
            "Written by `python scripts/audit_matrix.py`.",
            "",
            f"| | {' | '.join(columns)} |",
            f"|---|{'---|' * len(columns)}",
            *rows,
            "",
        ]
    )


def keys_of(batches: Iterable[tuple[str, str, str, Sequence[str]]]) -> set[tuple[str, str, str, str]]:
    """Return the combinations of some batches, each with one rule."""
    return {(drafter, temperature, warper, rule) for drafter, temperature, warper, rules in batches for rule in rules}


def missing_of(
    batches: Iterable[tuple[str, str, str, Sequence[str]]], lines: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Return the batches without the rules that `lines` have for a combination."""
    held = set(map(key_of, lines))
    for drafter, temperature, warper, rules in batches:
        if left := [rule for rule in rules if (drafter, temperature, warper, rule) not in held]:
            yield drafter, temperature, warper, left


def valid_lines(
    lines: Sequence[dict[str, Any]],
    batches: Iterable[tuple[str, str, str, Sequence[str]]],
    tv: float,
    samples: int,
    model: str,
) -> list[dict[str, Any]]:
    """Return the lines of other combinations, and those lines of these batches that had enough samples and were audited with this
    tv, this number of samples and this version of the rule. Older lines have the usual number of samples and no version, which is
    then not compared.
    """
    again = keys_of(batches)

    def is_valid(line: dict[str, Any]) -> bool:
        settings = settings_of(line["rule"], tv, samples, model)
        older = {"samples": TRAINED_SAMPLES if model else None, "version": settings["version"]}
        stored = {**older, **line}
        return line["verdict"] != "too few" and all(stored.get(name) == value for name, value in settings.items())

    return [line for line in lines if key_of(line) not in again or is_valid(line)]


def kept_lines(path: Path, rules: Sequence[str], drafters: Sequence[str] = ()) -> tuple[list[dict[str, Any]], float]:
    """Return, from an earlier file, the lines of rules and drafters that this call does not audit, and the seconds it took.

    Older files name the tv of their lines once, in the header; it is copied to each line.
    """
    tree = json.loads(path.read_text()) if path.exists() else {"lines": [], "seconds": 0.0}
    header = {"tv": tree["tv"]} if "tv" in tree else {}
    stored = [{**header, **line} for line in tree["lines"]]
    others = [line for line in stored if drafters and line["drafter"] not in drafters]
    lines = others + [line for line in stored if line["rule"] not in rules and line not in others]
    return lines, tree["seconds"] if lines else 0.0


def drafters_of(given: str, model: str) -> list[str]:
    """Return the drafters to audit separately: all that need no training in this script, those given, or none."""
    if given and not model:
        raise ValueError("drafters= needs a trained pair: give model=NAME")
    known = [*names("drafter"), *AUDITED]
    usual = [name for name in known if name not in AUDITED or not AUDITED[name].training]
    return usual if given == "all" else choose("drafters", given, known) if given else []


def main(argv: Sequence[str]) -> int:
    with exit_on_mistake("audit_matrix", __doc__, argv):
        given = parse_words(argv, DEFAULTS)
        known, options = names("verifier"), given.options
        model = choose("model", options["model"], embedded.PAIRS)[0] if "model" in options else ""
        drafters = drafters_of(options.get("drafters", ""), model)
        usual = list(DRAFTERS_RULES) if drafters else known
        rules = choose("rules", options["rules"], known) if "rules" in options else usual
        tv, workers = number(given, "tv") or TV[bool(model)], int(number(given, "workers") or 2)
        samples = int(number(given, "samples") or TRAINED_SAMPLES)
        (missing,) = choose("missing", options.get("missing", "off"), ("on", "off"))
    out, begun = Path(options.get("out", DEFAULTS["out"])), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{'drafters' if drafters else 'matrix'}{f'-{model}' if model else ''}.json"
    others, before_s = kept_lines(path, rules, drafters)
    batches_of_run = list(combinations(model, rules, drafters))
    if missing == "on":
        others, before_s = kept_lines(path, [])
        others = valid_lines(others, batches_of_run, tv, samples, model)
        batches_of_run = list(missing_of(batches_of_run, others))
    if "retrieval" in drafters:
        from scripts.drafter_tables import write_corpus

        write_corpus(HEADS_TASK, CORPUS)
    batches: dict[int, list[dict[str, Any]]] = {}
    lines: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        jobs = {pool.submit(run, *batch, tv, model, samples): n for n, batch in enumerate(batches_of_run)}
        for done in as_completed(jobs):
            batches[jobs[done]] = done.result()
            lines = [*others, *(line for n in sorted(batches) for line in batches[n])]
            if drafters:
                lines.sort(key=lambda line: (line["drafter"], line["temperature"], line["warper"]))
            elapsed_s = time.perf_counter() - begun
            print(f"{len(batches)} of {len(jobs)} batches of rules: {elapsed_s:.0f} s", file=sys.stderr, flush=True)
            seconds = before_s + elapsed_s
            tree = {"seconds": round(seconds, 1), "workers": workers, "lines": lines}
            tree = finite(json.loads(json.dumps(tree, default=float)))
            path.write_text(json.dumps(tree, indent=1) + "\n")
            path.with_suffix(".md").write_text(page(lines, seconds, model or "the tiny random pair"))
    return int(any(line["verdict"] == "violated" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
