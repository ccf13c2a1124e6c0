"""Compiled code as files: found again, built again where it is damaged, and within one limit with the entries."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import foregrad as fg
from foregrad.cache.store.folder import Folder
from foregrad.cli.main import main
from foregrad.process import code_files, folders
from foregrad.process.code_files import built, code_file
from foregrad.process.eviction import SizeLimit

HOUR = 3600.0
KEY = "ab" * 32
TOOLS = "3f" * 12  # a toolchain


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder and a temporary folder of the test's own."""
    (tmp_path / "temporary").mkdir(mode=0o700)
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(tmp_path / "home"))
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "home"


def builder(text: str, count: list[str]):
    def build(folder: Path) -> dict[str, Path]:
        count.append(text)
        (folder / "made").write_text(text)
        (folder / "ops").write_text(f"ops of {text}")
        (folder / "left over").write_text("")
        return {".so": folder / "made", ".json": folder / "ops"}

    return build


def as_old_as(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def code(data: bytes) -> Path:
    return code_file(hashlib.sha256(data).hexdigest(), {".so": data})


def left_by(home: Path, name: str, size: int = 1000) -> Path:
    """A file that somebody else has put into a folder of code, a day ago."""
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    as_old_as(path.parent, 24 * HOUR)
    return as_old_as(path, 24 * HOUR)


# What was built


def test_what_was_built_is_found_again(home: Path, tmp_path: Path):
    count: list[str] = []
    paths = [built("library-1-aa", builder("first", count)) for _ in range(2)]
    assert count == ["first"]
    assert paths[0] == paths[1]
    assert paths[0].read_text() == "first"
    assert paths[0].with_suffix(".json").read_text() == "ops of first"
    assert len(list((home / "code-2").iterdir())) == 3
    assert not list(tmp_path.glob("temporary/*/building/*"))


def test_what_is_built_and_what_is_unpacked_from_an_entry_is_one_file():
    assert built("library-1-aa", builder("first", [])) == code(b"first")


def truncated(path: Path, index: Path) -> None:
    path.write_text("fir")


def changed(path: Path, index: Path) -> None:
    path.with_suffix(".json").write_text("obs of first")


def removed(path: Path, index: Path) -> None:
    path.unlink()


def without_index(path: Path, index: Path) -> None:
    index.unlink()


def with_index_of_nobody(path: Path, index: Path) -> None:
    index.write_text("[]")


def with_empty_index(path: Path, index: Path) -> None:
    index.write_text("{}")


def with_cut_index(path: Path, index: Path) -> None:
    index.write_text('{".so"')


@pytest.mark.parametrize(
    "damage", [truncated, changed, removed, without_index, with_index_of_nobody, with_empty_index, with_cut_index]
)
def test_what_is_damaged_is_built_again(home: Path, damage):
    count: list[str] = []
    damage(built("library-1-aa", builder("first", count)), home / "code-2" / "library-1-aa")
    assert built("library-1-aa", builder("second", count)).read_text() == "second"
    assert count == ["first", "second"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_build_that_fails_leaves_nothing(home: Path, tmp_path: Path, error: type[BaseException]):
    def fails(folder: Path):
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(error):
        built("library-1-aa", fails)
    assert list((home / "code-2").iterdir()) == []
    assert not list(tmp_path.glob("temporary/*/building/*"))


def test_of_two_that_build_at_once_both_have_good_code():
    count: list[str] = []
    others = []

    def slow(folder: Path):
        others.append(built("library-1-aa", builder("first", count)))
        return builder("second", count)(folder)

    mine = built("library-1-aa", slow)
    assert [path.read_text() for path in (others[0], mine)] == ["first", "second"]
    assert built("library-1-aa", builder("third", count)) == mine


def test_code_is_kept_where_nobody_else_can_write(home: Path):
    code(b"first")
    assert (home / "code-2").stat().st_mode & 0o777 == 0o700
    (home / "code-2").chmod(0o777)
    folders._private.cache_clear()
    elsewhere = code(b"second")
    assert not elsewhere.is_relative_to(home)
    folders._private.cache_clear()


# The limit


def limited(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    monkeypatch.setattr(code_files, "_limit", lambda programs: SizeLimit(programs, max_bytes))


def test_code_that_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch):
    limited(monkeypatch, 3000)
    contents = [bytes([number]) * 1000 for number in range(4)]
    paths = [as_old_as(code(data), (5 - age) * HOUR) for age, data in enumerate(contents[:3])]
    code(contents[0])  # used once more
    newest = code(contents[3])
    assert [path.exists() for path in (*paths, newest)] == [True, False, False, True]
    assert code(contents[1]).read_bytes() == contents[1]  # what is gone is written again


def test_entries_and_all_code_share_one_limit(home: Path, tmp_path: Path):
    folder = Folder(home / "programs", max_bytes=4000)
    folder.put(KEY, bytes(960))
    as_old_as(folder.file(KEY), 2 * HOUR)
    work = f"foregrad-{os.geteuid()}/inductor/ab/kernel.so"
    old = [
        left_by(home, f"toolchain/{TOOLS}/headers/x.h.gch"),
        left_by(tmp_path / "temporary", work),
        as_old_as(code(bytes(1000)), 20 * HOUR),
    ]
    (tmp_path / "temporary" / f"foregrad-{os.geteuid()}").chmod(0o700)
    Folder(home / "programs", max_bytes=4000).put("cd" * 32, bytes(960))  # as another process would
    assert [path.exists() for path in old] == [False, False, True]
    assert {entry.key for entry in folder.entries()} == {KEY, "cd" * 32}
    used = fg.Cache().stats()
    assert (used.entries, sum(used.code.values())) == (2, 1000)


def test_a_folder_of_ones_choice_has_a_limit_of_its_own(home: Path, tmp_path: Path):
    old = as_old_as(code(bytes(1000)), 2 * HOUR)
    cache = fg.Cache(tmp_path / "other")
    cache.gc(0)
    assert old.exists()
    assert cache.stats().code == {}
    (swept,) = fg.Cache().gc(0)
    assert not old.exists()
    assert (swept.evicted, swept.evicted_bytes) == (1, 1000)


def test_what_older_versions_left_goes_first_and_with_its_folders(home: Path):
    library = left_by(home, f"toolchain/{TOOLS}/libraries-1/aa/graph.so")
    unpacked = left_by(home, "code-1/aa.so")
    stray = left_by(home, f"toolchain/{TOOLS}/building-x/half.tmp")
    mine = as_old_as(code(bytes(1000)), 2 * HOUR)
    (swept,) = fg.Cache().gc(1500)
    assert (swept.evicted, swept.kept) == (2, 1)
    assert [path.exists() for path in (library, unpacked, stray, mine)] == [False, False, False, True]
    for folder in (library.parent, library.parent.parent, library.parent.parent.parent):
        as_old_as(folder, 2 * HOUR)
    fg.Cache().gc()
    assert not library.parent.exists()


def test_headers_beside_precompiled_ones_and_locks_stay(home: Path):
    names = ["x.h", "x.h.gch", "locks/x.lock"]
    files = [left_by(home, f"toolchain/{TOOLS}/headers/{name}") for name in names]
    fg.Cache().gc(0)
    assert [file.exists() for file in files] == [True, False, True]


def test_nothing_is_removed_through_links_or_from_folders_that_are_not_ours_alone(home: Path, tmp_path: Path):
    mine = left_by(tmp_path, "mine/file")
    code(b"")
    (home / "code-2" / "link").symlink_to(mine.parent)
    exposed = left_by(tmp_path / "temporary", f"foregrad-{os.geteuid()}/inductor/file")
    exposed.parent.parent.chmod(0o777)
    somebodys = left_by(home, "toolchain/gcc/src/main.c")
    fg.Cache().gc(0)
    assert all(path.exists() for path in (mine, exposed, somebodys))


# While others are at work


def test_code_of_the_last_hour_stays_whatever_the_limit_is():
    """Somebody may have found it, and be about to load it."""
    path, forgotten = code(b"new"), as_old_as(code(b"old"), 2 * HOUR)
    fg.Cache().gc(0)
    assert path.exists()
    assert not forgotten.exists()


def test_what_others_build_and_load_meanwhile_is_whole(home: Path):
    wrong, is_done = [], threading.Event()

    def builds(number: int):
        while not is_done.is_set():
            for part in range(8):
                text = f"{number} {part}"
                path = built(f"library-1-{number}-{part}", builder(text, []))
                if path.read_text() != text or path.with_suffix(".json").read_text() != f"ops of {text}":
                    wrong.append(path)

    others = [threading.Thread(target=builds, args=(number,)) for number in range(2)]
    for other in others:
        other.start()
    for _ in range(30):
        for path in (home / "code-2").glob("library-*"):
            as_old_as(path, 2 * HOUR)  # as if it had not been used: it is built again
        fg.Cache().gc(0)
    is_done.set()
    for other in others:
        other.join()
    assert wrong == []


LOADS = """
import ctypes, sys
from pathlib import Path
from foregrad.process.code_files import built
def build(folder):
    import shutil
    shutil.copy(sys.argv[1], folder / "made.so")
    return {".so": folder / "made.so"}
for line in sys.stdin:
    library = ctypes.CDLL(built("library-1-aa", build))
    print(library.answer(), flush=True)
"""


def test_a_library_that_is_loaded_stays_loaded(home: Path, tmp_path: Path):
    from foregrad.backends.toolchain import compiler

    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "answer.cpp").write_text('extern "C" int answer() { return 42; }')
    made = tmp_path / "answer.so"
    subprocess.run([compiler(), "-shared", "-fPIC", tmp_path / "answer.cpp", "-o", made], check=True)
    environment = os.environ | {"PYTHONPATH": str(Path(fg.__file__).parents[1])}
    command = [sys.executable, "-c", LOADS, str(made)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        for _ in range(3):
            other.stdin.write("again\n")
            other.stdin.flush()
            assert other.stdout.readline() == "42\n"
            for path in (home / "code-2").iterdir():
                as_old_as(path, 2 * HOUR)
            fg.Cache().gc(0)
            assert list((home / "code-2").iterdir()) == []
        other.stdin.close()


# The command line


def said(*words: str, **environment: str) -> str:
    done = CliRunner(env=environment).invoke(main, ["cache", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_line_shows_and_removes_code(home: Path, tmp_path: Path):
    as_old_as(code(bytes(1000)), 2 * HOUR)
    for environment in ({"FOREGRAD_CACHE": ""}, {"FOREGRAD_CACHE": str(tmp_path / "other")}):
        assert str(home / "code-2") in said("ls", **environment)
        assert f"code of 1.0 kB in {home / 'code-2'}" in said("stats", **environment)
        assert json.loads(said("stats", "--json", **environment))["code"] == {str(home / "code-2"): 1000}
    assert "code-2" not in said("ls", "--cache", str(tmp_path / "other"))
    assert "removed 1 files" in said("gc", "--max-bytes", "0", FOREGRAD_CACHE=str(tmp_path / "other"))
    assert "code-2" not in said("stats", FOREGRAD_CACHE="")
