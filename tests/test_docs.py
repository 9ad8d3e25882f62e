"""The texts are true where a machine can tell: examples are shown as they are, links lead somewhere, files and columns exist."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml

from scripts import zoo_tables
from sdbench.engines.served import Vllm
from sdbench.metrics import summary
from sdbench.records import schema
from sdbench.records.measured import PLAIN
from sdbench.subcommand import Exit
from tests.records.synthetic import write_synthetic
from tests.test_architecture import LEFT, MAY_IMPORT

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
by_text = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)

SHOWN = {
    **dict.fromkeys(sorted(EXAMPLES.glob("*.py")), "python"),
    **dict.fromkeys(sorted(EXAMPLES.glob("configs/*/*.yaml")), "yaml"),
}
MOST_LINES = {"my_rule.py": 30, "my_drafter.py": 60, "my_task.py": 35, "reference.py": 46}

LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDERS = ("configs/", "docs/", "notebooks/", "scripts/", "sdbench/", "tests/")


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_extending_shows_every_example_to_the_letter(path: Path):
    assert f"```{SHOWN[path]}\n{path.read_text()}```" in EXTENDING


def test_the_examples_are_short():
    assert {path.name for path in SHOWN if path.suffix == ".py"} == set(MOST_LINES)
    for name, most in MOST_LINES.items():
        assert len((EXAMPLES / name).read_text().splitlines()) <= most, name


def rows_below(path: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = path.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def interval(text: str) -> list[float]:
    return [float(number.replace("−", "-")) for number in re.findall(r"[−-]?\d*\.\d+", text)]


def bounds_of(cell: dict[str, float], name: str) -> list[float]:
    return [cell[f"{name}{end}"] for end in ("", "_low", "_high")]


@pytest.mark.results
def test_the_results_of_the_readme_are_those_of_the_files():
    rows = rows_below(ROOT / "README.md", "Result")
    real = ROOT / "results/real"
    tasks = [row[0].rstrip(")").split(" (") for row in rows]
    assert {task.lower() for task, _ in tasks} == {
        path.parent.name for path in real.glob("*/decisions.csv") if "-" not in path.parent.name
    }
    for (task, score), (_, n, alone, accepted, speed, *safe) in zip(tasks, rows, strict=True):
        folder = real / task.lower()
        cells, decisions = (pd.read_csv(folder / name) for name in ("summary.csv", "decisions.csv"))
        timed = pd.read_csv(real / f"{task.lower()}-latency/summary.csv").query("num_draft == 5")
        points = 100 if cells["quality"].max() <= 1 else 1
        (target,) = cells[cells["verifier"] == "target"].to_dict("records")
        (lossless,) = cells[(cells["verifier"] == "lossless") & (cells["num_draft"] == 5)].to_dict("records")
        (fast,) = timed[timed["verifier"] == "lossless"].to_dict("records")
        assert int(n) == lossless["n"]
        metrics = {"pass@1": "pass@1", "accuracy": "strict", "BLEU": "bleu", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
        assert metrics[score] == lossless["metric"]
        assert interval(alone) == pytest.approx([points * target["quality"]], abs=0.051)
        assert interval(accepted) == pytest.approx(bounds_of(lossless, "acceptance"), abs=0.0051)
        assert interval(speed) == pytest.approx(bounds_of(fast, "speedup"), abs=0.0051)
        assert set(timed["num_timed"]) <= {24}
        settings = decisions.set_index("margin").reindex(columns=["setting"])["setting"]
        for margin, shown in zip((5, 2), safe, strict=True):
            name, _, numbers = shown.partition(": ")
            if settings[margin] != settings[margin]:
                assert (name, numbers) == ("none shown", "")
                continue
            assert settings[margin] == f"ensemble {name.replace(' ', '')} K=5"
            (cell,), (answer,) = (
                table[table["w"] == float(name.removeprefix("w = "))].to_dict("records") for table in (cells, timed)
            )
            change, low, high = (points * number for number in bounds_of(cell, "difference"))
            loss, _, sooner = numbers.partition("; ")
            assert interval(loss) == pytest.approx([-change, -high, -low], abs=0.051)
            assert interval(sooner) == pytest.approx(bounds_of(answer, "sooner"), abs=0.0051)
    newer = pd.read_csv(real / "humaneval-assisted/summary.csv").set_index("verifier").loc["lossless"]
    shown = "{:.2f} [{:.2f}, {:.2f}]".format(*bounds_of(newer, "speedup"))
    assert (
        f"With the current version lossless decoding of HumanEval is {shown} times" in (ROOT / "README.md").read_text()
    )
    assert f"lossless decoding with the current one {shown})" in (ROOT / "results/README.md").read_text()


@pytest.mark.results
def test_the_rules_of_the_readme_are_those_of_the_zoo():
    tables = [
        zoo_tables.settings_within(pd.read_csv(ROOT / f"results/zoo/llama-tiny-gsm8k-tiny-T{T}/summary.csv"))
        for T in (0, 1)
    ]
    rows = rows_below(ROOT / "README.md", "Rules")
    assert len(rows) == 7
    for name, _, *cells in rows:
        for table, cell in zip(tables, cells, strict=True):
            best = table.set_index("verifier").loc["lossless" if name == "`exact`" else name.strip("`")]
            knob, _, shown = cell.rpartition(": ")
            assert knob == "" or float(knob.partition(",")[0].rpartition(" ")[2]) == best["value"]
            numbers = [best["tokens_per_round"]]
            if "–" not in cell:
                numbers += [-best[f"difference{end}"] for end in ("", "_high", "_low")]
            assert interval(shown) == pytest.approx(numbers, abs=0.051)


def test_the_index_links_every_page():
    linked = set(LINK.findall((ROOT / "docs/README.md").read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_layout_lists_every_room():
    words = {
        word.strip("/") for cells in rows_below_title(ROOT / "docs/layout.md") for word in QUOTED.findall(cells[0])
    }
    rooms = {
        path.stem for path in (ROOT / "sdbench").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__"} <= words


def test_the_layout_says_who_may_import_whom_as_the_architecture_tests_do():
    rooms = set(MAY_IMPORT) | {"left"}
    for name, _, imports in (cells for cells in rows_below_title(ROOT / "docs/layout.md") if len(cells) == 3):
        here = {word.strip("/") for word in QUOTED.findall(name)} & set(MAY_IMPORT)
        words = {word for word in re.findall(r"[a-z_]+", imports) if word in rooms}
        expected = words - {"left"} | (LEFT if "left" in words else set())
        for room in here:
            assert expected - {room} == MAY_IMPORT[room] - {room}, room


DRAFTERS = ROOT / "docs" / "drafters.md"
PARTS_OF_A_DRAFTER = ("**Drafts.**", "**Command.**", "**Knobs.**", "**Measured.**", "**Limits.**")


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "drafter").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_drafter_has_a_section_in_the_same_order(path: Path):
    text = DRAFTERS.read_text()
    assert f"| [`{path.stem}`](#{path.stem})" in text, "no row in the overview"
    section = re.split(r"^##+ ", text.partition(f"\n### {path.stem}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    labels = [
        label for label in re.findall(r"^\*\*[A-Z]\w+\.\*\*", section, re.MULTILINE) if label in PARTS_OF_A_DRAFTER
    ]
    assert tuple(labels) == PARTS_OF_A_DRAFTER
    command, knobs = section.partition("**Command.**")[2].partition("**Knobs.**")[::2]
    assert f"    python -m sdbench drafter={path.stem} " in command
    for knob in yaml.safe_load(path.read_text()).keys() - {"name", "_target_"}:
        assert f"`drafter.{knob}`" in knobs.partition("**Measured.**")[0], knob


@pytest.mark.results
def test_the_measured_drafters_are_those_of_the_results():
    columns = {(0, "lossless"), (0, "typical"), (1, "lossless"), (1, "typical")}
    tables = {t: rows_below(ROOT / "results" / "drafters" / "README.md", f"gsm8k-tiny, T = {t}") for t in (0, 1)}
    measured = {(row[0], t, row[1]): row[5] for t, rows in tables.items() for row in rows}
    for name, shown in re.findall(r"^### (\S+)$.*?^\*\*Measured\.\*\* (.*?\n)", DRAFTERS.read_text(), re.M | re.S):
        if (name, 0, "lossless") in measured:
            for t, rule in columns:
                assert measured[name, t, rule] in shown, (name, t, rule)


def rows_below_title(path: Path) -> list[list[str]]:
    return [line.strip("|").split("|") for line in path.read_text().splitlines() if line.startswith("|")]


def test_the_command_of_a_server_is_what_sdbench_starts_itself():
    """docs/engines.md starts by hand what engine=vllm starts: the same module, metrics and kind of draft."""
    for path in (ROOT / "docs/engines.md", ROOT / "plugins/vllm/README.md"):
        block = path.read_text().partition("-m vllm.entrypoints")[2].partition("    python -m sdbench")[0]
        words = shlex.split("-m vllm.entrypoints" + block)
        tree = yaml.safe_load((ROOT / "configs/engine/vllm.yaml").read_text())
        assert words[1] == Vllm.entry
        for name, value in tree["always"].items():
            at = words.index(f"--{name.replace('_', '-')}")
            assert value is True or words[at + 1] == value
        speculative = json.loads(words[words.index("--speculative-config") + 1])
        assert speculative.keys() >= {"method", "model", "num_speculative_tokens"}


def test_every_message_of_troubleshooting_is_one_of_ours():
    """Headings in quotes are messages; what stands for `…` differs from case to case."""
    files = [path for folder in ("sdbench", "plugins") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(path.read_text() for path in [*files, *(ROOT / "scripts").glob("*.sh")])
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # sentences that go over several lines
    headings = re.findall(r"^### (.*`.*)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    messages = [message for heading in headings for message in QUOTED.findall(heading)]
    parts = [part.strip() for message in messages for part in message.split("…") if part.strip()]
    assert len(parts) > 15
    assert not [part for part in parts if part not in source]


@pytest.mark.results
def test_one_table_lists_every_exit_code():
    codes = [int(row[0]) for row in rows_below(ROOT / "docs" / "troubleshooting.md", "Exit codes")]
    assert codes == [int(code) for code in Exit]
    elsewhere = [path.name for path in TEXTS if "| exit code |" in path.read_text() and path.stem != "troubleshooting"]
    assert not elsewhere, "there is one table"


def test_the_curves_of_the_method_are_those_of_the_tables():
    told = [
        line.strip("|").split("|")
        for line in (ROOT / "docs/method.md").read_text().splitlines()
        if line.startswith("|")
    ]
    lines = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in told}
    first = next(i for i, cells in enumerate(told) if cells[0].strip() == "llama-tiny, cnndm-tiny")
    ws = [float(cell) for cell in lines["llama-tiny, cnndm-tiny"]]
    for at, ending in ((first + 2, "-greedy"), (first + 5, "")):
        folder = ROOT / "results/embedded" / f"llama-tiny-cnndm-tiny{ending}"
        summary_, scores = (pd.read_csv(folder / name) for name in ("summary.csv", "metrics.csv"))
        facts = scores[scores["metric"] == "facts"].set_index("cell")["value"]
        swept = summary_[summary_["knob"] == "w"].set_index("value")
        measured = {
            "acceptance": swept["acceptance"],
            "facts": swept["cell"].map(facts) * 100,
            "ROUGE-L": swept["quality"],
        }
        for cells in told[at : at + 3]:
            values = measured[cells[0].strip().removeprefix(f"T = {0 if ending else 1}: ")]
            for w, cell in zip(ws, (cell.strip() for cell in cells[1:]), strict=True):
                assert (cell == "") == (w not in values.index)
                digits = len(cell.partition(".")[2])
                assert cell == "" or float(cell) == pytest.approx(values[w], abs=0.51 * 10**-digits)


@by_text
def test_every_relative_link_leads_to_a_file(path: Path):
    links = [link.partition("#")[0] for link in LINK.findall(path.read_text()) if not link.startswith(("http", "#"))]
    assert not [link for link in links if not (path.parent / link).exists()]


@by_text
def test_every_file_that_is_named_exists(path: Path):
    """Quoted paths from the root; those of files to be written have an x or a NAME in the place of the name."""
    words = [word for quoted in QUOTED.findall(path.read_text()) for word in quoted.split()]
    named = {word for word in words if word.startswith(FOLDERS) and not re.search(r"/x\.|[A-Z]{2}|<", word)}
    assert not [name for name in named if not list(ROOT.glob(name))]


@by_text
def test_every_module_that_is_named_exists(path: Path):
    modules = {word for word in QUOTED.findall(path.read_text()) if re.fullmatch(r"sdbench(\.[a-z]\w*)+", word)}
    public = {"sdbench.generate", "sdbench.read"}
    for module in modules - public:
        place = ROOT.joinpath(*module.split("."))
        assert place.is_dir() or place.with_suffix(".py").exists(), module


@by_text
def test_blocks_of_python_compile(path: Path):
    for block in FENCED.findall(path.read_text()):
        compile(block, path.name, "exec")


def test_the_example_of_the_records_has_a_row_for_rules_without_w(tmp_path):
    folder, names = write_synthetic(tmp_path / "llama-tiny-gsm8k-tiny", n=2), {}
    (block,) = FENCED.findall((ROOT / "docs/records.md").read_text())
    exec(block, names)
    assert {"lossless", "target", "draft", "ensemble"} <= set(
        names["mean_length"](str(folder)).index.get_level_values(0)
    )


def test_every_column_of_the_records_is_described():
    described = set(QUOTED.findall((ROOT / "docs" / "records.md").read_text()))
    stored = {*schema.KEY, *schema.COUNTS, *schema.SUMS, *schema.LABELS, "text", "finish", "epoch", "run"}
    tokens = set(schema.tokens_schema().names)
    measured = {name for kind in PLAIN.values() for name in kind.__dataclass_fields__}
    assert not sorted((stored | tokens | measured) - described)


def test_every_column_of_the_summary_is_described():
    described = set(QUOTED.findall((ROOT / "docs" / "records.md").read_text()))
    assert not sorted({*summary.LEADING, *summary.WITH_INTERVALS, *summary.PLAIN} - described)


def test_citation_and_metadata_say_the_same():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["authors"] == project["authors"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_hooks_before_a_commit_run_what_is_installed():
    """Programs of .venv alone: nothing is downloaded."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    programs = {hook["entry"].split()[0] for hook in hooks[0]["hooks"]}
    assert programs == {".venv/bin/ruff", ".venv/bin/pyright"}
