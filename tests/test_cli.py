"""The command line: quick, light, one sentence and exit code 2 for every slip."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from watched import HEAVY, NAMED, sdbench

from sdbench.cli import main
from sdbench.config import DEVICES, DTYPES, GROUPS, KEYS


def test_help_is_light_and_names_every_option_and_group(tmp_path):
    done = sdbench(["--help"], cwd=tmp_path)
    assert done.code == 0
    assert not done.modules & {*HEAVY, "hydra"}
    for key in (*KEYS, *GROUPS):
        assert f"{key}=" in done.out, key
    assert "weight of the TARGET" in done.out
    assert "llama-tiny" in done.out


def test_the_program_itself_starts():
    done = subprocess.run([sys.executable, "-m", "sdbench", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "sdbench 0.1.0\n")


SLIPS = [
    (("w=0.5,0.7",), "write w=[0.5,0.7]"),
    (("w=1.5",), "between 0 and 1"),
    (("model=lama",), "did you mean llama"),
    (("task=gms8k-tiny",), "did you mean gsm8k"),
    (("verifier=exact", "w=0.5"), "takes no w"),
    (("temperature=0", "samples=4"), "samples=4"),
    (("num_draft=x",), "whole number"),
    (("--multi",), "did you mean --multirun"),
    (("-m", "model=llama-tiny,lama"), "did you mean llama"),
    (("results=",), "results"),
]


@pytest.mark.parametrize(
    ("words", "says"), SLIPS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_slip_costs_no_heavy_import_one_sentence_and_code_2(words, says, tmp_path):
    done = sdbench(list(words), cwd=tmp_path)
    assert done.code == 2
    assert says in done.err
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert not done.modules & HEAVY
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_imports_neither_servers_nor_harnesses_that_it_does_not_name(tmp_path):
    words = ["verifier=exact", "n=1", "max_new_tokens=8", "timing.examples=1", "report=off"]
    done = sdbench(words, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "torch" in done.modules
    assert not done.modules & NAMED


@pytest.mark.slow
@pytest.mark.parametrize(("words", "most_s"), [(["--help"], 1), (["w=1.5"], 2)], ids=["help", "slip"])
def test_help_takes_a_second_and_a_slip_two(words, most_s, tmp_path):
    assert min(sdbench(words, cwd=tmp_path).seconds for _ in range(3)) < most_s


NAMES = st.text("abcdefghijklmnopqrstuvwxyz_-", min_size=1, max_size=12)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
INTEGER_KEYS = ("num_draft", "max_new_tokens", "n", "samples", "batch_size")


def outside(low: float, high: float):
    return FLOATS.filter(lambda x: not low <= x <= high)


def words(key: str, values):
    return values.map(lambda value: (f"{key}={value}",))


BAD = st.one_of(
    NAMES.filter(lambda name: name not in (*KEYS, *GROUPS)).map(lambda name: (f"{name}=1",)),
    NAMES.map(lambda name: (name,)),
    words("w", outside(0, 1)),
    words("w", NAMES.filter(lambda name: name not in ("null", "None"))),
    st.lists(outside(0, 1), min_size=1, max_size=3).map(lambda values: (f"w={values}",)),
    words("temperature", outside(0, 100)),
    words("top_p", outside(0, 1)),
    words("margin", outside(0, 100)),
    st.tuples(st.sampled_from(INTEGER_KEYS), st.integers(max_value=0)).map(lambda kv: (f"{kv[0]}={kv[1]}",)),
    st.tuples(
        st.sampled_from(INTEGER_KEYS), outside(1, 2).filter(lambda x: x != int(x) if abs(x) < 1e9 else False)
    ).map(lambda kv: (f"{kv[0]}={kv[1]}",)),
    st.tuples(st.sampled_from(("model", "task", "verifier", "drafter", "decode", "experiment")), NAMES)
    .filter(
        lambda kv: kv[1] not in ("llama", "gemma", "qwen", "null", "exact", "ensemble", "greedy", "low", "seed", "tiny")
    )
    .map(lambda kv: (f"{kv[0]}=zz{kv[1]}",)),
    st.tuples(st.sampled_from(("model", "timing", "verifier", "drafter")), NAMES).map(
        lambda kv: (f"{kv[0]}.zz{kv[1]}=1",)
    ),
    words("device", NAMES.filter(lambda name: name not in DEVICES)),
    words("dtype", NAMES.filter(lambda name: name not in DTYPES)),
    words("name", NAMES.map(lambda name: f"a/{name}")),
    words(
        "shard",
        st.tuples(st.integers(0, 99), st.integers(0, 99)).filter(lambda s: s[0] >= s[1]).map("{0[0]}/{0[1]}".format),
    ),
    words("force", st.integers(2)),
    words("timing", st.integers(2)),
    words("timing.examples", st.integers(max_value=0)),
    st.floats(0, 1).map(lambda w: ("verifier=exact", f"w={w}")),
    st.integers(2, 99).map(lambda samples: ("temperature=0", f"samples={samples}")),
    st.integers(1, 99).map(lambda k: ("temperature=0", f"top_k={k}")),
    st.lists(st.floats(0, 1), min_size=2, max_size=4).map(lambda ws: ("w=" + ",".join(map(str, ws)),)),
    NAMES.map(lambda name: (f"--{name}zz",)),
    words("w", st.sampled_from(["[0.5", "{a", "0.5]", "${nothing}", "'", "(", "a=b,", "[[0.5]]", "{a: 1}"])),
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(BAD)
@pytest.mark.slow
def test_a_bad_configuration_gives_code_2_and_one_sentence(capsys, bad):
    capsys.readouterr()
    code = main([*bad, "--cfg"])
    output = capsys.readouterr()
    assert code == 2, output.out
    assert output.err.count("\n") == 1
    assert output.err.startswith("sdbench: ")
    assert "Traceback" not in output.err
    assert len(output.err) > 20


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_any_text_at_all_is_a_run_or_a_sentence(capsys, anything):
    capsys.readouterr()
    assert main([*anything, "--cfg"]) in (0, 2)
    assert capsys.readouterr().err.count("\n") <= 1


def test_an_option_that_is_given_twice_is_a_warning(capsys):
    assert main(["--cfg", "w=0.7", "n=3", "w=0.8"]) == 0
    out, err = capsys.readouterr()
    assert "w: 0.8" in out
    assert "warning: w is given 2 times, and the last one counts: w=0.7 w=0.8" in err


def test_a_plan_with_too_many_rows_warns_in_one_sentence(capsys, tmp_path):
    assert main(["--plan", "task=gsm8k-tiny", "n=1000", f"results={tmp_path}"]) == 0
    warning = "sdbench: warning: gsm8k-tiny has 500 rows, fewer than n=1000: all are taken"
    assert [line for line in capsys.readouterr().err.splitlines() if "rows" in line] == [warning]
