"""Test whether vLLM samples the distribution of its target: results/audit/vllm.{json,md}. The audit sees only the texts.

    python scripts/audit_vllm.py python=.venv-vllm/bin/python [n=500] [new=16] [runs=results/audit-runs/vllm] [out=results/audit]

llama-tiny on a vLLM server continues two prompts of gsm8k-tiny at temperature 1, `n` times each by `new` tokens: without
speculation, with speculation, with speculation and the plug-in, and with a fault planted in the plug-in. `runs` gets the texts, the
logs and the reports of `python -m sdbench.audit generations=`. Exits with 1 if a verdict is not the expected one.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.vllm_cpu import ARGS, CPU, interpreter
from sdbench import embedded
from sdbench.audit.build import CANDIDATES, TRAINED_PROMPTS, least_certain
from sdbench.cli.compose import Composer
from sdbench.engines.protocol import kind_of
from sdbench.engines.served.request import PLUGIN_ENV
from sdbench.prepare.pair import find
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.prompts import Prompts
from sdbench.prepare.rules import build_parts
from sdbench.prepare.task import build_task
from sdbench.serve.answer import Answer
from sdbench.serve.client import Client
from sdbench.serve.command import look, port_of, words_of
from sdbench.serve.plugin import EXPAND, draws_from_laws
from sdbench.serve.process import Server
from sdbench.serve.pump import Pump
from sdbench.verify import Ensemble
from sdbench.words import exit_on_mistake, number, parse_words

ROOT = Path(__file__).parents[1]
PAIR, TASK, NUM_DRAFT, UNDER_WAY = "llama-tiny", "gsm8k-tiny", 5, 64
FAULTY = ROOT / "tests" / "audit" / "faulty_server.py"
ENDINGS = {0: "sound", 1: "violated", 3: "too few"}
DEFAULTS = {"python": "", "n": "500", "new": "16", "runs": "results/audit-runs/vllm", "out": "results/audit"}


@dataclass(frozen=True)
class Case:
    """Texts to test against the target's distribution. `w`: the weight of the plug-in's ensemble; None: requests name no rule."""

    name: str
    title: str
    expected: str
    why: str
    speculates: bool = True
    has_plugin: bool = True
    is_faulty: bool = False
    w: float | None = None

    @property
    def server(self) -> tuple[bool, bool, bool]:
        """Return the options that a server cannot change while it runs."""
        return self.speculates, self.has_plugin, self.is_faulty

    @property
    def extra(self) -> dict[str, Any]:
        if self.w is None:
            return {}
        rule = {"sdbench_rule": "sdbench.verify.Ensemble", "sdbench_version": Ensemble.version}
        return {**rule, "sdbench_knobs": json.dumps({"w": self.w})}


CASES = (
    Case(
        *("alone", "vLLM without speculation", "sound", "samples the target"),
        speculates=False,
        has_plugin=False,
    ),
    Case(
        *("speculating", "vLLM speculating, `standard`", "violated", "vllm#55005: wrong distributions at speculated positions"),
        has_plugin=False,
    ),
    Case("plugin-w1", "the plug-in's ensemble, w = 1", "sound", "lossless", w=1.0),
    Case(
        *("plugin-w05", "the plug-in's ensemble, w = .5, claimed to be lossless", "violated"),
        "emits w·p + (1 − w)·q as it claims, which is not the target's distribution",
        w=0.5,
    ),
    Case(
        *("wrong-residual", "planted: at w = 1 a rejected draft is replaced from p", "violated"),
        "a lossless rule replaces from norm((p − q)+)",
        is_faulty=True,
        w=1.0,
    ),
)  # fmt: skip


@dataclass
class Samples:
    """One pair and its prompts; `draw` requests texts from a server."""

    python: str
    runs: Path
    n: int
    new: int
    pump: Pump = field(default_factory=Pump)
    commands: dict[tuple[bool, bool, bool], list[str]] = field(default_factory=dict)
    version: str | None = None

    def __post_init__(self) -> None:
        words = [f"model={PAIR}", f"task={TASK}", f"n={CANDIDATES}", "engine=vllm", "temperature=1"]
        run = Composer().run([*words, f"max_new_tokens={self.new}"])
        self.kind = kind_of(run)
        pair_info = PairInfo.read(find(run.model, device="cpu", dtype="auto", is_read=False))
        prompts = list(Prompts.make(build_task(run), pair_info, run, build_parts(run)).ids.values())
        target = AutoModelForCausalLM.from_pretrained(embedded.path(PAIR, "target"))
        self.prompts = least_certain(target, prompts, TRAINED_PROMPTS)

    @contextmanager
    def server(self, speculates: bool, has_plugin: bool, is_faulty: bool) -> Iterator[Client]:
        kind, port = self.kind, port_of("127.0.0.1", None)
        model, url = str(embedded.path(PAIR, "target")), f"http://127.0.0.1:{port}"
        speculative = {**kind.speculative, "model": str(embedded.path(PAIR, "draft"))} if speculates else None
        if speculative:
            speculative["num_speculative_tokens"] = NUM_DRAFT
        env = {**CPU, **(PLUGIN_ENV if has_plugin else {"VLLM_PLUGINS": ""})}
        if is_faulty:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FAULTY.parent), os.environ.get("PYTHONPATH")]))
        entry = FAULTY.stem if is_faulty else kind.entry
        words = words_of(self.python, entry, {"model": model, "port": port, **ARGS}, speculative)
        self.commands[speculates, has_plugin, is_faulty] = command_text(words, env)
        server = Server.start(words, url, self.runs / f"{port}.log", env=env, grace_s=kind.grace_s)
        client = Client(url, kind.dialect, kind.patience, kind.headers)
        try:
            server.wait_until_ready(kind.health, kind.start_s)
            self.pump.run(client.open())
            self.version = self.pump.run(client.get(kind.dialect.version))["version"]
            yield client
        finally:
            self.pump.run(client.close())
            server.close()

    def draw(self, client: Client, case: Case, file: Path) -> None:
        """Write `n` texts of each prompt, each requested with its own seed.

        Without the plug-in no request has a seed: on a CPU, seeds end an engine that reads a prompt in several steps.
        """
        seeds = count(1)
        asks = [
            (prompt, {"seed": next(seeds)} if case.has_plugin else {}) for _ in range(self.n) for prompt in self.prompts
        ]

        async def work(ask: tuple[list[int], dict[str, int]]) -> Answer:
            return await client.complete({**self.body(ask[0], case.extra), **ask[1]})

        answers = self.pump.each(asks, work, UNDER_WAY)  # pyright: ignore[reportArgumentType]
        lines = [json.dumps({"prompt": prompt, "tokens": list(answer.ids)}) for (prompt, _), answer in answers]
        file.write_text("\n".join(lines) + "\n")

    def body(self, prompt: Sequence[int], extra: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self.kind.dialect.request,
            **({self.kind.dialect.extra: dict(extra)} if extra else {}),
            "model": str(embedded.path(PAIR, "target")),
            "prompt": list(prompt),
            "max_tokens": self.new,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": self.kind.dialect.top_k_all,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def command_text(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return a server's command as typed in the root of this repository."""
    relative = [word.replace(f"{ROOT}{os.sep}", "") for word in words[1:]]
    variables = [f"{key}={value}" for key, value in env.items() if key != "PYTHONPATH"]
    path = [f"PYTHONPATH={FAULTY.parent.relative_to(ROOT)}"] if "PYTHONPATH" in env else []
    return [*variables, *path, "python", *map(shlex.quote, relative)]


def audit_texts(file: Path) -> dict[str, Any]:
    """Audit a file of texts with `python -m sdbench.audit`, and return the report."""
    options = [f"model={PAIR}", "temperature=1"]
    words = ["-m", "sdbench.audit", f"generations={file}", *options, f"out={file.with_suffix('')}"]
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True)
    if done.returncode not in ENDINGS:
        raise RuntimeError(f"the audit of {file} ended with code {done.returncode}: {done.stderr[-2000:]}")
    tree = json.loads((file.with_suffix("") / "audit.json").read_text())
    keep = ("claim", "verdict", "statistic", "p", "effect", "samples", "cell")
    rows = [{key: row[key] for key in keep} for row in tree["rows"]]
    command = " ".join(["python -m sdbench.audit", f"generations={file.name}", *options])
    return {"command": command, "verdict": tree["verdict"], "texts": tree["texts"], "rows": rows}


def page(tree: Mapping[str, Any]) -> str:
    lines = []
    for case in tree["cases"]:
        failing = ", ".join(
            f"{row['claim']} (log e {statistic_text(row['statistic'])})"
            for row in case["rows"]
            if row["verdict"] != "sound"
        )
        largest = max(row["effect"]["value"] for row in case["rows"])
        lines.append(f"| {case['title']} | **{case['verdict']}** | {failing or '–'} | {largest:.3f} | {case['why']} |")
    has = tree["installed"]
    least: dict[str, float] = {}
    for effect in (row["effect"] for case in tree["cases"] for row in case["rows"]):
        least[effect["view"]] = max(float(effect["least"]), least.get(effect["view"], 0.0))
    detected = " and ".join(f"{value:.3f} of {view}" for view, value in least.items())
    commands = dict.fromkeys(f"    {case['server']}" for case in tree["cases"])
    audits = dict.fromkeys(f"    {case['audit']}" for case in tree["cases"])
    about = (
        f"vLLM {tree['version']} (torch {has['torch']}, transformers {has['transformers']}, Python {has['python']}) serves {PAIR}, "
        f"{NUM_DRAFT} drafts a step where it speculates, and continues {tree['prompts']} prompts of {TASK} {tree['n']} times each "
        f"by {tree['new']} tokens. The audit is given only the texts and the target. The chance of a false alarm is at most 1 % a "
        f"line; a total variation of {detected} would have been detected with probability .95."
    )
    return "\n".join(
        [
            *("# vLLM's CPU build at temperature 1", "", about, ""),
            "| texts of | verdict | violated claims | largest TV | why |",
            "|---|---|---|---|---|",
            *(*lines, ""),
            "The first token after a prompt is drawn without a draft, so a fault of speculation shows from the second token on.",
            *("", "## The cause, without a model", ""),
            "Five positions of two requests must get the numbers of their requests. In this build they "
            f"{'do' if tree['expands'] else 'do not'}:",
            "",
            *(f"    {line}" for line in [*EXPAND.strip().splitlines(), f"→ is_right {tree['expands']}"]),
            "",
            "The plug-in replaces that function, and `engine=vllm` refuses T > 0 without it.",
            *("", "## Commands", "", "Written by `python scripts/audit_vllm.py python=…`. The servers:", ""),
            *(*commands, "", "and the audits:", "", *audits, ""),
        ]
    )


def statistic_text(statistic: float | str) -> str:
    """Return a statistic as text; infinite evidence is a string in JSON."""
    return "∞" if isinstance(statistic, str) else f"{statistic:.0f}"


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("audit_vllm", __doc__, words):
        given = parse_words(words, DEFAULTS)
        options = DEFAULTS | dict(given.options)
        n, new = (int(number(given, name) or int(DEFAULTS[name])) for name in ("n", "new"))
        installed = look(interpreter(options), "vllm")
    runs, out = Path(options["runs"]), Path(options["out"])
    runs.mkdir(parents=True, exist_ok=True)
    samples, cases = Samples(options["python"], runs, n, new), []
    try:
        for setting in dict.fromkeys(case.server for case in CASES):
            with samples.server(*setting) as client:
                for case in CASES:
                    if case.server == setting:
                        samples.draw(client, case, runs / f"{case.name}.jsonl")
                        print(f"audit_vllm: drew {case.name}", file=sys.stderr)
    finally:
        samples.pump.close()
    for case in CASES:
        report = audit_texts(runs / f"{case.name}.jsonl")
        about = {
            "name": case.name,
            "title": case.title,
            "why": case.why,
            "expected": case.expected,
            "request": case.extra,
        }
        shell = {"server": " ".join(samples.commands[case.server]), "audit": report.pop("command")}
        cases.append({**about, **report, **shell})
        print(f"audit_vllm: {case.name}: {report['verdict']}", file=sys.stderr)
    tree = {"version": samples.version, "installed": installed, "expands": draws_from_laws(options["python"])}
    tree |= {"n": n, "new": new, "prompts": len(samples.prompts), "cases": cases}
    out.mkdir(parents=True, exist_ok=True)
    (out / "vllm.json").write_text(json.dumps(tree, indent=1, ensure_ascii=False) + "\n")
    (out / "vllm.md").write_text(page(tree))
    return int(any(case["verdict"] != case["expected"] for case in cases))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
