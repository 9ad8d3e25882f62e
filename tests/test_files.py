"""Files that are written whole or not at all; digests that keys of cells depend on and must therefore never change."""

import errno
import os

import pytest

from sdbench.errors import first_line
from sdbench.files import digest_of, digest_of_data, digest_of_file, digest_of_path, replace_on_success, write_whole
from sdbench.imports import import_object


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path, sync):
    path = tmp_path / "report.html"
    assert write_whole(path, "old", sync=sync).read_text() == "old"
    assert write_whole(path, b"new", sync=sync).read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "summary.csv", "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new", sync=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.csv"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    def interrupted():
        with replace_on_success(tmp_path / "model") as part:
            part.mkdir()
            (part / "config.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []
    with replace_on_success(tmp_path / "model") as part:
        part.mkdir()
    assert os.listdir(tmp_path) == ["model"]


def test_digests_never_change(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    assert digest_of("a", b"b") == digest_of("ab") == "fb8e20fc2e4c3f248c60"
    assert digest_of("ab", digits=8) == "fb8e20fc"
    assert digest_of_data({"b": 1, "a": [2.5, None]}) == digest_of('{"a": [2.5, null], "b": 1}')
    assert digest_of_path(tmp_path / "a") == digest_of_file(tmp_path / "a") == digest_of("one")
    lines = [f"{name} {digest_of(text)}\n" for name, text in (("a", "one"), ("b", "two"))]
    assert digest_of_path(tmp_path) == digest_of(*lines)


def test_an_error_is_quoted_by_its_first_line():
    assert first_line(ValueError("\n first \nsecond")) == "first"
    assert first_line(ValueError("")) == "ValueError"


def test_an_object_is_imported_by_its_path():
    assert import_object("sdbench.files.digest_of") is import_object("sdbench.files:digest_of") is digest_of
    with pytest.raises(ValueError, match="Empty module name"):
        import_object("Rule")
