"""What a run says at its end: every warning of its page, in the same words."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import lxml.html
import pytest

from sdbench.config import Component, ConfigError
from sdbench.passes import finish
from sdbench.passes.job import refuse_missing_margins
from sdbench.records import Store, TimingRecord, read, snapshot
from sdbench.report.build import DRAWN, build
from sdbench.report.command import COMMAND
from sdbench.subcommand import Exit
from tests.records.synthetic import Shape, cell, sweep, write_synthetic


def slow_down(folder):
    """Add a latency pass that ends half as fast as it began."""
    cells = read(folder).cells
    keys = cells.loc[cells["verifier"].isin(["target", "lossless"]), "cell"]
    records = [
        TimingRecord("later", "cpu-2x", key, str(i), repeat, 9, 9, 0.1, 1.0 + repeat / 2, started_at=2e9 + repeat)
        for repeat in range(3)
        for i in range(6)
        for key in keys
    ]
    with Store.open(folder, config=read(folder).config, provenance={}) as store:
        store.append(records)


def test_margins_that_lack_a_task_of_the_folder_are_refused_before_anything_is_decoded(tmp_path):
    with Store.open(tmp_path) as store:
        store.add_cells([cell("a", "cnndm-tiny", "ensemble", w=0.5)])
    run: Any = SimpleNamespace(folder=tmp_path, margin={"gsm8k": 1})
    with pytest.raises(ConfigError, match=r"margin has no value for task cnndm-tiny: add .*, or use another name=NAME"):
        refuse_missing_margins(run)
    for margin in (5, {"gsm8k": 1, "cnndm": 2}, {"gsm8k": 1, "default": 2}):
        refuse_missing_margins(SimpleNamespace(folder=tmp_path, margin=margin))
    refuse_missing_margins(SimpleNamespace(folder=tmp_path / "new", margin={"gsm8k": 1}))


def test_parts_merged_while_margins_are_compared_with_the_folder_are_looked_for_again(tmp_path, monkeypatch):
    with Store.open(tmp_path) as store:
        point = cell("a", "cnndm-tiny", "ensemble", w=0.5)
        store.add_cells([point])
        for example in "012":
            store.append_generations([Shape(10).decode(point, example)])
    list_parts, merged = snapshot.list_parts, []

    def then_merged(folder):
        parts = list(list_parts(folder))
        monkeypatch.undo()
        with Store.open(tmp_path) as other:
            other.compact()
        merged.append(folder)
        return parts

    monkeypatch.setattr(snapshot, "list_parts", then_merged)
    refuse_missing_margins(SimpleNamespace(folder=tmp_path, margin={"cnndm": 2}))
    assert merged
    assert len(list((tmp_path / "records").glob("generations-*"))) == 1


class Seen:
    """A tracker that keeps the configuration and the sweeps that it is sent."""

    config: Any = None
    sweeps: Any = None

    def send(self, findings):
        Seen.config, Seen.sweeps = findings.config, findings.sweeps
        return "kept"


def test_a_tracker_gets_the_configuration_of_the_run_that_sends(tmp_path):
    folder = write_synthetic(tmp_path / "home", n=2, ws=(0.3,), timing_examples=0)
    with Store.open(folder, config={"n": 99}):
        pass  # another run has begun in the meantime
    names: Any = SimpleNamespace(name="llama-tiny")
    tracker = Component("seen", f"{__name__}.Seen", {})
    options = {"margin": 5.0, "temperature": 1.0, "seed": 0, "report": False, "timing": None}
    run: Any = SimpleNamespace(folder=folder, model=names, task=names, tracker=tracker, **options)
    finish.finish(run, [], {}, {"n": 2})
    assert Seen.config == {"n": 2}
    assert set(Seen.sweeps) == set(read(folder).cells["cell"])


def test_jobs_that_end_together_replace_summary_and_note_whole(tmp_path, monkeypatch):
    folder = write_synthetic(tmp_path / "home", n=2, ws=(0.3,), timing_examples=0)
    page = folder / "report.html"
    page.write_text("")
    names: Any = SimpleNamespace(name="llama-tiny")
    options = {"margin": 5.0, "temperature": 1.0, "seed": 0, "report": True, "timing": None, "tracker": None}
    run: Any = SimpleNamespace(folder=folder, model=names, task=names, **options)
    monkeypatch.setattr("sdbench.report.write", lambda outcome: SimpleNamespace(page=page))
    held = {name: folder / name for name in ("summary.csv", DRAWN)}
    for path in held.values():
        path.write_text("of another job")
    readers = {name: path.open() for name, path in held.items()}
    finish.finish(run, [], {}, {})
    for name, reader in readers.items():
        with reader:
            assert reader.read() == "of another job", f"{name} changed while it was open"
        assert held[name].read_text() != "of another job"


@pytest.mark.slow
def test_the_terminal_prints_every_warning_of_the_page(tmp_path, capsys):
    folder = write_synthetic(tmp_path / "home", n=12, ws=(0.3,))
    slow_down(folder)
    build(folder)
    page = lxml.html.document_fromstring((folder / "report.html").read_text(encoding="utf-8"))
    warnings = page.xpath("//div[@id='warnings']/ul[not(@class)]/li/text()")
    assert [line.split(":")[0] for line in warnings if "drifted" in line] == ["The latency pass drifted"]
    lines = [f"Warning: {line.strip()}" for line in warnings]

    assert COMMAND.run([str(folder)], None) == Exit.DONE
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")] == lines

    names: Any = SimpleNamespace(name="llama-tiny")
    run: Any = SimpleNamespace(
        folder=folder,
        margin=5.0,
        model=names,
        task=names,
        temperature=1.0,
        seed=0,
        report=False,
        tracker=None,
        timing=None,
    )
    finish.finish(run, [], {}, {})
    assert "Warning" not in capsys.readouterr().out, "no cell of this run is in these records"
    cells = sweep("llama-tiny", "gsm8k-tiny", ws=(0.3,), num_drafts=(5,), temperature=1.0)
    points: Any = [SimpleNamespace(cell=replace(cell, content={**cell.content, "seed": 0})) for cell in cells]
    finish.finish(run, points, {}, {})
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")] == lines


def test_a_page_is_drawn_again_where_a_cell_names_more_settings(tmp_path):
    folder = write_synthetic(tmp_path / "home", n=2, ws=(0.3,), timing_examples=0)
    run: Any = SimpleNamespace(folder=folder, margin=5.0, timing=None)
    content = finish._content(run)
    other = cell("llama-tiny", "gsm8k-tiny", "exact")
    with Store.open(folder) as store:
        (held,) = [known for known in store._snapshot().cells.values() if known.verifier == "lossless"]
        store.add_cells([held])
        assert finish._content(run) == content
        store.add_cells([held.with_repeated(other)])
    assert finish._content(run) != content
