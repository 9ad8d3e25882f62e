"""The paper's learned head and finetuned draft: from the command to the tables; where they lack, the command that trains them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from scripts.paper import build as paper
from scripts.paper import cells as paper_cells
from scripts.paper import numbers as paper_numbers
from scripts.paper import plots as paper_plots
from scripts.paper import tables as paper_tables
from scripts.paper.numbers import read_published
from sdbench import embedded, read
from sdbench.cli import main
from sdbench.cli.command import Command
from sdbench.cli.compose import Composer
from sdbench.config import Model
from sdbench.prepare import pair
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.trained import with_trained
from sdbench.verify import Head

NAME, TASK = "llama-tiny", "gsm8k-tiny"
OPTIONS = {"resamples": 200}
FEW = ("n=2", "num_draft=5", "max_new_tokens=12", "report=off")
TABLE1, TABLE2, TABLE3 = paper_cells.TABLES


@pytest.fixture(scope="module")
def pair_info():
    model = Model(name=NAME, target=f"embedded:{NAME}/target", draft=f"embedded:{NAME}/draft")
    return PairInfo.read(pair.find(model, device="cpu", dtype="auto"))


def add_head(home, pair_info, task=TASK, name=None, seed=0, temperature=1.0):
    width = sum(int(config.hidden_size) for config in pair_info.configs.values())
    weight = torch.randn(1, width, generator=torch.Generator().manual_seed(seed)) / width**0.5
    card = {"model": NAME, "checkpoints": pair_info.checkpoints, "tokenizer": pair_info.tokenizer_key}
    card |= {"task": task, "temperature": temperature}
    head = Head("ensemble", ("draft_hidden", "target_hidden"), {"weight": weight, "bias": torch.zeros(1)}, card)
    head.save(home / "results" / "heads" / (name or f"{NAME}-{task}"))
    return head


def add_draft(home, pair_info, loss="forward_kl"):
    """The pair's own draft with one weight moved, and the card that a distillation leaves."""
    folder = home / "results" / "drafts" / f"{NAME}-{TASK}-{loss}"
    shutil.copytree(Path(embedded.__file__).parent / NAME / "draft", folder)
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    name = min(name for name in tensors if tensors[name].ndim == 2)
    save_file({**tensors, name: tensors[name] * 1.05}, weights, {"format": "pt"})
    card = {"model": NAME, "task": TASK, "temperature": 1.0, "loss": loss, "steps": 1, "seed": 0}
    (folder / "distilled.json").write_text(json.dumps({**card, "checkpoints": pair_info.checkpoints}))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory, pair_info):
    """Records of the three methods, and of a lenient rule and the draft alone with the distilled draft."""
    home = tmp_path_factory.mktemp("trained")
    add_head(home, pair_info)
    add_draft(home, pair_info)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        words = ["-m", "experiment=diversed-tiny", f"task={TASK}", "method=static,learned,finetuned", "w=null", *FEW]
        assert main(words) == 0
        own = [f"task={TASK}", "temperature=1", "timing=off", *FEW]
        assert main(["model.distilled=forward_kl", "verifier=ensemble", "w=0.5", *own]) == 0
    return home


@pytest.fixture(scope="module")
def cells(home):
    return paper_numbers.measure_cells([read(folder) for folder in paper.folders_of([home / "results"])], **OPTIONS)


def shown(cells, rule, asked=TABLE1, trained=None):
    return paper_cells.find(cells, asked, NAME, "gsm8k", paper_cells.ExhibitRow(rule, None, 5, trained))


def row(*what):
    cell = shown(*what)
    assert cell is not None
    return cell


@pytest.mark.slow
def test_the_three_methods_are_rows_of_one_pair(home, cells, tmp_path):
    assert set(cells["model"]) == {NAME}
    text = paper_tables.render_table("md", TABLE1, paper_tables.measured_entries(TABLE1, cells), [])
    for name in ("SD (lossless)", "SD, finetuned draft", "ensemble w=0.5", "DIVERSED (learned head)"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {NAME} | {name} |")]
        assert "–" not in line.split("|")[3], line
    lacking = [one for one in paper_cells.missing(TABLE1, cells, {}) if one.model == NAME]
    assert {one.task for one in lacking} == {"xsum-tiny", "mbpp-tiny"}
    written = paper.build_paper([home / "results"], tmp_path / "figures", **OPTIONS)
    assert "T = 1, forward_kl; head of llama-tiny on gsm8k: T = 1." in (tmp_path / "figures" / "paper.md").read_text()
    assert all(path.stat().st_size for path in written)


@pytest.mark.slow
def test_a_distilled_draft_is_never_taken_for_the_pair_s_own(home, cells):
    lossless, finetuned = row(cells, "lossless"), row(cells, paper_cells.FINETUNED)
    stored = {folder.name: read(folder).cells.set_index("cell") for folder in paper.folders_of([home / "results"])}
    own = stored[f"{NAME}-{TASK}-T1.0"]
    away = stored[f"{NAME}+forward_kl-{TASK}-T1.0"]
    assert set(own["model"]) == {NAME}
    assert set(away["model"]) == {f"{NAME}+forward_kl"}
    assert lossless["cell"] in own.index
    assert finetuned["cell"] not in own.index
    drafts = {role["checkpoint_draft"] for role in (own.loc[lossless["cell"]], away[away["is_lossless"]].iloc[0])}
    assert len(drafts) == 2
    # what the lenient rule and the draft alone did with it stands in no row
    lenient = stored[f"{NAME}+forward_kl-{TASK}"]
    assert len(lenient[lenient["verifier"] == "ensemble"]) == 1
    assert set(cells["cell"]) - {finetuned["cell"]} <= set(own.index)


def test_a_finetuned_draft_is_held_against_the_lossless_rule_with_the_pair_s_own(cells):
    finetuned = row(cells, paper_cells.FINETUNED)
    assert finetuned["difference"] == finetuned["difference"]
    assert finetuned["speedup_over_lossless"] != finetuned["speedup_over_lossless"]
    assert (finetuned["loss"], finetuned["trained"], finetuned["trained_at"]) == ("forward_kl", "gsm8k", 1.0)


def test_figures_mark_what_was_trained(cells):
    figure = paper_plots.curve(TABLE1, cells, read_published(), {})
    names = {line.get_label(): line.get_marker() for line in figure.axes[0].get_lines()}
    assert names["learned head"] == "*"
    assert names["lossless, finetuned draft"] == "s"


@pytest.mark.slow
def test_a_head_of_this_temperature_comes_first_and_its_row_too(home, pair_info, monkeypatch, capfd):
    monkeypatch.chdir(home)
    words = ["experiment=diversed-tiny", f"task={TASK}", "method=learned", "temperature=0.1", *FEW]
    assert main(words) == 0
    assert "verifier.head was trained with temperature=1.0, but this run has temperature=0.1" in capfd.readouterr().err
    colder = add_head(home, pair_info, name=f"{NAME}-{TASK}-T0.1", seed=1, temperature=0.1)
    assert main(words) == 0
    assert "was trained with temperature" not in capfd.readouterr().err
    folder = home / "results" / f"{NAME}-{TASK}-T0.1"
    stored = read(folder).cells.set_index("cell")
    assert (stored["verifier"] == "diversed").sum() == 2
    cells = paper_numbers.measure_cells([read(folder)], **OPTIONS)
    assert stored.at[row(cells, "diversed", TABLE2)["cell"], "knob_head"] == colder.label
    # Table 3 has the same run under the name of the head's task, and no row of the other head
    assert shown(cells, "diversed", TABLE3, "gsm8k") is not None
    assert shown(cells, "diversed", TABLE3, "cnndm") is None
    shutil.rmtree(home / "results" / "heads" / f"{NAME}-{TASK}-T0.1")


@pytest.mark.slow
def test_heads_of_two_tasks_are_two_rows_of_table_3(home, pair_info, monkeypatch, tmp_path):
    shutil.copytree(home / "results" / "heads", tmp_path / "results" / "heads")
    add_head(tmp_path, pair_info, task="cnndm-tiny", seed=2)
    monkeypatch.chdir(tmp_path)
    words = ["verifier.head=[trained:gsm8k-tiny,trained:cnndm-tiny]", f"task={TASK}", "temperature=0.1", "timing=off"]
    assert main(["method=transfer", *words, *FEW]) == 0
    cells = paper_numbers.measure_cells([read(tmp_path / "results" / f"{NAME}-{TASK}")], **OPTIONS)
    text = paper_tables.render_table("md", TABLE3, paper_tables.measured_entries(TABLE3, cells), [])
    for task in ("gsm8k", "cnndm"):
        (line,) = [line for line in text.splitlines() if f"| DIVERSED, head trained on {task} |" in line]
        assert line.split("|")[3].strip() != "–"
    assert row(cells, "diversed", TABLE3, "gsm8k")["cell"] != row(cells, "diversed", TABLE3, "cnndm")["cell"]


UNTRAINED = {
    (
        "experiment=diversed-table1",
        "model=llama",
        "task=gsm8k",
        "method=finetuned",
    ): "python -m sdbench.train draft model=llama task=gsm8k task.protocol=diversed loss=forward_kl",
    (
        "method=learned",
        "model=qwen",
        "num_draft=3",
    ): f"python -m sdbench.train ensemble model=qwen task={TASK} num_draft=3",
    ("method=finetuned", "num_draft=3"): f"python -m sdbench.train draft model={NAME} task={TASK} loss=forward_kl",
    ("method=learned", "model=qwen", "temperature=0.1"): f"python -m sdbench.train ensemble model=qwen task={TASK}",
    (
        "experiment=diversed-table3",
        "model=qwen",
        "task=cnndm",
        "method=transfer",
    ): "python -m sdbench.train ensemble model=qwen task=gsm8k task.protocol=diversed",
    (
        "verifier=judge",
        "model=qwen-tiny",
        f"verifier.head=trained:{TASK}",
    ): f"python -m sdbench.train judge model=qwen-tiny task={TASK}",
    ("model.target=a/big", "model.draft=a/small", "method=finetuned"): "python -m sdbench.train draft "
    f"model.target=a/big model.draft=a/small task={TASK} loss=forward_kl",
    ("method=learned", f"task={TASK}", "model.distilled=tv"): "has no distilled.json): train one with "
    f"python -m sdbench.train draft model={NAME} task={TASK} loss=tv",
}


@pytest.mark.parametrize("words", UNTRAINED, ids=" ".join)
def test_what_was_not_trained_is_one_sentence_with_the_training_s_command(words, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    message = capfd.readouterr().err.splitlines()
    assert message[0].endswith(UNTRAINED[words])
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").rglob("*.parquet"))


def test_a_head_that_ships_is_taken_where_none_was_trained(home, monkeypatch, tmp_path):
    def head_of(folder):
        monkeypatch.chdir(folder)
        composer = Composer()
        run = with_trained(composer.run(composer.jobs(Command(("method=learned", f"task={TASK}")))[0]))
        return Path(run.verifiers[0].settings[0]["head"])

    assert head_of(tmp_path) == Path(embedded.__file__).parent / "heads" / NAME / TASK
    assert head_of(home) == Path("results") / "heads" / f"{NAME}-{TASK}"


def test_a_torn_card_of_a_draft_is_one_sentence(pair_info, monkeypatch, tmp_path, capfd):
    folder = add_draft(tmp_path, pair_info)
    (folder / "distilled.json").write_text('{"model": "llama-tiny"')
    monkeypatch.chdir(tmp_path)
    assert main(["method=finetuned", *FEW]) == 2
    assert "distil the draft again" in capfd.readouterr().err
    assert not list((tmp_path / "results").rglob("*.parquet"))
