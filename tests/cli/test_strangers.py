"""Rules, drafters and tasks from outside the package through the whole command, and what is refused before weights are read."""

import sys

import pytest
from micro import overridden

from sdbench.cli import main
from sdbench.records import read

NAME = "micro-gsm8k-tiny"
pytestmark = pytest.mark.usefixtures("no_figures")

LIKELY = '''
from dataclasses import dataclass
import torch
from sdbench.types import Limits
from sdbench.verify import Exact

@dataclass(frozen=True)
class Likely(Exact):
    """Keeps what the target likes well enough: p(x) >= eps."""
    eps: float = 0.1
    limits = Limits(temperature="above_zero", num_draft=(1, 4))
    version = "3"

    def accept(self, p, q):
        eps = self.eps[:, None, None] if isinstance(self.eps, torch.Tensor) else self.eps
        return (p >= eps).to(p)

    def is_lossless(self):
        return torch.tensor([False])

    def measure(self, evidence):
        return super(Exact, self).measure(evidence)

class Wishful(Likely):
    needs = frozenset({"oracle"})
'''
LIKELY_YAML = """name: likely
_target_: {module}.Likely
knobs:
  eps: {{low: 0, high: 1, strict: 1, sweep: [0.001, 0.002]}}
"""


@pytest.fixture
def likely(tmp_path, monkeypatch):
    """The arguments that make `likely` known, and the name of its module."""
    module = f"likely_{abs(hash(tmp_path))}"
    (tmp_path / f"{module}.py").write_text(LIKELY)
    (tmp_path / "conf" / "verifier").mkdir(parents=True)
    (tmp_path / "conf" / "verifier" / "likely.yaml").write_text(LIKELY_YAML.format(module=module))
    (tmp_path / "conf" / "verifier" / "both.yaml").write_text("defaults:\n  - ensemble@ensemble\n  - likely@likely\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield ["--config-dir", str(tmp_path / "conf")], module
    sys.modules.pop(module, None)


def without_w(given: list[str]) -> list[str]:
    return [word for word in given if not word.startswith("w=")]


def test_several_rules_are_one_stream_one_folder_and_one_table(words, tmp_path, likely, capsys):
    config, _ = likely
    given = words(tmp_path, n=2, w="[0.3,0.6]", num_draft=3, max_new_tokens=8)
    assert main([*given, "verifier=[ensemble,likely]", "verifier.likely.eps=[0.001,0.003]", *config]) == 0
    output = capsys.readouterr()
    num = 2 * (2 + 2 + 3)
    assert f"decoding: {num}/{num} in" in output.err
    assert "likely eps=0.001" in output.out
    assert "ensemble w=0.3" in output.out
    frame = read(tmp_path / NAME).generations
    assert frame.groupby("verifier").size().to_dict() == {
        "draft": 2,
        "lossless": 2,
        "target": 2,
        "ensemble": 4,
        "likely": 4,
    }
    assert main([*given, "verifier=both", "verifier.likely.eps=[0.001,0.003]", *config]) == 0
    assert "nothing to decode" in capsys.readouterr().err
    assert main([*without_w(given), "verifier=likely", "verifier.eps=0.003", *config]) == 0
    assert "nothing to decode" in capsys.readouterr().err


def test_what_a_part_cannot_do_is_one_sentence_before_weights_are_read(words, tmp_path, likely, capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError("weights are read")

    monkeypatch.setattr("sdbench.prepare.pair.load", never)
    config, module = likely
    given = [*without_w(words(tmp_path, n=1)), *config]
    refused = {
        ("verifier=likely", "temperature=0"): "verifier=likely needs a temperature above 0, got temperature=0",
        ("verifier=likely", "num_draft=[3,5]"): "verifier=likely takes a num_draft of from 1 to 4, got num_draft=5",
        (f"verifier._target_={module}.Wishful",): "needs 'oracle', which does not exist",
        (f"verifier._target_={module}.Nothing",): "has no attribute 'Nothing'",
        ("model.draft=null",): "drafter=model needs a draft model: give model.draft=ID",
        (f"drafter._target_={module}.Nothing",): "drafter=nothing cannot be built",
        ("verifier=[ensemble,likely]", "verifier.likely.name=ensemble"): "verifier names ensemble twice",
        ("task._target_=nowhere_at_all.Task",): "task=task: No module named 'nowhere_at_all'",
        ("verifier=[ensemble,likely]", "verifier.eps=0.1"): "verifier.eps is not an option",
    }
    for words_, sentence in refused.items():
        capsys.readouterr()
        assert main(overridden(given, *words_)) == 2, words_
        message = capsys.readouterr().err
        assert message.count("\n") == 1, message
        assert sentence in message


def test_a_class_without_arguments_works(words, tmp_path, likely):
    config, module = likely
    given = [*without_w(words(tmp_path, n=1, num_draft=3, max_new_tokens=4)), *config]
    assert main([*given, f"verifier._target_={module}.Likely"]) == 0
    cells = read(tmp_path / NAME).cells
    versions = {content["versions"]["verifier"] for content in cells.loc[cells["verifier"] == "likely", "content"]}
    (version,) = versions
    assert version.startswith("3 source:")


def test_samples_at_temperature_zero_need_a_rule_that_draws(words, tmp_path, capsys):
    given = words(tmp_path, n=1, w=0.5, temperature=0, samples=2, max_new_tokens=8)
    assert main(given) == 2
    assert "samples=2 at temperature=0" in capsys.readouterr().err
    assert main([*given, "verifier.greedy=mixture"]) == 0
    assert len(read(tmp_path / NAME).generations) == 2 * 4


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A rule in mine/rules, its helper one folder up, and one beside the package that is imported inside a function."""
    (tmp_path / "mine" / "rules").mkdir(parents=True)
    (tmp_path / "mine" / "rules" / "rule.py").write_text(
        "from mine.common import FACTOR\n"
        "class R:\n    version = '1'\n    def accept(self):\n        from late_helper import OTHER\n        return FACTOR * OTHER\n"
    )
    (tmp_path / "mine" / "common.py").write_text("FACTOR = 1.0\n")
    (tmp_path / "late_helper.py").write_text("OTHER = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "late_helper")]:
        sys.modules.pop(name)


@pytest.mark.parametrize("file", ["mine/common.py", "late_helper.py"])
def test_an_edited_helper_is_another_version_wherever_it_lies_and_whenever_it_is_imported(package, file):
    from sdbench.imports import import_object
    from sdbench.prepare.versions import sources, version_of

    rule = import_object("mine.rules.rule.R")
    before = version_of(rule)
    assert {path.name for path in sources(rule)} == {"rule.py", "common.py", "late_helper.py"}
    (package / file).write_text((package / file).read_text().replace("1.0", "1e-9"))
    assert version_of(rule) != before


@pytest.mark.parametrize(
    "content", [b"def broken(:\n", b"# -*- coding: no-such-code -*-\n", b"\xff\xfe = 1\n", b"x = 1\x00\n"]
)
def test_a_file_of_a_package_that_is_no_valid_python_is_hashed_all_the_same(package, content):
    """Templates and data of tests often are none, though they end in .py."""
    from sdbench.imports import import_object
    from sdbench.prepare.versions import sources, version_of

    rule = import_object("mine.rules.rule.R")
    before = version_of(rule)
    (package / "mine" / "template.py").write_bytes(content)
    assert "template.py" in {path.name for path in sources(rule)}
    assert version_of(rule) != before
