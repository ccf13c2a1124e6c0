"""One process makes an entry, the others wait for it, and somebody takes over when it dies."""

import math
import os
import signal
import threading
import time

import pytest

import foregrad as fg
from foregrad.cache.format.keys import SharedKey
from foregrad.cache.store import claim as claims
from foregrad.cache.store.lease_file import LeaseFile
from foregrad.cache.store.seal import Seal
from tests.keep.claimants import code_of, fork, kill, until

KEY = "ab" * 32

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def cache(folder):
    return fg.Cache(folder)


def lease(folder):
    return folder / "v1" / "ab" / f"{KEY}.lease"


def test_an_entry_that_is_there_is_found_at_once(cache):
    cache.put(KEY, b"made")
    with cache.claim(KEY) as claim:
        assert claim.found.data == b"made"
    assert cache.stats().here.hits == 1


def test_the_first_one_owns_the_work_and_leaves_no_lease(cache, folder):
    with cache.claim(KEY) as claim:
        assert claim.found is None
        assert lease(folder).exists()
        cache.put(KEY, b"made")
    assert not lease(folder).exists()


def test_of_many_processes_one_makes_the_entry(folder, tmp_path):
    def work():
        cache = fg.Cache(folder)
        with cache.claim(KEY, timeout=60) as claim:
            if claim.found is None:
                (tmp_path / f"made-by-{os.getpid()}").touch()
                time.sleep(0.3)
                cache.put(KEY, b"made")
            else:
                assert claim.found.data == b"made"

    assert [code_of(process) for process in [fork(work) for _ in range(8)]] == [0] * 8
    assert len(list(tmp_path.glob("made-by-*"))) == 1
    assert not lease(folder).exists()


def test_of_many_threads_one_makes_the_entry(cache):
    made = []

    def work():
        with cache.claim(KEY, timeout=60) as claim:
            if claim.found is None:
                made.append(1)
                time.sleep(0.1)
                cache.put(KEY, b"made")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_when_the_owner_fails_the_next_one_tries(cache, folder):
    with pytest.raises(RuntimeError, match="no compiler"), cache.claim(KEY):
        raise RuntimeError("no compiler")
    assert not lease(folder).exists()
    with cache.claim(KEY) as claim:
        assert claim.found is None


def hold(folder):
    """A process that claims the entry and never makes it."""

    def work():
        with fg.Cache(folder).claim(KEY):
            time.sleep(600)

    process = fork(work)
    until(lease(folder).exists)
    return process


def test_a_killed_owner_is_noticed_before_its_lease_runs_out(cache, folder, monkeypatch):
    monkeypatch.setattr(claims, "LEASE_SECONDS", 600.0)
    kill(hold(folder))
    with cache.claim(KEY, timeout=60) as claim:
        assert claim.found is None
        assert claim.reason == "the lease is ours"
    assert not lease(folder).exists()


def test_an_owner_that_has_ended_and_was_not_waited_for_is_dead(cache, folder, monkeypatch):
    monkeypatch.setattr(claims, "LEASE_SECONDS", 600.0)
    owner = hold(folder)
    os.kill(owner, signal.SIGKILL)  # its parent, which we are, does not look: its number still answers
    with cache.claim(KEY, timeout=60) as claim:
        assert claim.reason == "the lease is ours"
    os.waitpid(owner, 0)


def test_a_process_that_has_got_the_number_of_a_dead_owner_is_not_the_owner(cache, folder, monkeypatch):
    monkeypatch.setattr(claims, "LEASE_SECONDS", 600.0)
    kill(hold(folder))
    machine, process, rest = lease(folder).read_text().split(" ", 2)
    started = process.partition("@")[2]
    lease(folder).write_text(f"{machine} {os.getpid()}@{started} {rest}")  # ours by its number, and older than we are
    with cache.claim(KEY, timeout=60) as claim:
        assert claim.reason == "the lease is ours"


def test_a_stopped_owner_is_given_up_when_it_does_not_renew(cache, folder, monkeypatch):
    monkeypatch.setattr(claims, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(claims, "_RENEW_SECONDS", 0.1)
    owner = hold(folder)
    try:
        with cache.claim(KEY, timeout=2.0) as claim:
            assert "is still at it" in claim.reason
        os.kill(owner, signal.SIGSTOP)
        with cache.claim(KEY, timeout=60) as claim:
            assert claim.reason == "the lease is ours"
    finally:
        kill(owner)


def test_a_stopped_owner_costs_five_seconds():
    assert claims.LEASE_SECONDS == 5.0
    assert claims._RENEW_SECONDS <= 1.25  # one that is late three times is still alive


def test_owners_are_killed_until_one_finishes(folder, tmp_path):
    """Twelve processes want the entry; who owns it is killed, ten times. The rest agree on what the eleventh makes."""

    def work():
        cache = fg.Cache(folder)
        with cache.claim(KEY, timeout=60) as claim:
            if claim.found is None:
                (tmp_path / f"owner-{os.getpid()}").touch()
                until((tmp_path / "go").exists, 60)
                cache.put(KEY, b"made")

    def owners():
        return {int(path.name.removeprefix("owner-")) for path in tmp_path.glob("owner-*")}

    processes = {fork(work) for _ in range(12)}
    killed = set()
    while len(killed) < 10:
        until(lambda: owners() - killed)
        for owner in owners() - killed:
            kill(owner)
            killed.add(owner)
    (tmp_path / "go").touch()
    assert [code_of(process) for process in processes - killed] == [0] * (12 - len(killed))
    assert fg.Cache(folder).get(KEY).data == b"made"


def test_after_the_time_limit_one_goes_on_alone(cache, folder):
    process = hold(folder)
    try:
        began = time.monotonic()
        with cache.claim(KEY, timeout=0.3) as claim:
            assert claim.found is None
            assert f"process {process} on " in claim.reason
            assert time.monotonic() - began >= 0.3
            cache.put(KEY, b"made")
        assert lease(folder).exists()  # it is not ours
    finally:
        kill(process)


def test_an_owner_elsewhere_is_given_up_when_its_lease_is_not_renewed(cache, folder, monkeypatch):
    monkeypatch.setattr(claims, "LEASE_SECONDS", 1.0)
    lease(folder).parent.mkdir(parents=True, mode=0o700)
    for path in (folder, folder / "v1"):
        path.chmod(0o700)
    lease(folder).write_text("another-boot/pid:[1] 1 0123456789abcdef elsewhere")
    stop = threading.Event()

    def renew():
        while not stop.wait(0.05):
            os.utime(lease(folder))

    owner = threading.Thread(target=renew)
    owner.start()
    with cache.claim(KEY, timeout=2.5) as claim:
        assert "process 1 on elsewhere is still at it" in claim.reason  # it is alive, whatever the clocks say
    stop.set()
    owner.join()
    os.utime(lease(folder), (0, 0))
    began = time.monotonic()
    with cache.claim(KEY, timeout=60) as claim:
        assert claim.reason == "the lease is ours"
    assert time.monotonic() - began > 1.0


def test_a_lease_is_renewed_while_its_owner_works(cache, folder, monkeypatch):
    monkeypatch.setattr(claims, "_RENEW_SECONDS", 0.02)
    with cache.claim(KEY):
        os.utime(lease(folder), (0, 0))
        until(lambda: lease(folder).stat().st_mtime > 0)


def test_a_lease_that_was_taken_over_is_not_the_first_owner_s_to_end(cache, folder):
    with cache.claim(KEY):
        lease(folder).write_text("somebody else")
    assert lease(folder).read_text() == "somebody else"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"x" * 10_000, b" 99999999999999999999999 x y", b"a b c d"])
def test_a_lease_that_makes_no_sense_is_waited_for_and_then_removed(cache, folder, monkeypatch, content):
    monkeypatch.setattr(claims, "LEASE_SECONDS", 0.1)
    cache.put(KEY, b"")
    cache.delete(KEY)
    lease(folder).write_bytes(content)
    with cache.claim(KEY, timeout=30) as claim:
        assert claim.reason == "the lease is ours"


@pytest.mark.parametrize("broken", ["acquire", "release", "renew"])
def test_without_leases_everybody_works(cache, monkeypatch, broken):
    def fail(*_):
        raise OSError("no leases on this file system")

    monkeypatch.setattr(LeaseFile, broken, fail)
    monkeypatch.setattr(claims, "_RENEW_SECONDS", 0.01)
    for number in range(2):
        key = f"{number}a" * 32
        with cache.claim(key, timeout=0.2) as claim:
            assert claim.found is None
            time.sleep(0.03)
            cache.put(key, b"made")
        assert cache.get(key).data == b"made"


# Places that others can write

SECRET = b"a secret that all of them have and share"


@pytest.fixture
def shared(folder):
    return fg.Cache(f"file://{folder}", key=SECRET)


def signed(owner, key=KEY, secret=SECRET):
    return Seal(SharedKey(secret)).lease(key, owner)


ELSEWHERE = "another-boot/pid:[1] 1@1 0123456789abcdef elsewhere"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense" * 300,
        ELSEWHERE.encode(),
        signed(ELSEWHERE, secret=b"another secret, which is of another team"),
        signed(ELSEWHERE, key="cd" * 32),
    ],
    ids=["empty", "nonsense", "unsigned", "signed by another", "signed for another entry"],
)
def test_a_lease_of_a_stranger_is_not_waited_for(shared, folder, content):
    lease(folder).parent.mkdir(parents=True)
    lease(folder).write_bytes(content)
    with shared.claim(KEY, timeout=math.inf) as claim:
        assert claim.found is None
        assert "not signed with our key" in claim.reason
        shared.put(KEY, b"made")
    assert shared.get(KEY).data == b"made"
    assert lease(folder).read_bytes() == content  # it is not ours to end


def test_in_a_shared_folder_one_process_makes_the_entry(folder, tmp_path):
    def work():
        cache = fg.Cache(f"file://{folder}", key=SECRET)
        with cache.claim(KEY, timeout=60) as claim:
            if claim.found is None:
                (tmp_path / f"made-by-{os.getpid()}").touch()
                time.sleep(0.3)
                cache.put(KEY, b"made")

    assert [code_of(process) for process in [fork(work) for _ in range(6)]] == [0] * 6
    assert len(list(tmp_path.glob("made-by-*"))) == 1
    assert [path.name for path in lease(folder).parent.iterdir()] == [f"{KEY}.fg"]


def test_a_lease_of_ours_that_a_stranger_puts_back_again_and_again_is_waited_for_until_the_time_is_over(shared, folder):
    lease(folder).parent.mkdir(parents=True)
    stop = threading.Event()

    def replay():
        while not stop.wait(0.01):
            copy.write_bytes(signed(ELSEWHERE))
            os.replace(copy, lease(folder))

    copy = folder / "copy"
    stranger = threading.Thread(target=replay)
    stranger.start()
    until(lease(folder).exists)
    with shared.claim(KEY, timeout=1.0) as claim:
        assert "process 1 on elsewhere is still at it" in claim.reason
    stop.set()
    stranger.join()
