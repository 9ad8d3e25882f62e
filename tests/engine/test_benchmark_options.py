"""scripts/bench_engine.py refuses what it would not measure, in one sentence and before it reads weights."""

import pytest

from scripts.bench_cold import options_of_processes
from scripts.bench_engine import main
from scripts.bench_rules import names_of
from sdbench.config import config_dir


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("threads=2", "cold= measures processes with threads=1, got threads=2"),
        ("device=cuda", "cold= measures processes with device=cpu, got device=cuda"),
        ("dtype=bfloat16", "cold= measures processes with dtype=float32, got dtype=bfloat16"),
        (
            "pair=tiny-shape",
            "cold= needs an embedded pair: pair must be among llama-tiny, qwen-tiny, gemma-tiny, got tiny-shape",
        ),
    ],
)
def test_first_texts_are_those_of_one_kind_of_process(option, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["cold=8", option])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"bench_engine: {reason}\n"


def test_first_texts_have_one_thread_by_default():
    assert options_of_processes({"pair": "qwen-tiny", "repeats": "5"})["threads"] == "1"
    assert options_of_processes({"threads": "1", "device": "cpu"})["threads"] == "1"


def test_an_unknown_rule_among_known_ones_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["rules=exact,typcial"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("bench_engine: rules must be among ")
    assert message.endswith(", got typcial\n")
    assert names_of("typical,exact") == ["exact", "typical"]
    assert names_of("all") == sorted(path.stem for path in (config_dir() / "verifier").glob("*.yaml"))
