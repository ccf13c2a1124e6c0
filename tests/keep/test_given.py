"""What is given wrong is said at once, in a sentence of our own."""

import errno
import os
from pathlib import Path

import pytest
import torch

import foregrad as fg
from foregrad.backends.compiling import Inductor
from foregrad.cache.format.keys import PublicKey, SharedKey
from foregrad.cache.serialize.cached_calls import cache_for


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


CACHES = [
    ({"max_bytes": "1GB"}, TypeError, "max_bytes is a whole number"),
    ({"max_bytes": True}, TypeError, "max_bytes is a whole number"),
    ({"max_entry_bytes": "x"}, TypeError, "max_entry_bytes is a whole number"),
    ({"max_bytes": 0}, ValueError, "max_bytes is 1 or more"),
    ({"key": 3}, TypeError, "key is a secret as bytes"),
    ({"verify_every": 1.5}, TypeError, "verify_every is a whole number"),
    ({"verify_every": 0}, ValueError, "verify_every is 1 or more"),
    ({"readonly": "no"}, TypeError, "readonly is True or False"),
]


@pytest.mark.parametrize(("options", "kind", "words"), CACHES, ids=range(len(CACHES)))
def test_options_of_a_cache(options, kind, words, tmp_path: Path):
    with pytest.raises(kind, match=words):
        fg.Cache(tmp_path, **options)


def test_places_of_a_cache(tmp_path: Path):
    (tmp_path / "file").touch()
    for place, kind, words in (
        ("", ValueError, "a path or a URL"),
        (" ", ValueError, "a path or a URL"),
        (3, TypeError, "a path, a URL"),
        ([3], TypeError, "a path, a URL"),
        (tmp_path / "file", ValueError, "is a file, and a cache is a folder"),
    ):
        with pytest.raises(kind, match=words):
            fg.Cache(place)
        if not isinstance(place, list):
            with pytest.raises(kind, match=words):
                fg.compile(double, cache=place)
    for copy in ("push", "pull"):
        with pytest.raises(TypeError, match="takes another cache"):
            getattr(fg.Cache(tmp_path / "a"), copy)(tmp_path / "b")


@pytest.mark.parametrize(("named", "is_kept"), [("0", False), ("off", False), ("No", False), ("1", True), ("", True)])
def test_the_environment_turns_the_cache_off_and_on(named: str, is_kept: bool, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("FOREGRAD_CACHE", named)
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = cache_for(True, Inductor(rng="eager", regions="auto", winograd=False))
    assert (found is not None) == is_kept
    assert not [path for path in tmp_path.iterdir() if path.name == named]


def test_options_of_compile():
    with pytest.raises(ValueError, match="there is no backend ''"):
        fg.compile(double, backend="")
    for passes in (3, [3], "passes"):
        with pytest.raises(TypeError, match="passes is a list of functions"):
            fg.compile(double, passes=passes)
    with pytest.raises(TypeError, match="state is a tuple"):
        fg.capture(double, torch.ones(2), state=3)


def test_options_of_save_and_load(tmp_path: Path):
    compiled = fg.compile(double, backend="eager", cache=False)
    compiled(torch.ones(2))
    path = tmp_path / "double.fg"
    with pytest.raises(TypeError, match="weights is True or False"):
        compiled.save(path, weights="no")
    for key in ("secret", 3, b"s" * 32):
        with pytest.raises(TypeError, match="which can sign"):
            compiled.save(path, key=key)
    assert not path.exists()
    key = SharedKey(b"k" * 32)
    compiled.save(path, key=key)
    for trust in (True, False, [], (), "key", [key, 3], 3, {}):
        with pytest.raises(TypeError, match="trust= takes the key"):
            fg.load(path, trust=trust)
    for trust in (key, [key], (SharedKey(b"o" * 32), key)):
        assert "trust=" in fg.load(path, trust=trust).how
    with pytest.raises(fg.UntrustedArtifact):
        fg.load(path, trust=PublicKey(b"p" * 32))
    with pytest.raises(ValueError, match="there is no backend 'nope'"):
        fg.load(path, backend="nope")


def test_where_nothing_can_be_written(tmp_path: Path):
    compiled = fg.compile(double, backend="eager", cache=False)
    compiled(torch.ones(2))
    with pytest.raises(fg.CannotKeep, match="No such file or directory"):
        compiled.save(tmp_path / "none" / "double.fg")
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(fg.CannotKeep, match="is a folder, a pipe or a device"):
            compiled.save(path)
    assert Path("/dev/null").is_char_device()


def test_a_full_disk(monkeypatch, tmp_path: Path):
    compiled = fg.compile(double, backend="eager", cache=False)
    compiled(torch.ones(2))
    compiled.save(tmp_path / "double.fg")
    before = (tmp_path / "double.fg").read_bytes()

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("foregrad.process.atomic_write.os.write", full)
    with pytest.raises(fg.CannotKeep, match="No space left on device"):
        compiled.save(tmp_path / "double.fg")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["double.fg"]
    assert (tmp_path / "double.fg").read_bytes() == before
