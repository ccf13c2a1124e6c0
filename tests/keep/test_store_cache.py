"""Layers, places that others can write, and what comes from there: used if it is signed, and only then."""

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

import foregrad as fg
from foregrad.cache.format.keys import SecretKey, SharedKey
from foregrad.cache.store import failing_layer as guarded
from foregrad.cache.store.layer import Hit, Miss
from foregrad.cache.store.seal import PLAIN, Seal

KEY, OTHER = "ab" * 32, "cd" * 32
SECRET = b"a secret that all of them have and share"
SEAL = Seal(SharedKey(SECRET))
STRANGER = Seal(SharedKey(b"another secret, which is of another team"))
DATA = b"a compiled program" * 100


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    """A place that others can write; `file` is a folder of ours, `memory` goes through fsspec."""
    if request.param == "file":
        return f"file://{tmp_path / 'shared'}"
    return f"memory://{tmp_path.name}"


@pytest.fixture
def remote(url):
    return fg.Cache(url, key=SECRET)


@pytest.fixture
def local(tmp_path):
    return fg.Cache(tmp_path / "local")


def path_of(url: str, key: str = KEY) -> str:
    return f"{url}/v1/{key[:2]}/{key}.fg"


def read(url: str) -> bytes:
    with fsspec.open(path_of(url), "rb") as file:
        return file.read()


def write(url: str, raw: bytes) -> None:
    files, path = fsspec.core.url_to_fs(path_of(url))
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    files.pipe_file(path, raw)


def test_a_url_keeps_entries(remote, url):
    assert remote.get(KEY) == Miss("not there")
    remote.put(KEY, DATA)
    assert fg.Cache(url, key=SECRET).get(KEY) == Hit(DATA, url)
    (entry,) = remote.entries()
    assert (entry.key, entry.size, entry.source) == (KEY, len(DATA) + PLAIN.size, url)
    assert entry.used is not None
    assert remote.verify() == []
    remote.delete(KEY)
    remote.delete(KEY)
    assert remote.get(KEY) == Miss("not there")


def test_a_url_without_a_secret_is_refused(url):
    with pytest.raises(ValueError, match=r"key=.*FOREGRAD_CACHE_KEY"):
        fg.Cache(url)
    with pytest.raises(ValueError, match="32 bytes or more"):
        fg.Cache(url, key=b"short")
    with pytest.raises(ValueError, match="hexadecimal"):
        fg.Cache(url, key="a password")


def test_the_secret_may_come_from_the_environment(remote, url, monkeypatch):
    remote.put(KEY, DATA)
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", SECRET.hex())
    assert fg.Cache(url).get(KEY).data == DATA


def test_a_folder_needs_no_key_and_does_not_mind_a_bad_one(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", "not hexadecimal")
    monkeypatch.setenv("HOME", str(tmp_path))
    fg.Cache("~/cache").put(KEY, DATA)
    assert fg.Cache(tmp_path / "cache").get(KEY).data == DATA


def test_who_has_the_public_key_reads_what_the_other_half_has_signed(url):
    pytest.importorskip("cryptography")
    signer, other = SecretKey(b"s" * 32), SecretKey(b"t" * 32)
    writer, reader = fg.Cache(url, key=signer), fg.Cache(url, key=signer.public)
    writer.put(KEY, DATA)
    reader.put(OTHER, DATA)
    assert reader.get(KEY).data == DATA
    assert reader.get(OTHER) == Miss("not there")
    assert fg.Cache(url, key=other.public).get(KEY).kind == "wrongly signed, or damaged"
    assert fg.Cache(url, key=SECRET).get(KEY).kind == "damaged"
    write(url, PLAIN.of(KEY, b"") + b"")
    assert reader.get(KEY).kind == "unsigned"
    # whoever knows the public key can make a secret of it, which signs nothing for others
    write(url, Seal(SharedKey(signer.public.public)).of(KEY, DATA) + DATA)
    assert reader.get(KEY).kind == "damaged"


def test_no_text_shows_a_password_or_a_secret(tmp_path):
    pytest.importorskip("redis")
    cache = fg.Cache([tmp_path, "redis://user:pass-word@127.0.0.1:1/0?password=pass-word"], key=SECRET)
    found = cache.get(KEY)
    texts = f"{cache} {cache._layers} {found}"
    assert "redis://127.0.0.1:1/0" in texts
    assert "pass-word" not in texts
    assert "a secret" not in texts


@pytest.mark.parametrize(
    ("kind", "raw"),
    {
        "unsigned": PLAIN.of(KEY, DATA) + DATA,
        "wrongly signed, or damaged": STRANGER.of(KEY, DATA) + DATA,
        "wrongly signed, or damaged ": SEAL.of(OTHER, DATA) + DATA,
        "wrongly signed, or damaged  ": SEAL.of(KEY, DATA) + DATA + b"!",
        "wrongly signed, or damaged   ": SEAL.of(KEY, DATA)[:8] + bytes(32) + DATA,
        "damaged": b"\x80\x04\x95 a pickle, for example, which nobody here would load",
        "damaged ": b"",
        "damaged  ": SEAL.of(KEY, DATA)[:39],
        "too large": bytes(20_000),
    }.items(),
)
def test_what_is_not_signed_for_this_key_is_never_returned(url, local, kind, raw):
    write(url, raw)
    remote = fg.Cache(url, key=SECRET, max_entry_bytes=10_000)
    cache = fg.Cache([local, remote])
    assert cache.get(KEY).kind == kind.strip()
    assert [damaged.key for damaged in remote.verify()] == [KEY]
    assert local.entries() == []
    with cache.claim(KEY) as claim:
        assert claim.found is None
        cache.put(KEY, DATA)
    assert remote.get(KEY).data == local.get(KEY).data == DATA


@pytest.mark.parametrize("place", [*range(44), PLAIN.size + len(DATA) - 1])
def test_no_byte_of_a_signed_entry_can_be_changed(remote, url, place):
    remote.put(KEY, DATA)
    raw = bytearray(read(url))
    raw[place] ^= 0x10
    write(url, bytes(raw))
    assert isinstance(remote.get(KEY), Miss)


def test_an_entry_that_others_can_not_use_stays_for_those_who_can(remote, url):
    remote.put(KEY, DATA)
    assert fg.Cache(url, key=b"another secret, which is of another team").get(KEY).kind == "wrongly signed, or damaged"
    assert remote.get(KEY).data == DATA


def test_folders_with_names_like_entries_do_no_harm(tmp_path):
    shared = tmp_path / "shared"
    (shared / "v1" / "ab" / f"{KEY}.fg").mkdir(parents=True)
    (shared / "v1" / "cd").symlink_to(tmp_path)
    (tmp_path / f"{OTHER}.fg").write_bytes(b"not of this cache")
    cache = fg.Cache(f"file://{shared}", key=SECRET, max_bytes=1)
    assert cache.get(KEY).kind == "refused"
    cache.gc()
    assert (tmp_path / f"{OTHER}.fg").exists()


# Layers


def test_the_nearer_layer_is_asked_first_and_gets_what_the_other_has(local, remote):
    cache = fg.Cache([local, remote])
    remote.put(KEY, DATA)
    assert cache.get(KEY).source == remote.entries()[0].source
    assert cache.get(KEY).source == local.entries()[0].source
    cache.put(OTHER, DATA)
    assert local.get(OTHER).data == remote.get(OTHER).data == DATA
    assert {entry.key: entry.source for entry in cache.entries()} == {
        key: local.entries()[0].source for key in (KEY, OTHER)
    }
    cache.delete(KEY)
    assert local.get(KEY) == remote.get(KEY) == Miss("not there")


def test_a_layer_that_is_only_read_is_not_written(local, remote, url):
    cache = fg.Cache([local, fg.Cache(url, key=SECRET, readonly=True)])
    remote.put(KEY, DATA)
    cache.put(OTHER, DATA)
    cache.delete(KEY)
    assert cache.get(KEY).data == local.get(KEY).data == DATA
    assert remote.get(OTHER) == Miss("not there")


def test_push_and_pull_copy_what_is_missing(local, remote, tmp_path):
    local.put(KEY, DATA)
    local.put(OTHER, DATA)
    remote.put(OTHER, b"its own")
    assert local.push(remote).keys == [KEY]
    assert remote.get(OTHER).data == b"its own"
    third = fg.Cache(tmp_path / "third")
    assert sorted(third.pull(remote).keys) == [KEY, OTHER]
    assert third.pull(remote).keys == []


def test_push_says_what_was_not_copied_and_why(local, remote, tmp_path):
    local.put(KEY, DATA)
    local.put(OTHER, DATA)
    os.truncate(tmp_path / "local" / "v1" / "cd" / f"{OTHER}.fg", 50)
    small = fg.Cache(tmp_path / "small", max_bytes=100)
    failed = local.push(small).failed
    assert "over the limit" in failed[KEY]
    assert "damaged" in failed[OTHER]


class Moody:
    """A file system that raises what libraries raise, at will."""

    def __init__(self, files):
        self.files, self.error, self.asked = files, None, 0

    def __getattr__(self, name):
        def ask(*args, **kwargs):
            self.asked += 1
            if self.error:
                raise self.error
            return getattr(self.files, name)(*args, **kwargs)

        return ask


def test_a_place_that_does_not_answer_is_left_alone_for_a_while(local, tmp_path, caplog, monkeypatch):
    remote = fg.Cache(f"memory://{tmp_path.name}", key=SECRET)
    cache = fg.Cache([local, remote])
    (_, far) = cache._layers
    moody = far.layer._files = Moody(far.layer._files)
    cache.put(KEY, DATA)
    local.delete(KEY)
    moody.error = RuntimeError("503 slow down")
    asked = moody.asked
    for _ in range(20):
        assert cache.get(KEY).kind == "unreachable"
        cache.put(OTHER, DATA)
        assert cache.get(OTHER).data == DATA
        with cache.claim(KEY) as claim:
            assert claim.found is None
    assert moody.asked == asked + 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "503 slow down" in caplog.text

    moody.error = None
    monkeypatch.setattr(guarded.time, "monotonic", lambda now=guarded.time.monotonic: now() + 60)
    assert cache.get(KEY).data == DATA


def test_a_url_that_nobody_knows_says_so():
    with pytest.raises(ValueError, match="nosuch"):
        fg.Cache("nosuch://somewhere", key=SECRET)


@pytest.mark.parametrize(("library", "url"), [("redis", "redis://127.0.0.1"), ("fsspec", "memory://x")])
def test_a_missing_library_is_named(library, url, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == library] + [library]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'foregrad\["):
        fg.Cache(url, key=SECRET)


def test_the_client_of_redis_is_imported_by_whoever_uses_it():
    code = "import sys, foregrad; foregrad.Cache; print('redis' in sys.modules)"
    root = Path(fg.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "False"
