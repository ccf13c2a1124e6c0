"""`foregrad show` says what is in a file and whether it is intact; it runs nothing and needs no torch."""

import json
import os
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

import foregrad as fg
from foregrad.cache.format.container import pack, write
from foregrad.cache.format.show import examine
from foregrad.cache.store.cache import Cache
from foregrad.cli.main import main
from tests.house.source import PACKAGE
from tests.keep.entries import ABOUT, BLOBS, KEY, forge, header_of, row, sparse

SHOWN = """\
step train
  file        FILE, 1.0 kB, format 1
  signed by   nobody
  needs       isa avx2, torch 2.13.0+cpu
  provenance  created 2026-01-31T12:00:00Z, foregrad 0.1.0
inputs
  param  weight  f32[8, 8]
  input  x       i64[8]
outputs
  write  weight  f32[8, 8]
  grad   x       null
blobs
  unchecked  code/forward.so  74 B  sha256 bb5041f3e92c92c2
  unchecked  empty            0 B   sha256 e3b0c44298fc1c14
ingredients
  torch  00ff  2.13.0+cpu
other
  timings  {"capture": 0.25}
blobs are not checked: --verify reads them
program: 2 lines, which --program prints
"""
WHOLE = {
    "kind": "step",
    "name": "train",
    "needs": {"torch": "2.13.0+cpu", "isa": "avx2"},
    "provenance": {"foregrad": "0.1.0", "created": "2026-01-31T12:00:00Z"},
    "signature": {
        "inputs": [
            {"role": "param", "name": "weight", "spec": "f32[8, 8]"},
            {"role": "input", "name": "x", "spec": "i64[8]"},
        ],
        "outputs": [
            {"role": "write", "name": "weight", "spec": "f32[8, 8]"},
            {"role": "grad", "name": "x", "spec": None},
        ],
    },
    "ingredients": [{"name": "torch", "digest": "00ff", "description": "2.13.0+cpu"}],
    "timings": {"capture": 0.25},
    "program": "y = x + 1\nreturn y",
}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("FOREGRAD_CACHE_KEY", raising=False)


def show(*args):
    result = CliRunner().invoke(main, ["show", *map(str, args)])
    return result.exit_code, result.output


def test_everything_about_a_step(tmp_path):
    path = tmp_path / "a.fg"
    write(path, WHOLE, {name: BLOBS[name] for name in ("code/forward.so", "empty")})
    code, text = show(path)
    assert text.replace(str(path), "FILE") == SHOWN
    assert code == 0
    assert show(path, "--program")[1].endswith("program\n  y = x + 1\n  return y\n")
    assert "  ok  code/forward.so  74 B  sha256" in show(path, "--verify")[1]


def test_json_holds_the_whole_header(tmp_path):
    path = tmp_path / "a.fg"
    write(path, WHOLE, BLOBS, signer=KEY)
    assert {blob["state"] for blob in json.loads(show(path, "--json")[1])["blobs"]} == {"unchecked"}
    code, text = show(path, "--json", "--verify")
    found = json.loads(text)
    assert code == 0
    assert found["about"] == WHOLE
    assert [(blob["name"], blob["state"]) for blob in found["blobs"]] == [(name, "ok") for name in sorted(BLOBS)]
    assert found["algorithm"] == "hmac-sha256"
    assert found["key_id"] == KEY.key_id.hex()
    assert found["problems"] == []


@pytest.mark.parametrize("key", [*WHOLE, None])
@pytest.mark.parametrize("value", [None, 3, "text", [], {}, [1, None], {"inputs": 3}, [{}], "missing"], ids=repr)
def test_any_part_may_be_missing_or_of_another_kind(tmp_path, key, value):
    about = dict(WHOLE) if key else {}
    if key and value == "missing":
        del about[key]
    elif key:
        about[key] = value
    path = tmp_path / "a.fg"
    write(path, about, {})
    assert show(path, "--program")[0] == 0
    assert json.loads(show(path, "--json")[1])["about"] == about


def test_damage_is_shown_beside_what_is_intact(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    path.write_bytes(path.read_bytes()[:-1])
    code, text = show(path)
    assert code == 1
    assert "  unchecked  code/forward.so" in text
    assert "  cut short  weights" in text
    assert "problem: " in text
    assert "is cut short" in text
    write(path, ABOUT, BLOBS)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert show(path)[0] == 0
    code, text = show(path, "--verify")
    assert code == 1
    assert "  ok       code/forward.so" in text
    assert "  damaged  weights" in text


def test_blobs_of_a_size_that_is_made_up_take_no_time(tmp_path):
    path = tmp_path / "a.fg"
    rows = [row(f"b{index}", index << 40, 1 << 40) for index in range(1000)]
    path.write_bytes(forge(header_of(rows), file_length=len(forge(header_of(rows))) + (1000 << 40)))
    for more in ((), ("--verify",)):
        code, text = show(path, "--json", *more)
        assert code == 1
        assert {blob["state"] for blob in json.loads(text)["blobs"]} == {"cut short"}


def test_a_file_of_any_size_is_shown_at_once(tmp_path):
    path = sparse(tmp_path / "sparse.fg", 64 << 30, WHOLE)
    code, text = show(path)
    assert code == 0
    assert "68.7 GB" in text
    os.truncate(path, 96 << 30)
    code, text = show(path)
    assert code == 1
    assert "has bytes after its end" in text


def test_an_entry_of_a_cache(tmp_path):
    cache = Cache(tmp_path / "cache")
    cache.put("ab" * 32, pack(WHOLE, BLOBS))
    (path,) = (tmp_path / "cache").rglob("*.fg")
    code, text = show(path, "--program", "--verify")
    assert code == 0
    assert text.endswith("program\n  y = x + 1\n  return y\n")


def test_the_listing_of_each_program_of_a_saved_function(tmp_path):
    compiled = fg.compile(lambda x: torch.tanh(x).sum(), backend="eager", cache=False)
    compiled(torch.ones(3))
    compiled(torch.ones(4, 2))
    compiled.save(tmp_path / "a.fg")
    text = show(tmp_path / "a.fg", "--program")[1]
    for number, capture in enumerate(compiled.captures, 1):
        listing = "".join(f"  {line}\n" for line in str(capture).splitlines())
        assert f"program {number}\n{listing}" in text


def test_long_listings_are_cut_unless_all_is_asked_for(tmp_path):
    path = tmp_path / "a.fg"
    write(path, {"captures": [{"program": "y = x\n" * 3000 + "z" * 5000}] * 30}, {})
    text = show(path, "--program")[1]
    assert text.count("y = x") == 10 * 1000
    assert "  and 2001 more lines, which --program --all prints\n" in text
    assert "and 20 more programs, which --program --all prints\n" in text
    whole = show(path, "--program", "--all")[1]
    assert whole.count("y = x") == 30 * 3000
    assert "z" * 5000 in whole


@pytest.mark.parametrize("data", [b"", b"\x80\x04.", forge("[" * 1000), forge(header_of(1))])
def test_a_header_that_cannot_be_read_is_one_problem(tmp_path, data):
    path = tmp_path / "a.fg"
    path.write_bytes(data)
    code, text = show(path)
    assert code == 1
    assert text.startswith(f"Error: {path} ")
    code, text = show(path, "--json")
    assert code == 1
    assert len(json.loads(text)["problems"]) == 1


def test_the_state_of_the_signature(tmp_path, monkeypatch):
    signed, unsigned, key = tmp_path / "signed.fg", tmp_path / "unsigned.fg", tmp_path / "key"
    write(signed, ABOUT, BLOBS, signer=KEY)
    write(unsigned, ABOUT, BLOBS)
    key.write_text(KEY.secret.hex())
    key.chmod(0o600)
    assert "not checked since no key is given" in show(signed)[1]
    assert ", accepted" in show(signed, "--key", key)[1]
    assert show(unsigned, "--key", key)[0] == 1
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", KEY.secret.hex())
    assert ", accepted" in show(signed)[1]
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", "ff" * 32)
    code, text = show(signed)
    assert code == 1
    assert ", refused" in text
    assert "keys accepted here" in text


def test_a_key_that_is_no_key_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", "secret")
    assert show(path) == (1, "Error: FOREGRAD_CACHE_KEY holds a key that is not in hexadecimal digits; "
                             "`openssl rand -hex 32` makes one\n")  # fmt: skip


def test_a_terminal_obeys_nothing_that_a_file_says(tmp_path):
    evil = "\x1b]0;title\x07\x1b[2J\r\u202eright to left\u2028\nline"
    path = tmp_path / "a.fg"
    about = dict.fromkeys(WHOLE, evil) | {
        evil: [evil],
        "needs": {evil: evil},
        "signature": {"inputs": [{"name": evil}]},
    }
    write(path, about, {})
    text = "\n".join(examine(path).lines(listing=True))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\x1b[2J" in text


def test_a_hostile_header_in_an_error_is_not_obeyed(tmp_path):
    path = tmp_path / "a.fg"
    for change in ({"name": "\x1b[2J"}, {"name": "a", "length": "\x1b[2J"}, {"\x1b[2J": 1}):
        rows = [{"name": "a", "offset": 0, "length": 0, "sha256": "0" * 64} | change]
        path.write_bytes(forge(header_of(rows)))
        assert "\x1b" not in show(path)[1]


def test_a_large_file_takes_a_screen_or_two(tmp_path):
    names = [f"layers.{number}.weight" for number in range(300)]
    rows = [{"role": "param", "name": name, "spec": "f32[8, 8]"} for name in names]
    rows.append({"role": "input", "name": "tokens", "spec": "i64[8]"})
    tensors = [{"is": "tensor", "name": name} for name in names]
    capture = {
        "reason": "first call; " * 50,
        "program": "y = x\n" * 500,
        "signature": {"inputs": rows, "outputs": rows},
    }
    about = {
        "kind": "step",
        "name": "train",
        "captures": [capture] * 2,
        "state": [{"class": "Model", "modules": tensors}],
    }
    path = tmp_path / "a.fg"
    write(path, {**about, "weights": True, "notes": ["long"] * 5000}, {f"code/{number}": b"x" for number in range(100)})
    code, text = show(path)
    assert code == 0
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 160
    for part in ("1.  first call", "tokens", "Model  300 tensors, contents in the file", "program 2: 500 lines"):
        assert part in text
    assert "layers.299.weight" in show(path, "--all")[1]
    assert show(path, "--program")[1].count("y = x") == 1000


WITHOUT_TORCH = """
import sys, types
foregrad = types.ModuleType("foregrad")  # the package's own file imports torch for users; the command does not
foregrad.__path__ = [sys.argv.pop(1)]
sys.modules["foregrad"] = foregrad
from foregrad.cli.main import main
main(standalone_mode=False)
assert "torch" not in sys.modules
"""


def test_showing_a_file_imports_no_torch(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(PACKAGE), "show", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("step train\n")
