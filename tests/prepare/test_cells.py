"""The keys of cells: what decides a text or its score is in them, and what does not is on a list that says why."""

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from keyed import NOT_IN_THE_KEY
from safetensors.torch import load_file, save_file

import sdbench.tasks
from sdbench import embedded
from sdbench.cli.command import parse
from sdbench.cli.compose import Composer
from sdbench.config import Component, Knob, Model, RuleSweep, Run, Shard, TimingOptions
from sdbench.draft.intersection import IntersectionDrafter
from sdbench.files import digest_of_file
from sdbench.prepare import pair as pairs
from sdbench.prepare.cells import NOT_OF_THE_KEY, _task_content, points
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.rules import build_parts, refuse_folder_of_run
from sdbench.prepare.task import build_task
from sdbench.prepare.versions import files_of

RULE = """
from dataclasses import dataclass
from sdbench.verify import Exact
from {helper} import LEVEL

@dataclass(frozen=True)
class Mine(Exact):
    head: str = ""
"""


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


@pytest.fixture
def plan_of(composer):
    """word, … -> the points of that run, without a weight."""

    def plan(*words: str, changed=None):
        has_w = not any(word.startswith("verifier._target_") for word in words)
        (overrides,) = composer.jobs(parse(["n=2", *(["w=[0.3,1]"] if has_w else []), *words]))
        run = composer.run(overrides)
        run = run if changed is None else changed(run)
        pair_info = PairInfo.read(pairs.find(run.model, device="cpu", dtype=run.dtype))
        return points(run, build_task(run), pair_info, build_parts(run))

    return plan


def keys(planned) -> set[str]:
    return {point.cell.key for point in planned}


def test_a_cell_names_its_axes_in_the_order_of_the_rules_file(plan_of):
    cells = {point.cell.w: point.cell for point in plan_of() if point.cell.verifier == "ensemble"}
    assert cells[0.3].axes == [
        {"knob": "w", "value": 0.3, "rank": pytest.approx(0.7), "equals": "exact"},
        {"knob": "mix", "value": "prob", "rank": None, "equals": None},
        {"knob": "greedy", "value": "blend", "rank": None, "equals": None},
    ]
    assert cells[1.0].axes[0]["rank"] == 0


def test_texts_whose_first_blank_was_dropped_are_not_mixed_with_whole_ones(plan_of, monkeypatch):
    whole = plan_of("timing=off")
    assert all("text" not in point.cell.content["versions"] for point in whole)
    monkeypatch.setattr(PairInfo, "drops_blank", True)
    assert keys(whole).isdisjoint(keys(plan_of("timing=off")))


def test_laws_cut_by_top_p_have_a_version_and_others_keep_their_keys(plan_of):
    for words, version in ((["temperature=1", "top_p=0.9"], "2"), (["temperature=1", "top_p=1"], None), ([], None)):
        points = plan_of("timing=off", *words)
        assert {point.cell.content["versions"].get("top_p") for point in points} == {version}


@pytest.mark.slow
def test_another_length_of_prompts_is_another_cell(plan_of):
    plain, short, long = (
        keys(plan_of("timing=off", *words)) for words in ((), ("task.pad_to=300",), ("task.pad_to=400",))
    )
    assert plain.isdisjoint(short)
    assert long.isdisjoint(plain | short)
    documents = [
        keys(plan_of("task=long-tiny", f"task.{option}")) for option in ("length=200", "length=210", "entropy=low")
    ]
    assert len(set.union(*documents)) == sum(map(len, documents))


@pytest.mark.parametrize(
    ("name", "source", "keyed"),
    [
        ("mbpp-tiny", "rows 2, 3, 4, then the first", "first"),
        ("gsm8k-tiny", "drawn", "drawn"),
        ("xsum-tiny", "first", "first"),
    ],
)
def test_what_records_say_of_the_shots_is_not_in_the_key_which_keeps_its_word(name, source, keyed):
    task = sdbench.tasks.load(name)
    described = {key: value for key, value in task.describe().items() if key not in NOT_OF_THE_KEY}
    assert described["shots_from"] == source
    assert _task_content(task)["task"] == described | {"shots_from": keyed}


def test_a_file_of_shots_is_in_the_key_where_not_all_prompts_are_hashed(plan_of, tmp_path, monkeypatch):
    """A shot that only rows beyond the first 256 have could be edited under the same keys. Other keys stay as they were."""
    rows = [{"question": f"How many is {number}?", "answer": f"It is.\n#### {number}"} for number in range(40)]
    data, shots = tmp_path / "data.jsonl", tmp_path / "shots.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    options = {"data": str(data), "shots_data": str(shots), "shots": 1}

    def planned(*words: str, edited: int | None = None) -> list:
        changed = [row | {"answer": "#### 7"} if number == edited else row for number, row in enumerate(rows[4:])]
        shots.write_text("".join(json.dumps(row) + "\n" for row in changed))
        return plan_of("task=gsm8k-tiny", *(f"task.{name}={value}" for name, value in options.items()), *words)

    first = keys(planned())
    task = sdbench.tasks.load("gsm8k-tiny", **options)
    shown = [task._drawn[key][0] for key in task.rows]
    assert shown[3] not in shown[:3]
    unseen = min(set(range(36)) - set(shown))
    assert keys(planned(edited=unseen)) == first, "no prompt has it"
    assert all("task.shots_data" in point.cell.content["files"] for point in planned("task.pad_to=200"))
    monkeypatch.setattr("sdbench.prepare.cells.WORDED", 3)
    assert keys(planned()).isdisjoint(keys(planned(edited=shown[3])))


def knob(values, **declared) -> Knob:
    return Knob.check("verifier.x", "x", values, declared)


def test_ranks_are_distances_from_the_strict_end():
    assert [knob([0.1, 0.5], low=0, high=1, strict=0).rank(x) for x in (0.1, 0.5)] == pytest.approx([0.1, 0.5])
    grades = knob(["a", "c"], choices=["a", "b", "c"], strict="c")
    assert [grades.rank(x) for x in "abc"] == [2, 1, 0]
    assert knob(["a"], choices=["a", "b"]).rank("a") is None
    endless = [knob([1.0], low=0, strict=float("inf")).rank(x) for x in (1e9, 10, 1, 0)]
    assert endless == sorted(endless)
    assert endless[0] > 0
    upwards = [knob([1.0], strict=float("-inf")).rank(x) for x in (-5, 0, 5)]
    assert upwards == sorted(upwards)


def test_several_rules_share_one_plan_and_its_baselines(plan_of):
    several = plan_of("verifier=[ensemble,exact]")
    names = [point.cell.verifier for point in several]
    assert sorted(names) == ["draft", "ensemble", "ensemble", "lossless", "target"]
    assert keys(several) == keys(plan_of())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A rule of one's own, in a module that imports another beside it, each written anew by `write`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name, helper = f"mine_{tmp_path.name}", f"helper_{tmp_path.name}"

    def write(*, rule: str = "", level: str = "LEVEL = 1\n") -> str:
        import sys

        (tmp_path / f"{helper}.py").write_text(level)
        (tmp_path / f"{name}.py").write_text(RULE.format(helper=helper) + rule)
        for each in (name, helper):
            sys.modules.pop(each, None)
        return f"verifier._target_={name}.Mine"

    return write


def of_the_rule(planned) -> set[str]:
    return {point.cell.key for point in planned if point.cell.verifier == "mine"}


def test_an_edited_rule_is_another_cell_and_so_is_an_edited_helper(plan_of, module):
    seen = [
        of_the_rule(plan_of(module())),
        of_the_rule(plan_of(module(rule="# a word\n"))),
        of_the_rule(plan_of(module(level="LEVEL = 2\n"))),
        of_the_rule(plan_of(module())),
    ]
    assert all(len(one) == 1 for one in seen)
    assert seen[0] == seen[3]
    assert len(seen[0] | seen[1] | seen[2]) == 3


def test_heads_of_a_drafter_that_are_trained_again_in_their_folder_are_other_cells(plan_of, tmp_path):
    shipped = Path(embedded.__file__).parent / "drafters" / "medusa" / "llama-tiny" / "gsm8k-tiny"
    folder = shutil.copytree(shipped, tmp_path / "heads")

    def planned() -> set[str]:
        cells = [point.cell for point in plan_of("drafter=medusa", f"drafter.head={folder}")]
        return {cell.key for cell in cells if cell.drafter == "medusa"}

    first = planned()
    assert first
    assert first == planned()
    weights = load_file(folder / "head.safetensors")
    save_file({name: x + 0.01 for name, x in weights.items()}, folder / "head.safetensors")
    assert not first & planned()


def test_a_corpus_of_a_drafter_is_keyed_by_its_content(plan_of, tmp_path):
    corpus = tmp_path / "corpus.txt"

    def planned(text: str) -> set[str]:
        corpus.write_text(text)
        cells = [point.cell for point in plan_of("drafter=retrieval", f"drafter.corpus={corpus}")]
        return {cell.key for cell in cells if cell.drafter == "retrieval"}

    first = planned("one text\n")
    assert first
    assert first == planned("one text\n")
    assert not first & planned("another text\n")


def test_each_of_several_files_of_an_option_is_in_the_key(tmp_path):
    paths = [tmp_path / name for name in ("a.py", "b.py")]

    def digests(*names: object) -> str:
        return files_of({"extra_metrics": [*map(str, names)]}, prefix="task")["task.extra_metrics"]

    for path in paths:
        path.write_text(f"# {path.name}\n")
    seen = [digests(*paths)]
    for path in paths:
        path.write_text("# another score\n")
        seen.append(digests(*paths))
    assert len(set(seen)) == 3
    assert digests(paths[0]) == digests(paths[0], "rouge") == digest_of_file(paths[0]), "a single file keeps its key"


def test_a_file_that_a_knob_names_is_keyed_by_its_content(plan_of, module, tmp_path):
    word = module()
    (tmp_path / "head.bin").write_bytes(b"one")
    first = of_the_rule(plan_of(word, "verifier.head=head.bin"))
    (tmp_path / "head.bin").write_bytes(b"two")
    assert not first & of_the_rule(plan_of(word, "verifier.head=head.bin"))
    (tmp_path / "head.bin").write_bytes(b"one")
    assert first == of_the_rule(plan_of(word, "verifier.head=head.bin"))


def test_a_class_of_the_package_is_keyed_by_its_version(plan_of, monkeypatch):
    before = plan_of()
    monkeypatch.setattr("sdbench.verify.Ensemble.version", "7", raising=False)
    after = plan_of()
    changed = {point.cell.verifier for point in before if point.cell.key not in keys(after)}
    assert changed == {"ensemble"}


def test_a_drafter_that_reads_no_draft_names_none(plan_of, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lookup_of_a_test.py").write_text("class Lookup:\n    pass\n")
    word = "drafter._target_=lookup_of_a_test.Lookup"
    with_a_draft, without = plan_of(word), plan_of(word, "model.draft=null")
    for point in with_a_draft:
        assert set(point.cell.checkpoints) == ({"draft"} if point.role == "draft" else {"target"})
    assert keys(without) == {point.cell.key for point in with_a_draft if point.role != "draft"}


def test_a_cell_is_the_same_in_a_list_of_drafters_as_alone(plan_of):
    alone = [plan_of(f"drafter={name}") for name in ("model", "lookup", "suffix")]
    together = plan_of("drafter=[model,lookup,suffix]")
    assert keys(together) == set.union(*map(keys, alone))
    assert keys(plan_of("drafter=[model]")) == keys(plan_of())
    counts = Counter((point.role, point.drafter and point.drafter.name) for point in together)
    assert counts == {("pair", name): 3 for name in ("model", "lookup", "suffix")} | {
        ("target", None): 1,
        ("draft", None): 1,
    }
    lossless = {point.drafter.name: point.cell.key for point in together if point.cell.verifier == "lossless"}
    for point in together:
        if point.cell.same_as is not None:
            assert point.cell.same_as == lossless[point.drafter.name], "w = 1 has the texts of its own drafter"


def test_another_version_of_a_drafters_class_is_another_cell_of_it_alone(plan_of, monkeypatch):
    words = "drafter=[model,lookup,intersection]"
    before = plan_of(words)
    monkeypatch.setattr(IntersectionDrafter, "version", "another")
    after = keys(plan_of(words))
    changed = {point.drafter and point.drafter.name for point in before if point.cell.key not in after}
    assert changed == {"intersection"}


def test_an_edited_subclass_of_a_drafter_is_another_cell(plan_of, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def with_source(end: str) -> set[str]:
        source = "from sdbench.draft.intersection import IntersectionDrafter\n\n\nclass Mine(IntersectionDrafter):\n    pass\n"
        (tmp_path / "intersection_of_a_test.py").write_text(source + end)
        planned = plan_of("drafter._target_=intersection_of_a_test.Mine")
        return {point.cell.key for point in planned if point.drafter}

    first, edited = with_source(""), with_source("# a word\n")
    assert not first & edited
    assert with_source("") == first


@pytest.mark.parametrize(
    ("drafters", "limit"),
    [("model", 64), ("lookup", 64), ("[model,universal]", 64), ("universal", 2048), ("[intersection,lookup]", 2048)],
)
def test_prompts_are_cut_for_a_draft_only_where_it_reads_their_ids(plan_of, monkeypatch, drafters, limit):
    """The positions of a draft with another tokenizer count in other ids."""
    monkeypatch.setattr(PairInfo, "limit_of", lambda _, role: {"target": 2048, "draft": 64}[role])
    planned = plan_of(f"drafter={drafters}")
    assert {point.cell.content["shown"]["limit"] for point in planned} == {limit}
    assert any(point.role == "draft" for point in planned) == (limit == 64)


def test_what_a_key_holds_of_a_drafter_is_its_name_its_options_and_its_version(plan_of):
    """As before there were lists: otherwise every text that is held would be decoded anew."""
    together = plan_of("drafter=[model,lookup]", "drafter.lookup.longest=9")
    held = {point.drafter.name: point.cell.content for point in together if point.drafter}
    assert [held[name]["drafter"] for name in ("model", "lookup")] == [
        {"name": "model"},
        {"name": "lookup", "shortest": 2, "longest": 9},
    ]
    assert {content["versions"]["drafter"] for content in held.values()} == {"1"}
    assert "draft_dtype" in held["model"]
    assert "draft_dtype" not in held["lookup"], "a look-up reads no draft"


# Every field of a resolved run. A change of it changes keys, or it stands on the list, with the reason.


def changes(run: Run) -> dict[str, Run]:
    """`Class.field` -> a run that differs in it alone."""
    swap = dataclasses.replace
    sweep, model, task = run.verifiers[0], run.model, run.task
    knobs = {"mix": swap(sweep.knobs[1], values=("logit",))}

    def rule(**fields):
        return swap(run, verifiers=(swap(sweep, **fields),))

    def drafter(**fields):
        return swap(run, drafters=(swap(run.drafters[0], **fields),))

    def first_knob(**fields):
        return rule(knobs=(swap(sweep.knobs[0], **fields), *sweep.knobs[1:]))

    return {
        "Run.model": swap(run, model=swap(model, target="embedded:qwen-tiny/target", draft="embedded:qwen-tiny/draft")),
        "Run.task": swap(run, task=swap(task, options={**task.options, "shots": 1})),
        "Run.verifiers": rule(settings=({**sweep.settings[0], "w": 0.7},)),
        "Run.drafters": drafter(options={"depth": 2}),
        "Run.num_draft": swap(run, num_draft=(2,)),
        "Run.temperature": swap(run, temperature=0.5),
        "Run.top_k": swap(run, top_k=7),
        "Run.top_p": swap(run, top_p=0.5),
        "Run.max_new_tokens": swap(run, max_new_tokens=3),
        "Run.n": swap(run, n=3),
        "Run.samples": swap(run, samples=2),
        "Run.seed": swap(run, seed=1),
        "Run.batch_size": swap(run, batch_size=3),
        "Run.device": swap(run, device="auto"),
        "Run.dtype": swap(run, dtype="float64"),
        "Run.name": swap(run, name="another"),
        "Run.results": swap(run, results=Path("elsewhere")),
        "Run.timing": swap(run, timing=None),
        "Run.tracker": swap(run, tracker=Component("t", "x.Y", {})),
        "Run.margin": swap(run, margin=2.0),
        "Run.shard": swap(run, shard=Shard(1, 2)),
        "Run.force": swap(run, force=True),
        "Run.report": swap(run, report=False),
        "Model.name": swap(run, model=swap(model, name="another")),
        "Model.target": swap(run, model=swap(model, target="embedded:qwen-tiny/target")),
        "Model.draft": swap(run, model=swap(model, draft="embedded:qwen-tiny/draft")),
        "Model.quantization": swap(run, model=swap(model, quantization="bnb-int8")),
        "Model.draft_quantization": swap(run, model=swap(model, draft_quantization="bnb-int8")),
        "Model.packed": swap(run, model=swap(model, packed=True)),
        "Model.attention": swap(run, model=swap(model, attention="eager")),
        "Model.device_map": swap(run, model=swap(model, device_map="auto")),
        "Model.chat_options": swap(
            run, model=swap(model, chat_options={"a": 1}), task=swap(task, options={**task.options, "chat": True})
        ),
        "Component.name": drafter(name="another"),
        "Component.options": drafter(options={"depth": 2}),
        "Component.chosen": drafter(chosen=("depth",)),
        "RuleSweep.name": rule(name="another"),
        "RuleSweep.settings": rule(settings=({**sweep.settings[0], "w": 0.7},)),
        "RuleSweep.knobs": rule(knobs=(sweep.knobs[0], knobs["mix"], sweep.knobs[2])),
        "RuleSweep.draws": rule(draws=True),
        "Knob.strict": first_knob(strict=0),
        "Knob.equals": first_knob(equals=None),
        "Knob.draws": first_knob(draws=(1,)),
    }


ELSEWHERE = {  # fields whose change is tested by itself
    "Run.engine": "what of a server decides a text: tests/serve/test_settings.py",
    "Component.target": "test_an_edited_rule_is_another_cell_and_so_is_an_edited_helper: the class, by its source",
    "RuleSweep.target": "the same",
    "Model.target_revision": "a commit of the hub is part of the checkpoint's identity: tests/lm/test_load.py",
    "Model.draft_revision": "the same",
    "Model.tokenizer": "what the tokenizer does is part of the key: tests/lm/test_gguf.py, for GGUF files only",
    "Knob.name": "a name of a constructor's argument, which is in the settings",
    "Knob.values": "its values are in the settings",
    "Knob.is_text": "what a text names is keyed by its content: tests/run/test_heads.py",
    "Knob.trained": "the head that trained:TASK stands for is keyed by its content: tests/run/test_heads.py",
    "Model.distilled": "the draft that takes its place is another checkpoint: tests/report/test_paper_trained.py",
    "Knob.choices": "where its value stands among them is a label",
}


@pytest.fixture
def no_packages(monkeypatch):
    monkeypatch.setattr(
        "sdbench.lm.quantized.find_spec", lambda name: SimpleNamespace()
    )  # quantisation is planned, not done


def test_every_field_of_a_run_is_in_the_key_or_on_the_list(plan_of, no_packages):
    fields = {
        f"{kind.__name__}.{field.name}"
        for kind in (Run, Model, Component, RuleSweep, Knob, TimingOptions, Shard)
        for field in dataclasses.fields(kind)
    }
    base: list = []
    before = keys(plan_of("task.chat=true", changed=lambda run: base.append(run) or run)), keys(plan_of())
    run = plan_of_run = base[0]
    del plan_of_run
    tried = changes(
        dataclasses.replace(run, task=dataclasses.replace(run.task, options={**run.task.options, "chat": None}))
    )
    untold = fields - set(tried) - set(ELSEWHERE) - set(NOT_IN_THE_KEY)
    assert not untold, f"say whether it is in the key: {sorted(untold)}"
    assert not set(NOT_IN_THE_KEY) - fields
    for name, changed in tried.items():
        has_chat = name == "Model.chat_options"
        is_same = keys(plan_of(changed=lambda _, changed=changed: changed)) == before[not has_chat]
        assert is_same == (name in NOT_IN_THE_KEY), name


def test_a_word_that_a_text_knob_takes_is_no_folder_of_the_working_folder(plan_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("verifier=[ensemble,within]", "verifier.within.begin=Answer", "verifier.within.end=Question")
    before = keys(plan_of(*words))
    (tmp_path / "Answer").mkdir()
    (tmp_path / "Answer" / "notes.txt").write_text("nothing to do with it")
    assert keys(plan_of(*words)) == before


def test_a_stop_string_that_is_a_special_token_ends_texts_by_its_id(plan_of):
    """No decoded text contains it, so as a string alone it would never end one. Other stop strings leave the key as it was."""
    stops = {"plain": "task.stop=['Question:']", "special": "task.stop=['Question:','<pad>']"}
    ids = {name: {tuple(p.cell.content["stop_ids"]) for p in plan_of(word)} for name, word in stops.items()}
    assert ids == {"plain": {(2,)}, "special": {(0, 2)}}


def test_the_words_of_a_drafter_are_not_folders_of_the_working_directory(composer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoint", "gate", "heuristic"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text("t")

    def files(*words: str) -> dict[str, str]:
        run = composer.run(words)
        parts = build_parts(run)
        refuse_folder_of_run(run, parts)
        return parts.drafters[0].files

    assert files("drafter=mtp", "drafter.head=checkpoint", "model.draft=null") == {}
    assert files("drafter=gate", "results=.", "name=gate") == {}
    assert files("drafter.length=heuristic") == {}
    assert files("drafter=mtp", "drafter.head=gate", "model.draft=null").keys() == {"drafter.head"}, "no word of mtp"
    assert files("drafter=eagle", "drafter.head=checkpoint", "model.draft=null").keys() == {"drafter.head"}
