"""The store: what was built is found again; what is damaged, half made or made twice does no harm."""

import os
from pathlib import Path

import pytest

from foregrad.backends.build_store import BuildStore


@pytest.fixture
def store(tmp_path):
    return BuildStore(tmp_path / "libraries")


def builder(text, built):
    def build(folder: Path):
        built.append(text)
        (folder / "made").write_text(text)
        (folder / "left over").write_text("")
        return {"graph.so": folder / "made"}

    return build


def test_what_was_built_is_found_again(store):
    built = []
    folders = [store.get("key", builder("first", built)) for _ in range(2)]
    assert built == ["first"]
    assert folders[0] == folders[1]
    assert (folders[0] / "graph.so").read_text() == "first"
    assert [p.name for p in store.folder.iterdir()] == ["key"]
    assert {p.name for p in folders[0].iterdir()} == {"graph.so", "digests.json"}


def test_another_key_is_another_folder(store):
    built = []
    assert store.get("a", builder("a", built)) != store.get("b", builder("b", built))
    assert built == ["a", "b"]


def truncated(folder):
    (folder / "graph.so").write_text("fir")


def changed(folder):
    (folder / "graph.so").write_text("fjrst")


def removed(folder):
    (folder / "graph.so").unlink()


def without_digests(folder):
    (folder / "digests.json").unlink()


def with_digests_of_nobody(folder):
    (folder / "digests.json").write_text("[]")


def with_no_digests(folder):
    (folder / "digests.json").write_text("{}")


def cut_digests(folder):
    (folder / "digests.json").write_text('{"graph.so"')


@pytest.mark.parametrize(
    "damage", [truncated, changed, removed, without_digests, with_digests_of_nobody, with_no_digests, cut_digests]
)
def test_what_is_damaged_is_built_again(store, damage):
    built = []
    damage(store.get("key", builder("first", built)))
    folder = store.get("key", builder("second", built))
    assert (folder / "graph.so").read_text() == "second"
    assert built == ["first", "second"]
    assert [p.name for p in store.folder.iterdir()] == ["key"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_build_that_fails_leaves_nothing(store, error):
    def fails(folder):
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(error):
        store.get("key", fails)
    assert list(store.folder.iterdir()) == []
    assert store.get("key", builder("second", [])).is_dir()


def test_of_two_that_build_at_once_the_first_is_kept(store):
    built = []

    def slow(folder):
        store.get("key", builder("first", built))
        return builder("second", built)(folder)

    folder = store.get("key", slow)
    assert built == ["first", "second"]
    assert (folder / "graph.so").read_text() == "first"
    assert os.listdir(store.folder) == ["key"]
