"""`foregrad cache`: what a cache holds and in what entries differ, said without torch and without running any of it."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import foregrad as fg
from foregrad.cache.format.container import pack
from foregrad.cache.serialize.catalog import catalog
from foregrad.cli.main import main


def scaled(scale: float, cache: fg.Cache):
    def scales(x):
        return x * scale

    return fg.compile(scales, backend="eager", cache=cache)


@pytest.fixture
def cache(tmp_path: Path) -> fg.Cache:
    """Two calls of one name, and the halves of each."""
    made = fg.Cache(tmp_path / "cache")
    for scale in (2.0, 3.0):
        scaled(scale, made)(torch.ones(3))
    return made


def run(*words: str, folder: Path | None = None, **environment: str) -> Result:
    place = ["--cache", str(folder)] if folder else []
    return CliRunner(env=environment).invoke(main, ["cache", *words, *place])


def said(*words: str, **options) -> object:
    result = run(*words, "--json", **options)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def calls(folder: Path) -> list[str]:
    return [row["key"] for row in said("ls", folder=folder) if row["kind"] == "call"]


def entry_file(folder: Path, key: str) -> Path:
    (found,) = folder.rglob(f"{key}.fg")
    return found


def test_a_list_says_what_each_entry_is(cache: fg.Cache, tmp_path: Path):
    rows = said("ls", folder=tmp_path / "cache")
    assert sorted(row["kind"] for row in rows) == ["call", "call", "halves", "halves", "read sets", "read sets"]
    assert {row["torch"] for row in rows} == {torch.__version__}
    assert all("scales" in row["name"] and row["size"] > 0 and row["problem"] is None for row in rows)
    text = run("ls", folder=tmp_path / "cache").output
    assert all(row["key"][:12] in text for row in rows)


def test_an_empty_cache_is_an_empty_list(tmp_path: Path):
    assert said("ls", folder=tmp_path / "none") == []
    assert said("ls", FOREGRAD_CACHE=str(tmp_path / "other")) == []
    assert said("ls", FOREGRAD_CACHE="off", FOREGRAD_CACHE_DIR=str(tmp_path / "third")) == []
    assert not list(tmp_path.iterdir())


def test_a_damaged_entry_is_listed_as_such(cache: fg.Cache, tmp_path: Path):
    folder = tmp_path / "cache"
    key = calls(folder)[0]
    file = entry_file(folder, key)
    data = bytearray(file.read_bytes())
    data[200] ^= 1  # in the header
    file.write_bytes(data)
    assert "damaged" in run("ls", folder=folder).output
    result = run("explain", key, folder=folder)
    assert result.exit_code == 1
    assert "cannot be explained: damaged" in result.output
    result = run("verify", folder=folder)
    assert result.exit_code == 1
    assert key[:12] in result.output


def test_what_a_header_says_does_not_command_the_terminal(tmp_path: Path):
    name = "[red]\x1b]0;owned\x07"
    rows = [{"name": "\x1b[2J", "digest": "1", "description": "old"}]
    cache = fg.Cache(tmp_path / "cache")
    cache.put("ab" * 32, pack({"kind": "call", "name": name, "ingredients": rows}, {}))
    cache.put("cd" * 32, pack({"kind": "call", "name": name, "ingredients": ["no row"], "needs": 3}, {}))
    for words in (["ls"], ["explain", "ab"], ["explain", "ab", "cd"], ["explain", "--last"]):
        output = run(*words, folder=tmp_path / "cache").output
        assert "\x1b" not in output
        assert "\\x1b" in output
    assert "[red]" in run("ls", folder=tmp_path / "cache").output


def test_two_entries_differ_in_what_changed(cache: fg.Cache, tmp_path: Path):
    folder = tmp_path / "cache"
    new, old = calls(folder)  # used last first
    (difference,) = said("explain", old[:8], new[:8], folder=folder)["differences"]
    assert (difference["old"], difference["new"]) == ("2.0", "3.0")
    assert "2.0 -> 3.0" in run("explain", old, new, folder=folder).output
    assert "3.0 -> 2.0" in run("explain", new, old, folder=folder).output
    assert "2.0 -> 3.0" in run("explain", new, folder=folder).output


def test_the_last_call_is_compared_with_the_nearest(cache: fg.Cache, tmp_path: Path):
    scaled(4.0, cache)(torch.ones(5))
    scaled(4.0, cache)(torch.ones(6))
    text = run("explain", "--last", folder=tmp_path / "cache").output
    assert "was captured; no entry of these sources: not there" in text
    assert "f32[5] -> Tensor f32[6]" in text
    assert "->" not in text.replace("f32[5] -> Tensor f32[6]", "")


def test_what_cannot_be_explained_is_said(cache: fg.Cache, tmp_path: Path):
    folder = tmp_path / "cache"
    assert "no entry has a key" in run("explain", "zz", folder=folder).output
    assert run("explain", folder=folder).exit_code == 2
    assert "there is no call" in run("explain", "--last", folder=tmp_path / "none").output


def test_verify_gc_and_stats(cache: fg.Cache, tmp_path: Path):
    folder = tmp_path / "cache"
    assert said("verify", folder=folder) == []
    counted = said("stats", folder=folder)
    assert counted["entries"] == 6
    assert counted["misses"] == {"not there": 2}
    (swept,) = said("gc", folder=folder)
    assert (swept["evicted"], swept["kept"]) == (0, 6)
    (swept,) = said("gc", "--max-bytes", "0", folder=folder)
    assert (swept["evicted"], swept["kept"]) == (6, 0)
    assert "0 entries" in run("stats", folder=folder).output


def test_entries_go_to_a_shared_place_and_come_back(cache: fg.Cache, tmp_path: Path):
    folder, shared, other = tmp_path / "cache", f"file://{tmp_path}/shared", tmp_path / "other"
    secret = secrets.token_hex(32)
    (tmp_path / "key").write_text(secret)
    (tmp_path / "key").chmod(0o600)
    assert len(said("push", shared, folder=folder, FOREGRAD_CACHE_KEY=secret)["keys"]) == 6
    assert said("push", shared, "--key", str(tmp_path / "key"), folder=folder)["keys"] == []
    assert len(said("ls", "--cache", shared, FOREGRAD_CACHE_KEY=secret)) == 6
    assert len(said("pull", shared, folder=other, FOREGRAD_CACHE_KEY=secret)["keys"]) == 6
    assert calls(other)
    stranger = run("pull", shared, folder=tmp_path / "third", FOREGRAD_CACHE_KEY=secrets.token_hex(32))
    assert stranger.exit_code == 1
    assert "wrongly signed" in stranger.output
    assert "give fg.Cache(..., key=...) a key" in run("push", shared, folder=folder).output


def test_a_folder_that_others_can_write_is_refused(cache: fg.Cache, tmp_path: Path):
    (tmp_path / "cache").chmod(0o777)
    result = run("ls", folder=tmp_path / "cache")
    assert result.exit_code == 1
    assert "others can write" in result.output


def test_headers_come_from_urls_too():
    remote = fg.Cache("memory://catalog", key=secrets.token_hex(32))
    remote.put("ef" * 32, pack({"kind": "call", "name": "f"}, {"blob": bytes(1000)}))
    (kept,) = catalog(remote)
    assert (kept.kind, kept.name, kept.problem) == ("call", "f", None)


def test_the_cache_is_looked_at_without_torch(cache: fg.Cache, tmp_path: Path):
    script = (
        "import sys; from foregrad.cli.main import main; main(sys.argv[1:], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    for words in (["ls"], ["explain", "--last"], ["stats"]):
        command = [sys.executable, "-c", script, "cache", *words, "--cache", str(tmp_path / "cache")]
        environment = os.environ | {"PYTHONPATH": str(Path(fg.__file__).parents[1])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
