"""Files that get their name when they are finished: all of one or nothing, whatever happens meanwhile."""

import os
from pathlib import Path

import pytest

from foregrad.process.atomic_write import create_whole, made_beside, remove_if, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_who_has_opened_it_keeps_it(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, [b"old"])
    with open(path, "rb") as opened:
        write_atomically(path, iter([b"new", memoryview(b"er")]), is_durable=True)
        assert opened.read() == b"old"
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(("mode", "expected"), [({}, 0o600), ({"mode": 0o666}, 0o644)])
def test_a_file_is_private_unless_its_folder_says_who_may_read(tmp_path: Path, mode: dict[str, int], expected: int):
    old = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", [b""], **mode)
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == expected


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, error: type[BaseException]):
    def pieces():
        yield b"half"
        raise error

    write_atomically(tmp_path / "file", [b"old"])
    with pytest.raises(error):
        write_atomically(tmp_path / "file", pieces())
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_what_a_block_does_not_make_changes_nothing(tmp_path: Path):
    with made_beside(tmp_path / "file"):
        pass
    assert names(tmp_path) == []


def test_of_two_that_create_a_file_the_first_is_kept(tmp_path: Path):
    create_whole(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        create_whole(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert names(tmp_path) == ["file"]


def test_a_wrong_file_goes_and_a_right_one_comes_back(tmp_path: Path):
    path = tmp_path / "file"
    for content, expected in ((b"right", ["file"]), (b"wrong", [])):
        path.write_bytes(content)
        remove_if(path, lambda aside: aside.read_bytes() == b"wrong")
        assert names(tmp_path) == expected
