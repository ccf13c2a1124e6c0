"""Entries in a folder: whole or not at all, checked at every read, within a limit, nobody else's."""

import errno
import logging
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

import foregrad as fg
from foregrad.cache.store.cache import default_cache
from foregrad.cache.store.folder import Folder
from foregrad.cache.store.layer import Hit, Miss
from foregrad.cache.store.seal import PLAIN

KEY, OTHER = "ab" * 32, "cd" * 32
DATA = bytes(range(256)) * 4


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "cache")


def as_old_as(folder: Folder, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder.file(key), (then, then))


def test_what_was_put_is_found_by_another_process_too(folder):
    folder.put(KEY, DATA)
    assert Folder(folder.path).get(KEY) == Hit(DATA, str(folder.path))
    assert folder.get(OTHER) == Miss("not there")
    assert [entry.key for entry in folder.entries()] == [KEY]


def test_an_entry_may_be_empty(folder):
    folder.put(KEY, b"")
    assert folder.get(KEY) == Hit(b"", folder.name)


def test_the_file_is_named_for_its_key_and_version(folder):
    folder.put(KEY, DATA)
    files = [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()]
    assert files == [f"v1/ab/{KEY}.fg"]


@pytest.mark.parametrize(
    "key", ["", "ab", "../../etc/passwd", "AB" * 32, "ab" * 31 + "a/", "xy" * 32, "ab" * 65, "ab\n" * 8]
)
def test_a_key_that_is_no_key_is_refused(folder, key):
    for use in (folder.get, folder.delete, lambda key: folder.put(key, b""), fg.Cache(folder.path).get):
        with pytest.raises(ValueError, match="hexadecimal"):
            use(key)


# every region: kind, tag, content; first, middle and last bytes of each, and all of the first 48
@pytest.mark.parametrize(
    "place", [*range(48), PLAIN.size + 100, PLAIN.size + len(DATA) // 2, PLAIN.size + len(DATA) - 1]
)
@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_a_changed_byte_is_a_miss_and_the_entry_is_removed(folder, place, change):
    folder.put(KEY, DATA)
    raw = bytearray(folder.file(KEY).read_bytes())
    raw[place] ^= change
    folder.file(KEY).write_bytes(raw)
    assert folder.get(KEY).kind == "damaged"
    assert folder.get(KEY) == Miss("not there")
    assert list(folder.root.rglob("*.tmp")) == []


@pytest.mark.parametrize("length", [0, 1, 7, 8, 39, 40, 41, PLAIN.size + len(DATA) - 1])
def test_a_truncated_entry_is_a_miss(folder, length):
    folder.put(KEY, DATA)
    os.truncate(folder.file(KEY), length)
    assert folder.get(KEY).kind == "damaged"
    folder.put(KEY, DATA)
    assert folder.get(KEY) == Hit(DATA, folder.name)


def test_an_entry_with_something_after_it_is_a_miss(folder):
    folder.put(KEY, DATA)
    with open(folder.file(KEY), "ab") as file:
        file.write(b"\0")
    assert folder.get(KEY).kind == "damaged"


def test_an_entry_is_not_taken_for_another_one(folder):
    folder.put(KEY, DATA)
    folder.put(OTHER, b"")
    os.replace(folder.file(KEY), folder.file(OTHER))
    assert folder.get(OTHER).kind == "damaged"


def test_a_good_entry_that_came_in_the_meantime_is_not_removed_with_the_damaged_one(folder, monkeypatch):
    folder.put(KEY, DATA)
    folder.file(KEY).write_bytes(b"damaged")
    rename = os.rename

    def put_before(*args):
        monkeypatch.setattr(os, "rename", rename)
        folder.put(KEY, DATA)
        rename(*args)

    monkeypatch.setattr(os, "rename", put_before)
    assert folder.get(KEY).kind == "damaged"
    assert folder.get(KEY) == Hit(DATA, folder.name)


def test_verifying_names_the_damaged_ones_and_leaves_them(folder):
    cache = fg.Cache(folder.path)
    cache.put(KEY, DATA)
    cache.put(OTHER, DATA)
    assert cache.verify() == []
    os.truncate(folder.file(OTHER), 100)
    for _ in range(2):
        (damaged,) = cache.verify()
        assert (damaged.key, damaged.reason) == (OTHER, "damaged: its digest is another one")


def test_two_versions_do_not_disturb_each_other(tmp_path):
    old, new = Folder(tmp_path / "cache"), Folder(tmp_path / "cache", max_bytes=2 * (PLAIN.size + 3), version=2)
    old.put(KEY, b"old")
    for key in (KEY, OTHER, "ef" * 32):
        new.put(key, b"new")
    new.gc()
    assert old.get(KEY) == Hit(b"old", old.name)
    assert len(list(new.entries())) == 1  # the limit is its own, and counts its own
    old.delete(KEY)
    old.gc()
    assert len(list(new.entries())) == 1


# Who may write


def test_the_folder_is_private(folder):
    old = os.umask(0)
    try:
        folder.put(KEY, DATA)
    finally:
        os.umask(old)
    parts = [folder.path, folder.root, folder.file(KEY).parent, folder.file(KEY)]
    assert [path.stat().st_mode & 0o777 for path in parts] == [0o700, 0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o722])
@pytest.mark.parametrize("part", ["", "v1"])
def test_a_folder_that_others_can_write_is_refused(folder, mode, part):
    folder.put(KEY, DATA)
    (folder.path / part).chmod(mode)
    with pytest.raises(PermissionError, match=r"others can write .*\n.*chmod go-w"):
        fg.Cache(folder.path)
    assert Path(folder.file(KEY)).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(folder):
    folder.put(KEY, DATA)
    os.chown(folder.path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        fg.Cache(folder.path)


def test_a_file_that_others_can_write_is_a_miss(folder):
    folder.put(KEY, DATA)
    folder.file(KEY).chmod(0o666)
    assert folder.get(KEY).reason == "refused: others can write it (mode 666)"


def test_what_is_no_file_is_a_miss(folder):
    folder.put(KEY, DATA)
    folder.delete(KEY)
    os.mkfifo(folder.file(KEY))
    assert folder.get(KEY).kind == "refused"
    os.unlink(folder.file(KEY))
    folder.file(KEY).mkdir()
    assert folder.get(KEY).kind == "refused"


def test_where_no_cache_was_asked_for_a_refused_folder_is_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(tmp_path))
    default_cache().put(KEY, DATA)
    assert default_cache().get(KEY).source == str(tmp_path / "programs")

    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(tmp_path / "shared"))
    (tmp_path / "shared" / "programs").mkdir(parents=True)
    (tmp_path / "shared" / "programs").chmod(0o777)
    for _ in range(3):
        default_cache().put(KEY, DATA)
        assert default_cache().get(KEY) == Miss("there is no cache")
    with default_cache().claim(KEY) as claim:
        assert claim.found is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "others can write" in caplog.text


# Places that cannot be written


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KB, where one can be mounted."""
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_one_warning(tiny_disk, caplog):
    cache = fg.Cache(tiny_disk / "cache")
    small, large = b"small" * 100, os.urandom(200_000)
    cache.put(KEY, small)
    cache.put(OTHER, large)
    for number in range(5):
        cache.put(f"{number}e" * 32, large)
    assert cache.get(KEY).data == small
    assert cache.get(OTHER).data == large
    assert cache.get("0e" * 32) == Miss("not there")
    assert not list(tiny_disk.rglob("*.tmp"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("fails", ["fsync", "replace", "open"])
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_write_that_fails_leaves_what_was_there(folder, monkeypatch, caplog, fails, reason):
    cache = fg.Cache(folder.path)
    cache.put(KEY, DATA)

    def fail(*args, **_):
        raise OSError(reason, os.strerror(reason), *args[:1])

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, fail)
        for _ in range(3):
            cache.put(KEY, b"new")
    assert cache.get(KEY).data == DATA
    assert not list(folder.root.rglob("*.tmp"))
    assert len(caplog.records) == 1
    assert os.strerror(reason) in caplog.text


@pytest.fixture
def readonly_folder(folder):
    """A folder on a file system that cannot be written: for root the mode of a folder means nothing."""
    folder.put(KEY, DATA)
    if os.geteuid() == 0:
        command = ["mount", "--bind", "-o", "ro", folder.path, folder.path]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        yield folder
        subprocess.run(["umount", folder.path], check=True)
    else:
        parts = [folder.path, folder.root, folder.file(KEY).parent]
        for part in parts:
            part.chmod(0o500)
        yield folder
        for part in parts:
            part.chmod(0o700)


def test_a_readonly_folder_is_read_and_costs_one_warning(readonly_folder, caplog):
    caplog.set_level(logging.WARNING)
    cache = fg.Cache(readonly_folder.path)
    assert cache.get(KEY).data == DATA
    cache.put(KEY, b"new")
    for _ in range(3):
        cache.put(OTHER, b"new")
        cache.delete(KEY)
    with cache.claim(OTHER, timeout=5) as claim:
        assert claim.found is None
    cache.gc()
    assert cache.get(KEY).data == DATA
    assert cache.get(OTHER) == Miss("not there")
    assert len(caplog.records) == 2  # one for writing, one for removing


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_cache_that_is_only_read_changes_nothing(folder, is_alone):
    folder.put(KEY, DATA)
    as_old_as(folder, KEY, 1000)
    folder.put(OTHER, DATA)
    os.truncate(folder.file(OTHER), 3)

    def state():
        return sorted((str(path), path.stat().st_mtime_ns) for path in folder.path.rglob("*"))

    before = state()
    cache = fg.Cache(folder.path, readonly=True) if is_alone else fg.Cache([fg.Cache(folder.path)], readonly=True)
    assert cache.get(KEY).data == DATA
    assert cache.get(OTHER).kind == "damaged"
    cache.put("ef" * 32, DATA)
    cache.delete(KEY)
    cache.gc()
    with cache.claim("ef" * 32) as claim:
        assert claim.found is None
    assert state() == before


# The limit


def test_what_was_used_longest_ago_goes_first(tmp_path):
    folder = Folder(tmp_path / "cache", max_bytes=10 * (PLAIN.size + 1000))
    keys = [f"{number:02x}" * 32 for number in range(10)]
    for age, key in enumerate(reversed(keys), start=1):
        folder.put(key, bytes(1000))
        as_old_as(folder, key, age * 60)
    folder.get(keys[0])  # the oldest, but used now
    folder.put(OTHER, bytes(1000))
    assert {entry.key for entry in folder.entries()} == {keys[0], *keys[3:], OTHER}


def test_the_newest_entry_stays_whatever_the_clock_says(tmp_path):
    folder = Folder(tmp_path / "cache", max_bytes=2 * (PLAIN.size + 1000))
    for key in ("0a" * 32, "0b" * 32):
        folder.put(key, bytes(1000))
        as_old_as(folder, key, -86400)
    folder.put(KEY, bytes(1000))
    assert isinstance(folder.get(KEY), Hit)


def test_an_entry_over_the_limit_is_not_kept_and_drives_nobody_out(tmp_path, caplog):
    cache = fg.Cache(tmp_path / "cache", max_bytes=5000)
    cache.put(KEY, bytes(1000))
    cache.put(OTHER, bytes(6000))
    assert "an entry of 6040 bytes is over the limit" in caplog.text
    assert [entry.key for entry in cache.entries()] == [KEY]


def test_an_entry_that_is_too_large_is_not_read(folder):
    folder.put(KEY, DATA)
    assert fg.Cache(folder.path, max_entry_bytes=100).get(KEY).kind == "too large"


def test_the_limit_holds_while_other_processes_write(tmp_path):
    """Each knows what it has written itself; the sizes are asked for again before much is added."""
    one, two = (Folder(tmp_path / "cache", max_bytes=100_000) for _ in range(2))
    for number in range(100):
        (one if number % 2 else two).put(f"{number:04x}" * 16, bytes(2000))
    assert sum(entry.size for entry in one.entries()) <= 200_000
    one.gc()
    assert sum(entry.size for entry in one.entries()) <= 100_000


def test_readers_of_what_is_being_evicted_find_all_or_nothing(tmp_path):
    folder = Folder(tmp_path / "cache", max_bytes=300_000)
    keys = [f"{number:02x}" * 32 for number in range(8)]
    wrong, is_done = [], threading.Event()

    def content(key):
        return key.encode() * 800

    def reads():
        mine = Folder(folder.path)
        while not is_done.is_set():
            for key in keys:
                found = mine.get(key)
                if found not in (Hit(content(key), mine.name), Miss("not there")):
                    wrong.append(found)

    readers = [threading.Thread(target=reads) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(10):
        for key in keys:
            folder.put(key, content(key))
            time.sleep(0.001)
    is_done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert 0 < len(list(folder.entries())) < len(keys)


def test_an_open_entry_is_read_to_its_end_after_eviction(folder, monkeypatch):
    folder.put(KEY, DATA)
    fstat = os.fstat

    def evict_then(handle):
        found = fstat(handle)
        folder.file(KEY).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(os, "fstat", evict_then)
    assert folder.get(KEY) == Hit(DATA, folder.name)
    assert folder.get(KEY) == Miss("not there")


def test_what_killed_writers_left_goes_after_a_while(folder):
    folder.put(KEY, DATA)
    shard = folder.file(KEY).parent
    names = [".abab.0.tmp", ".abab.1.tmp", f"{OTHER}.lease", f"{KEY}.lease", "somebody's.txt"]
    for name in names:
        (shard / name).write_text("x")
    for name in (names[0], names[2], names[4]):
        os.utime(shard / name, (0, 0))
    assert folder.gc().strays == 2
    assert {path.name for path in shard.iterdir()} == {f"{KEY}.fg", names[1], names[3], names[4]}


def test_a_folder_that_is_removed_while_it_is_used_is_made_again(folder):
    folder.put(KEY, DATA)
    subprocess.run(["rm", "-r", folder.path], check=True)
    assert folder.get(KEY) == Miss("not there")
    assert list(folder.entries()) == []
    folder.gc()
    folder.put(KEY, DATA)
    assert folder.get(KEY) == Hit(DATA, folder.name)


def test_hits_and_misses_are_counted_in_all_processes_together(folder):
    one, two = fg.Cache(folder.path), fg.Cache(folder.path)
    one.get(KEY)
    one.put(KEY, DATA)
    one.get(KEY)
    two.get(KEY)
    os.truncate(folder.file(KEY), 3)
    two.get(KEY)
    assert (one.stats().here.hits, one.stats().here.misses) == (1, {"not there": 1})
    assert (two.stats().ever.hits, two.stats().ever.misses) == (2, {"not there": 1, "damaged": 1})
    assert (one.stats().entries, one.stats().bytes) == (0, 0)
