"""The target's states of a training are kept on disk: shards that are read again, their size, a disk that is full, what stays."""

import json
import re
import resource
import shutil
import weakref
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from sdbench.card import CARD, WEIGHTS
from sdbench.cli import main as front_door
from sdbench.prepare.trained import COURSE
from sdbench.prepare.versions import files_of
from sdbench.train.failed_files import FailedFileError, explain_failed_write
from sdbench.train.medusa import MedusaTraining
from sdbench.train.mtp import Eagle3Training
from sdbench.train.states import StatesStore, check_disk
from tests.train.trainings import PAIR

WORDS = (*PAIR, "model.draft=null", "prompts=4", "rows=20", "max_new_tokens=12")
TEXTS = [([1, 2], [3]), ([1], [2, 3, 4]), ([1, 2], [3]), ([5], [6]), ([7, 8], [9])]


def main(kind, *words):
    return front_door(["train", kind, *WORDS, *words])


def states_of(text, dtype):
    prompt, answer = text
    ids = torch.tensor([*prompt, *answer])
    return (ids[:, None] * torch.arange(1, 4) / 7).to(dtype)


class Computed(list):
    """Computes states of texts, and lists the texts of each call."""

    def __init__(self, dtype=torch.float32):
        self.dtype = dtype

    def __call__(self, texts):
        self.append(list(texts))
        return [states_of(text, self.dtype) for text in texts]


def store_in(folder, computed, **identity):
    store = StatesStore(folder, {"target": "a", **identity}, computed)
    store.fill([TEXTS[:2], TEXTS[2:4], TEXTS[4:]])
    return store


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_states_are_read_as_they_were_computed_and_each_text_once(dtype, tmp_path):
    computed = Computed(dtype)
    store = store_in(tmp_path / "states", computed)
    assert computed == [TEXTS[:2], TEXTS[3:4], TEXTS[4:]]
    for text, states in zip(TEXTS, store.read(TEXTS, "cpu"), strict=True):
        torch.testing.assert_close(states, states_of(text, dtype), rtol=0, atol=0)


def test_complete_shards_are_read_again_and_others_are_computed(tmp_path):
    store_in(tmp_path, Computed())
    again = Computed()
    store_in(tmp_path, again)
    assert again == []
    torn, lost = tmp_path / "0000.safetensors", tmp_path / "0002.safetensors"
    torn.write_bytes(torn.read_bytes()[:-4])
    lost.unlink()
    store = store_in(tmp_path, again)
    assert again == [TEXTS[:2], TEXTS[4:]]
    assert torch.equal(store.read(TEXTS[:1], "cpu")[0], states_of(TEXTS[0], torch.float32))


@pytest.mark.parametrize("other", [{"target": "b"}, {"target_dtype": "torch.bfloat16"}, {"states": ["layer_hidden"]}])
def test_shards_of_another_training_are_computed_again(other, tmp_path):
    store_in(tmp_path, Computed())
    again = Computed(torch.float64)
    store = store_in(tmp_path, again, **other)
    assert len(again) == 3
    assert store.read(TEXTS[:1], "cpu")[0].dtype == torch.float64


def test_the_disk_that_states_take_is_printed_before_and_none_of_them_stays_in_memory(tmp_path, capsys, monkeypatch):
    """EAGLE-3's, which are those of three layers. Answers of 4 tokens are as long as they may be."""
    seen, kept = [], []
    step, compute = Eagle3Training.step, Eagle3Training.compute_states

    def count_bytes(self, number):
        shards = list((tmp_path / "head/states").iterdir())
        num_tokens = sum(len(p) + len(a) for p, a in [*self.answers.kept, *self.held_out])
        seen.append((sum(shard.stat().st_size for shard in shards), len(shards), num_tokens))
        assert not any(ref() is not None for ref in kept)
        return step(self, number)

    def keep_references(self, texts):
        states = compute(self, texts)
        kept.extend(map(weakref.ref, states))
        return states

    monkeypatch.setattr(Eagle3Training, "step", count_bytes)
    monkeypatch.setattr(Eagle3Training, "compute_states", keep_references)
    assert main("eagle3", "steps=1", "max_new_tokens=4", f"out={tmp_path / 'head'}") == 0
    ((size, num_shards, num_tokens),) = seen
    assert (len(kept), num_shards) == (20, 3)  # 16 texts of two groups, and 4 held out
    assert size / num_tokens <= 2048
    line = next(line for line in capsys.readouterr().out.splitlines() if "states of 20 answers" in line)
    printed = float(re.findall(r"up to ([\d.,]+) MB of disk", line)[0]) * 1e6
    assert size <= printed + 5000 <= size * 1.05
    assert "1,536 bytes a token" in line
    assert "MB are free" in line
    assert not (tmp_path / "head/states").exists()


def test_states_for_which_no_disk_is_free_are_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdbench.train.states.free_disk", lambda path: 1000)
    monkeypatch.setattr(MedusaTraining, "compute_states", lambda *_: pytest.fail("the target runs"))
    assert main("medusa", f"out={tmp_path / 'head'}") == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert (
        "0.00 MB are free: give fewer rows=, another out=, or once=0, which computes them again at each step" in message
    )
    assert not list(tmp_path.iterdir())


def test_shards_that_are_there_count_as_room(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdbench.train.states.free_disk", lambda path: 1000)
    (tmp_path / "0000.safetensors").write_bytes(bytes(10_000))
    check_disk("medusa", tmp_path, num_texts=1, num_tokens=10, token_bytes=1000)
    assert "up to 0.01 MB" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_training_computes_the_missing_states_alone_and_ends_in_the_same_heads(tmp_path, monkeypatch):
    words = ["heads=2", "steps=4"]
    assert main("medusa", *words, f"out={tmp_path / 'whole'}") == 0
    step, compute, computed = MedusaTraining.step, MedusaTraining.compute_states, []

    def interrupt(self, number):
        if number == 2:
            raise KeyboardInterrupt
        return step(self, number)

    def count(self, texts):
        computed.append(len(texts))
        return compute(self, texts)

    monkeypatch.setattr(MedusaTraining, "step", interrupt)
    assert main("medusa", *words, f"out={tmp_path / 'torn'}") == 130
    shards = sorted((tmp_path / "torn/states").iterdir())
    assert [shard.name for shard in shards] == [f"000{n}.safetensors" for n in range(3)]
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    monkeypatch.setattr(MedusaTraining, "step", step)
    monkeypatch.setattr(MedusaTraining, "compute_states", count)
    assert main("medusa", *words, f"out={tmp_path / 'torn'}") == 0
    assert computed == [8]
    whole, torn = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "torn"))
    assert all(torch.equal(whole[name], torn[name]) for name in whole)
    assert not (tmp_path / "torn/states").exists()


@contextmanager
def no_file_above(size):
    """As where the disk has no more room: small files are written, others are not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("once", "first", "size", "file"),
    [(1, 0, 50_000, "states/0000.safetensors"), (0, 0, 200_000, "medusa.ckpt"), (0, 2, 50_000, "head.safetensors")],
)
def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(once, first, size, file, tmp_path, capsys):
    """While states are written, a checkpoint, and the result."""
    out = tmp_path / "head"
    words = ["heads=3", f"once={once}", f"out={out}"]
    if first:
        assert main("medusa", *words, f"steps={first}") == 0
        (out / WEIGHTS).unlink()
        (out / CARD).unlink()
    before = {path: path.read_bytes() for path in out.rglob("*.ckpt")}
    capsys.readouterr()
    with no_file_above(size):
        assert main("medusa", *words, "steps=2") == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"sdbench.train: cannot write {out if first else out / file}: file too large; what was trained" in message
    assert "the same command goes on from it once there is room" in message
    assert "Traceback" not in message
    assert not (out / CARD).exists()
    assert not (out / file).exists()
    assert all(path.read_bytes() == content for path, content in before.items())
    assert main("medusa", *words, "steps=2") == 0
    assert json.loads((out / CARD).read_text())["steps"] == 2


@pytest.mark.slow
def test_states_that_were_deleted_meanwhile_are_one_sentence_and_the_same_command_goes_on(
    tmp_path, capsys, monkeypatch
):
    step, out = MedusaTraining.step, tmp_path / "head"

    def delete(self, number):
        if number == 1:
            shutil.rmtree(out / "states")
        return step(self, number)

    monkeypatch.setattr(MedusaTraining, "step", delete)
    assert main("medusa", "heads=2", "steps=2", f"out={out}") == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"sdbench.train: cannot read {out / 'states'}, which this training wrote before: no such file" in message
    assert "the same command goes on" in message
    monkeypatch.setattr(MedusaTraining, "step", step)
    assert main("medusa", "heads=2", "steps=2", f"out={out}") == 0
    assert (out / CARD).exists()


def test_a_file_elsewhere_that_cannot_be_read_is_not_called_a_failed_write(tmp_path):
    with pytest.raises(FileNotFoundError), explain_failed_write(tmp_path / "out/head"):
        (tmp_path / "tokenizer.json").read_text()
    with (
        pytest.raises(FailedFileError, match=r"cannot write .*head: no such file"),
        explain_failed_write(tmp_path / "out/head"),
    ):
        (tmp_path / "out/head/head.json").write_text("")


@pytest.mark.slow
def test_the_course_of_a_training_is_beside_its_result_and_survives_a_resumption(tmp_path, capsys):
    for steps in (2, 3):
        assert main("medusa", "heads=2", f"steps={steps}", f"out={tmp_path}") == 0
    printed = re.findall(
        r"medusa step (\d)/\d forward_kl (\S+), held-out agreement by position (\S+) (\S+)", capsys.readouterr().out
    )
    course = json.loads((tmp_path / COURSE).read_text())
    assert (course["steps"], course["rows"], course["held_out"], course["heads"]) == (3, 20, 4, 2)
    assert len(course["losses"]) == 3
    assert course["seconds"] >= 0
    for (step, loss, *agreement), report in zip(printed, course["reports"], strict=True):
        assert int(step) == report["step"]
        assert float(loss) == pytest.approx(course["losses"][report["step"] - 1], abs=1e-4)
        assert [float(value) for value in agreement] == pytest.approx(report["agreement"], abs=0.0051)
    assert [report["step"] for report in course["reports"]] == [2, 3]
    assert json.loads((tmp_path / CARD).read_text())["agreement"] == course["reports"][-1]["agreement"]


def test_what_a_training_leaves_beside_a_head_is_no_part_of_its_identity(tmp_path):
    (tmp_path / CARD).write_text("{}")
    before = files_of({"head": str(tmp_path)}, prefix="drafter")
    for name in (COURSE, "medusa.ckpt", "medusa.part", "states/0000.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert files_of({"head": str(tmp_path)}, prefix="drafter") == before
    (tmp_path / WEIGHTS).write_bytes(b"0")
    assert files_of({"head": str(tmp_path)}, prefix="drafter") != before
