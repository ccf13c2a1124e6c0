"""`foregrad doctor`: what is missing, and what that costs."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from foregrad.cli import doctor
from foregrad.cli.main import main


def programs(monkeypatch: pytest.MonkeyPatch, place: str) -> doctor.Finding:
    monkeypatch.setenv("FOREGRAD_CACHE", place)
    return doctor.programs()


def test_the_cache_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "not made yet" in programs(monkeypatch, str(tmp_path / "a" / "b")).value
    (tmp_path / "mine").mkdir(mode=0o700)
    found = programs(monkeypatch, str(tmp_path / "mine"))
    assert found.is_fine
    assert found.value.endswith("mode 700")
    (tmp_path / "mine").chmod(0o777)
    found = programs(monkeypatch, str(tmp_path / "mine"))
    assert not found.is_fine
    assert "others can write" in found.meaning


def test_what_a_cache_that_is_off_or_without_a_key_costs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FOREGRAD_CACHE_KEY", raising=False)
    assert "traces and compiles anew" in programs(monkeypatch, "off").meaning
    found = programs(monkeypatch, "redis://user:secret@server:6379/0")
    assert not found.is_fine
    assert "secret" not in found.value + found.meaning


def test_a_missing_package_is_named_with_what_needs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    by_name = {found.name: found for found in doctor.extras()}
    assert not any(found.is_fine for found in by_name.values())
    assert "no caches on Redis; pip install 'foregrad[redis]'" in by_name["redis"].meaning


def test_no_compiler_is_said_to_cost_speed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.toolchain, "compiler", lambda: None)
    (found,) = doctor.compilers()
    assert not found.is_fine
    assert "op by op" in found.meaning


def test_extras_are_printed_with_their_brackets(monkeypatch: pytest.MonkeyPatch):
    """Rich takes `[trust]` for a style, unless it is told that a text is one."""
    monkeypatch.setattr(
        doctor, "examine", lambda: [doctor.Finding("one", "[red]", False, "pip install 'foregrad[trust]'")]
    )
    printed = CliRunner().invoke(main, ["doctor"]).output
    assert "pip install 'foregrad[trust]'" in " ".join(printed.split())
    assert "[red]" in printed
