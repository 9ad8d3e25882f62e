"""The command: help without torch, exit codes, sentences for bad input, files that are written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sdbench.audit.build import build
from sdbench.audit.command import parse_audit
from sdbench.cli import compose_run
from sdbench.cli import main as front_door
from sdbench.config import ConfigError

ROOT = Path(__file__).parents[2]
STRANGERS = '''
import torch
from sdbench.verify import Ensemble, Joint, Tokenwise


class NoVerifier:
    pass


class Unsaid(Joint):
    """A joint rule that says no law."""

    def __call__(self, evidence, u, state=None):
        return Ensemble(0.5)(evidence, u, state)


class Raises(Tokenwise):
    """A rule that fails in the middle of a text."""

    def accept(self, p, q):
        raise RuntimeError("no luck with these laws")

    def replace(self, p, q):
        return p


class FailsLate(Joint):
    """Lossless, it says, and raises when it is called."""

    def is_lossless(self):
        return torch.tensor([True])

    def __call__(self, evidence, u, state=None):
        raise RuntimeError("called")
'''


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    (tmp_path / "audit_strangers.py").write_text(STRANGERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def main(words):
    return front_door(["audit", *words])


def run_main(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_help_brings_no_torch():
    code = "import sys\nfrom sdbench.cli import main\nmain(['audit', '--help'])\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Exit codes: 0 sound, 1 a claim is violated, 2 bad configuration, 3 not enough samples" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["backend=vllm"], "backend cannot be vllm (choices: sdbench, transformers)"),
        (["mode=assistant"], "mode= is an option of backend=transformers: give both"),
        (["backend=transformers", "mode=nope"], "mode cannot be nope"),
        (
            ["engine=http", "engine.url=http://localhost:1"],
            "an audit decodes with engine=native, got engine=http; give",
        ),
        (["claims=[law,nope]"], "claims cannot hold nope"),
        (["samples=many"], "samples must be a number, got many"),
        (["tv=0"], "tv must be a number above 0 and at most 1, got 0"),
        (["verifier=nope"], "verifier=nope names no file in configs/verifier"),
        (["verifier=asd"], "verifier=asd works at temperature 0 only, got temperature=1"),
        (["verifier._target_=audit_strangers.NoVerifier"], "is not a Verifier: NoVerifier has no is_lossless"),
        (
            ["verifier._target_=audit_strangers.Unsaid"],
            "what can be tested is claims=[q,invariance,greedy,counters]",
        ),
        (["max_new_tokens=40"], "4^40 texts are too many to enumerate"),
        (
            ["max_new_tokens=1", "drafter=lookup"],
            "max_new_tokens must be at least 2: the last token of a text is never drafted",
        ),
        (
            ["model=llama-tiny", "claims=[law]"],
            "1024^8 texts are too many to enumerate; test the distribution by claims=[prefixes,pit]",
        ),
        (["claims=[prefixes,greedy]"], "texts are few enough to enumerate: test the distribution by claims=[law]"),
        (
            ["model=llama-tiny", "claims=[law,greedy]"],
            "texts are too many to enumerate; test the distribution by claims=",
        ),
        (
            ["verifier=judge", "verifier.head=embedded:llama-tiny/gsm8k-tiny"],
            "verifier.head is a head of model=llama-tiny, and without model= a random pair is audited: give model=llama-tiny",
        ),
        (
            ["verifier=[exact,judge]", "verifier.judge.head=embedded:llama-tiny/gsm8k-tiny", "model=qwen-tiny"],
            "verifier.judge.head is a head of llama-tiny, whose target is",
        ),
        (["generations=none.jsonl", "model=llama-tiny"], "generations=none.jsonl cannot be read"),
        (["replay=none.json"], "replay=none.json is not a replay file of the audit"),
        (["replay=none.json", "tvv=1"], "replay= repeats the command in its file and takes no other option, got tvv=1"),
        (["replay=a.json", "replay=b.json"], "takes no other option, got replay=b.json"),
        (
            ["generations=none.jsonl", "model=llama-tiny", "claims=[prefixes,acceptance]"],
            "claims cannot hold acceptance: an audit of generations= tests prefixes, pit",
        ),
        (
            ["backend=transformers", "claims=[greedy,acceptance]"],
            "claims cannot hold acceptance: mode=assistant at temperature 1 tests law, losslessness, greedy",
        ),
        (
            ["backend=transformers", "temperature=0", "claims=[greedy,law]"],
            "claims cannot hold law: mode=assistant at temperature 0 tests greedy",
        ),
        (
            ["verifier._target_=audit_strangers.Unsaid", "drafter=lookup"],
            "what can be tested is claims=[invariance,greedy,counters]",
        ),
    ],
)
def test_bad_input_is_one_sentence(strangers, capsys, words, sentence):
    code, out, err = run_main(capsys, *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


FILE = ["generations=theirs.jsonl", "model=llama-tiny"]


@pytest.mark.parametrize(
    ("audited", "words", "why"),
    [
        ([], ["timing.examples=3", "report=off", "shard=1/2"], "it belongs to runs"),
        (["model=llama-tiny"], ["results=there", "name=x"], "use out="),
        ([], ["task=wmt-tiny", "dtype=float32", "experiment=tiny"], "without model= a random pair is audited"),
        (["backend=transformers"], ["model=llama-tiny", "w=0.5", "num_draft=2"], "backend=transformers builds its own"),
        (["backend=transformers"], ["n=3", "++dtype=float32"], "backend=transformers has a prompt of its own"),
        (
            FILE,
            ["verifier=exact", "samples=9", "backend=sdbench", "task.n=3"],
            "the texts of generations= exist already",
        ),
        (FILE, ["model.packed=true"], "no engine reads the texts of generations="),
    ],
)
def test_an_option_that_an_audit_would_ignore_is_one_sentence(capsys, audited, words, why):
    for word in words:
        code, out, err = run_main(capsys, *audited, word)
        assert (code, out) == (2, "")
        assert f"{word.partition('=')[0].lstrip('+')}= is not an option of this audit; {why}" in err
        assert err.count("\n") == 1


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch cannot pack weights")
def test_packed_weights_are_audited_packed():
    words = ["model=llama-tiny", "model.packed=true", "verifier=exact"]
    subject = build(parse_audit(words, compose_run)).subject
    assert subject.engine.packed
    assert subject.target.dtype == torch.float32
    with pytest.raises(ConfigError, match="packed weights must be bfloat16, float16 or float32, got float64"):
        build(parse_audit([*words, "dtype=float64"], compose_run))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "is empty"),
        ("{}\n", "line 1 is not"),
        (
            '{"prompt": [1], "tokens": [5]}\n{"prompt": [1], "completion": "a"}\n',
            "some lines have tokens and others do not",
        ),
        ('{"prompt": [1], "tokens": [99999]}\n', "its tokenizer differs"),
        ('{"prompt": 5, "tokens": [5]}\n', "line 1 is not"),
        ('{"prompt": [1], "tokens": [5]}\n\n{"prompt": [1], "tokens": 5}\n', "line 3 is not"),
        ('{"prompt": "a", "completion": null}\n', "line 1 is not"),
        ('{"prompt": [1], "tokens": [5]}\n{"prompt": [2], "tokens": [5]}\n', "has one text per prompt for 2 prompts"),
    ],
)
def test_a_file_of_generations_that_does_not_fit_is_one_sentence(tmp_path, capsys, lines, sentence):
    file = tmp_path / "theirs.jsonl"
    file.write_text(lines)
    code, _, err = run_main(capsys, f"generations={file}", "model=llama-tiny")
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("name", ["Raises", "FailsLate"])
def test_an_exception_in_a_strangers_rule_is_a_finding(strangers, capsys, name):
    code, out, err = run_main(capsys, f"verifier._target_=audit_strangers.{name}", "out=here", "samples=50")
    assert code == 1
    assert out.startswith("violated: ")
    assert "Traceback" not in err
    replays = [json.loads(path.read_text()) for path in (strangers / "here").glob("replay-*.json")]
    assert any("RuntimeError" in replay["row"]["note"] for replay in replays)


def test_too_few_samples_is_a_verdict_of_its_own(tmp_path, capsys):
    code, out, _ = run_main(capsys, f"out={tmp_path}", "samples=20", "w=0.5", "claims=[law]")
    assert code == 3
    assert out.startswith("too few: 1 claims tested")
    assert out.count("\n") == 1
    tree = json.loads((tmp_path / "audit.json").read_text())
    assert (tree["verdict"], tree["tv"]) == ("too few", 0.05)
    assert tree["provenance"]["environment"]["versions"]["torch"]


def test_the_default_power_is_that_of_the_backend():
    assert [parse_audit(words, compose_run).options.tv for words in ([], ["backend=transformers"])] == [0.05, 0.15]
    assert parse_audit(["backend=transformers", "tv=0.3"], compose_run).options.tv == 0.3


def test_another_temperature_is_another_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["temperature=0.7", "w=0.5"], ["w=0.5", "temperature=0.7"], ["temperature=0.8", "w=0.5"]):
        assert run_main(capsys, *words, "samples=20", "claims=[law]")[0] == 3
    assert len(list(tmp_path.glob("results/audit-runs/*/audit.json"))) == 2


def test_a_replay_shows_the_cell(strangers, capsys):
    (strangers / "audit_wrong.py").write_text(
        "from sdbench.verify import Exact\n\n\nclass Wrong(Exact):\n    def replace(self, p, q):\n        return p\n"
    )
    code, _, _ = run_main(capsys, "verifier._target_=audit_wrong.Wrong", "out=here", "claims=[losslessness]")
    assert code == 1
    (file,) = (strangers / "here").glob("replay-*.json")
    code, out, _ = run_main(capsys, f"replay={file}")
    assert code == 1
    assert "violated: wrong, losslessness: the text after prompt" in out
    assert "expected" in out


def test_a_replay_of_an_option_that_is_refused_today_names_the_option(tmp_path, capsys):
    file = tmp_path / "replay.json"
    file.write_text(json.dumps({"argv": ["timing=off"], "row": {"setting": "exact", "claim": "law"}}))
    code, out, err = run_main(capsys, f"replay={file}")
    assert (code, out) == (2, "")
    assert "timing" in err
    assert "not a replay file" not in err


def test_a_claim_about_acceptance_needs_power_too(tmp_path, capsys):
    """One text proves nothing; and what the run could have shown is said for claims without a TV, too."""
    words = [f"out={tmp_path}", "w=0.5", "claims=[acceptance]"]
    code, out, err = run_main(capsys, *words, "samples=1")
    assert (code, out.partition(":")[0]) == (3, "too few")
    assert "would have been detected with probability .95" in err
    code, out, _ = run_main(capsys, *words, "samples=4000")
    assert (code, out.partition(":")[0]) == (0, "sound")
