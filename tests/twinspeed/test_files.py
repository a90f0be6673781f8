import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from twinspeed import files, paths
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit

FILL_FOREVER = """
import sys, time
from pathlib import Path
from twinspeed import files
with files.new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("of it")
    print("filling", flush=True)
    time.sleep(600)
"""
WRITE_FOREVER = """
import os, sys, time
from pathlib import Path
from twinspeed import files
def stall(handle):
    print("writing", flush=True)
    time.sleep(600)
os.fsync = stall
files.write_atomically(Path(sys.argv[1]), "new")
"""


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


class Killed(BaseException):
    """Like KeyboardInterrupt: no `except Exception` sees it."""


def kill_in_the_middle(program: str, path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 10**18))
    return path


def only_entry() -> Path:
    [entry] = paths.hashes().iterdir()
    return entry


def test_a_file_is_hashed_by_its_bytes(weights: Path) -> None:
    assert files.sha256_file(weights) == files.sha256_cached(weights) == sha256(b"one")


def test_a_file_that_looks_unchanged_is_not_read_again(weights: Path) -> None:
    files.sha256_cached(weights)
    weights.write_bytes(b"two")
    os.utime(weights, ns=(0, 10**18))
    assert files.sha256_cached(weights) == sha256(b"one")
    assert files.sha256_file(weights) == sha256(b"two")


@pytest.mark.parametrize(("content", "mtime"), [(b"two", 10**18 + 1), (b"longer", 10**18)], ids=["mtime", "size"])
def test_a_file_with_another_mtime_or_size_is_read_again(weights: Path, content: bytes, mtime: int) -> None:
    files.sha256_cached(weights)
    weights.write_bytes(content)
    os.utime(weights, ns=(0, mtime))
    assert files.sha256_cached(weights) == sha256(content)


def test_a_file_put_in_the_place_of_another_is_read_again(weights: Path, tmp_path: Path) -> None:
    files.sha256_cached(weights)
    other = tmp_path / "other"
    other.write_bytes(b"two")
    os.utime(other, ns=(0, 10**18))
    other.replace(weights)
    assert files.sha256_cached(weights) == sha256(b"two")


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "{}", '{"seen": 1}', "\0\xff"])
def test_a_damaged_cache_entry_costs_a_read_and_is_mended(weights: Path, damage: str) -> None:
    files.sha256_cached(weights)
    only_entry().write_text(damage, encoding="latin-1")
    assert files.sha256_cached(weights) == sha256(b"one")
    assert json.loads(only_entry().read_text())["sha256"] == sha256(b"one")


def test_each_home_has_hashes_of_its_own(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.sha256_cached(weights)
    first = only_entry()
    first.write_text(first.read_text().replace(sha256(b"one"), sha256(b"told by the first home")))
    assert files.sha256_cached(weights) == sha256(b"told by the first home")

    monkeypatch.setenv("TWINSPEED_HOME", str(tmp_path / "second home"))

    assert files.sha256_cached(weights) == sha256(b"one")
    assert only_entry().is_relative_to(tmp_path / "second home")
    assert only_entry() != first


def test_the_files_of_a_folder_are_named_from_it(tmp_path: Path) -> None:
    for name in ("b", "a/c", "a/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files.relative_files(tmp_path) == ["a/.hidden", "a/c", "b"]


def test_a_tree_hash_depends_on_names_and_contents_and_not_on_order() -> None:
    tree = files.tree_sha256({"a": "1", "b": "2"})
    assert tree == sha256(b"1  a\n2  b\n") == files.tree_sha256({"b": "2", "a": "1"})
    assert len({tree, files.tree_sha256({"a": "2", "b": "1"}), files.tree_sha256({"a": "1", "c": "2"})}) == 3


def test_a_file_is_written_whole_into_folders_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    files.write_atomically(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    files.write_atomically(path, "again")
    assert path.read_text() == "again"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_while_writing_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(handle: int) -> None:
        raise Killed

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Killed):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    kill_in_the_middle(WRITE_FOREVER, path)
    assert path.read_text() == "old"
    files.write_atomically(path, "new")
    assert path.read_text() == "new"


def test_a_new_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with files.new_folder(final) as folder:
        (folder / "file").write_text("content")
        assert folder.parent == final.parent
        assert not final.exists()
    assert (final / "file").read_text() == "content"
    assert list(final.parent.iterdir()) == [final]


@pytest.mark.parametrize("error", [ValueError, Killed])
def test_an_exception_leaves_nothing_of_a_new_folder(tmp_path: Path, error: type[BaseException]) -> None:
    def fill() -> None:
        with files.new_folder(tmp_path / "final") as folder:
            (folder / "file").touch()
            raise error

    with pytest.raises(error):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_final_folder_and_its_remains_go_with_the_next_try(tmp_path: Path) -> None:
    final = tmp_path / "final"
    kill_in_the_middle(FILL_FOREVER, final)
    [remains] = tmp_path.iterdir()
    assert remains != final
    assert (remains / "half").is_file()

    with files.new_folder(final) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").touch()

    assert list(tmp_path.iterdir()) == [final]
    assert [entry.name for entry in final.iterdir()] == ["whole"]


def test_a_disk_without_room_is_named_with_what_is_needed_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def disk_usage(path: Path) -> DiskUsage:
        asked.append(path)
        return DiskUsage(10**12, 10**12 - 2**20, 2**20)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    folder = tmp_path / "not" / "there" / "yet"
    files.require_room(folder, 2**20, "the work")
    with pytest.raises(InputError) as caught:
        files.require_room(folder, 3 * 2**30, "the work")
    assert str(caught.value) == (
        f"the work needs 3.0 GiB in {folder}, but its disk has 1.0 MiB free: free some space or choose another folder"
    )
    assert asked == [tmp_path, tmp_path]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * 2**30, "1.5 GiB"), (3 * 2**40, "3.0 TiB")],
)
def test_sizes_are_written_for_people(count: float, text: str) -> None:
    assert files.human_bytes(count) == text
