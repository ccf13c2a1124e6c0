"""Folders from which code is loaded: nobody else can have written there, nor put another folder in their place."""

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.cache.serialize import keyring
from foregrad.cache.store.folder import Folder
from foregrad.cache.store.layer import Miss
from foregrad.process import folders
from foregrad.process.folders import code_folder, why_exposed
from tests.backends.lend_toolchain import lend_toolchain

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which only root can")
STRANGER = 12345
KEY = "ab" + "0" * 62


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    return tmp_path


def test_a_folder_of_ones_own(base: Path):
    assert why_exposed(base) is None
    assert why_exposed(base / "not" / "there") is None
    (base / "link").symlink_to(base)
    assert why_exposed(base / "link") is None
    (base / "up").symlink_to("../" + base.name)
    assert why_exposed(base / "up" / "link") is None


def test_a_folder_inside_one_that_others_can_write(base: Path):
    inner = base / "open" / "cache"
    inner.mkdir(mode=0o700)
    assert "others can write" in str(why_exposed(inner))
    with pytest.raises(PermissionError, match="others can write"):
        fg.Cache(inner)
    (base / "open").chmod(0o1777)  # as /tmp: others cannot take away what is there
    assert why_exposed(inner) is None
    assert "others can write" in str(why_exposed(base / "open"))


def test_a_link_into_one_that_others_can_write(base: Path):
    (base / "open" / "cache").mkdir()
    (base / "link").symlink_to(base / "open" / "cache")
    assert "others can write" in str(why_exposed(base / "link"))
    (base / "round").symlink_to(base / "round")
    assert "leads nowhere" in str(why_exposed(base / "round"))


@needs_root
def test_what_belongs_to_another_user(base: Path):
    (base / "open").chmod(0o1777)
    theirs = base / "open" / "theirs"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    (theirs / "cache").mkdir()
    assert "belongs to another user" in str(why_exposed(theirs))
    assert "belongs to another user" in str(why_exposed(theirs / "cache"))
    link = base / "open" / "link"
    link.symlink_to(base)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert "belongs to another user" in str(why_exposed(link))


def test_a_shard_that_others_can_write(base: Path):
    folder = Folder(base / "cache")
    folder.put(KEY, b"entry")
    shard = folder.file(KEY).parent
    shard.chmod(0o777)
    found = folder.read(KEY)
    assert isinstance(found, Miss)
    assert "others can write" in found.reason
    shard.chmod(0o700)
    assert not isinstance(folder.read(KEY), Miss)


@pytest.fixture
def caplog_of(caplog: pytest.LogCaptureFixture):
    folders._private.cache_clear()
    yield caplog
    folders._private.cache_clear()


def test_code_is_kept_elsewhere_where_others_can_write(base: Path, monkeypatch, caplog_of):
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(base / "open" / "foregrad"))
    used = code_folder()
    assert used != base / "open" / "foregrad"
    assert why_exposed(used) is None
    assert "others can write" in caplog_of.text
    assert code_folder() == used
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(base / "foregrad"))
    assert code_folder() == base / "foregrad"


def test_a_folder_of_the_process_goes_with_it(base: Path):
    program = "from foregrad.process.folders import code_folder; print(code_folder())"
    environment = {**os.environ, "FOREGRAD_CACHE_DIR": str(base / "open" / "foregrad")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("backend", ["inductor", pytest.param("aoti", marks=pytest.mark.slow)])
def test_inductor_works_in_a_folder_of_ours(backend: str, base: Path):
    """Its own has a name in the temporary folder that anybody can take first."""
    temporary = base / "open"
    temporary.chmod(0o1777)
    user = getpass.getuser()
    program = f"""
import os, sys, torch, torch._inductor.compile_fx
import foregrad as fg

named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
function = fg.compile(lambda x: (x.sin() * x).sum(), backend={backend!r}, cache=False, progress=False)
function(torch.ones(37, requires_grad=True)).backward()
loaded = [line.split()[-1] for line in open("/proc/self/maps") if {str(base)!r} in line]
loaded += [one.__file__ for one in list(sys.modules.values()) if {str(base)!r} in str(getattr(one, "__file__", ""))]
assert loaded
assert not [one for one in loaded if "torchinductor_{user}" in one], loaded
assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == named
"""
    lend_toolchain(base / "cache")
    environment = {**os.environ, "TMPDIR": str(temporary), "FOREGRAD_CACHE_DIR": str(base / "cache")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert (temporary / f"foregrad-{os.geteuid()}").stat().st_mode & 0o777 == 0o700


def test_a_key_that_others_could_have_put_there_is_not_used(base: Path, monkeypatch):
    monkeypatch.setenv("FOREGRAD_CONFIG_DIR", str(base / "mine"))
    assert keyring.signer() is not None
    assert [label for label, _ in keyring.labelled()] == ["your own key"]
    monkeypatch.setenv("FOREGRAD_CONFIG_DIR", str(base / "open" / "mine"))
    assert keyring.signer() is None
    assert keyring.labelled() == []
