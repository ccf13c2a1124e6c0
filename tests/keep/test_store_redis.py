"""Entries on a real Redis server: signed, claimed, and what happens when the server is killed in the middle."""

import math
import os
import socketserver
import threading
import time

import pytest
import redis

import foregrad as fg
from foregrad.cache.format.container import pack
from foregrad.cache.format.keys import SharedKey
from foregrad.cache.serialize.catalog import catalog
from foregrad.cache.store import claim as claims
from foregrad.cache.store import failing_layer as guarded
from foregrad.cache.store import redis_layer
from foregrad.cache.store.layer import Hit, Miss
from foregrad.cache.store.seal import PLAIN, Seal
from tests.keep.claimants import code_of, fork, kill, until
from tests.keep.redis_server import redis_server

KEY, OTHER = "ab" * 32, "cd" * 32
SECRET = b"a secret that all of them have and share"
SEAL = Seal(SharedKey(SECRET))
STRANGER = Seal(SharedKey(b"another secret, which is of another team"))
DATA = os.urandom(50_000)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server):
    if shared_server.process.poll() is not None:
        shared_server.start()
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def remote(server):
    return fg.Cache(server.url, key=SECRET)


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def name(key=KEY):
    return f"foregrad:v1:{key}"


def test_a_server_keeps_entries(remote, server):
    assert remote.get(KEY) == Miss("not there")
    remote.put(KEY, DATA)
    assert fg.Cache(server.url, key=SECRET).get(KEY) == Hit(DATA, server.url)
    (entry,) = remote.entries()
    assert (entry.key, entry.size, entry.source) == (KEY, len(DATA) + PLAIN.size, server.url)
    assert abs(entry.used - time.time()) < 60
    assert remote.verify() == []
    remote.delete(KEY)
    assert remote.entries() == []


def test_entries_are_pushed_and_pulled(remote, tmp_path):
    local = fg.Cache(tmp_path / "local")
    for number in range(20):
        local.put(f"{number:02x}" * 32, DATA)
    assert len(local.push(remote).keys) == 20
    assert len(fg.Cache(tmp_path / "other").pull(remote).keys) == 20


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("unsigned", PLAIN.of(KEY, DATA) + DATA),
        ("wrongly signed, or damaged", STRANGER.of(KEY, DATA) + DATA),
        ("wrongly signed, or damaged", SEAL.of(OTHER, DATA) + DATA),
        ("wrongly signed, or damaged", SEAL.of(KEY, DATA) + DATA[:-1]),
        ("damaged", b"nonsense"),
        ("not there", b""),
        ("too large", bytes(200_000)),
    ],
)
def test_a_value_of_somebody_else_is_never_returned(server, client, kind, raw):
    client.set(name(), raw)
    remote = fg.Cache(server.url, key=SECRET, max_entry_bytes=100_000)
    assert remote.get(KEY).kind == kind
    remote.put(KEY, DATA)
    assert remote.get(KEY).data == DATA


def test_a_value_of_another_type_is_a_miss_and_the_server_is_asked_again(remote, client):
    client.lpush(name(), "a list")
    client.lpush(name() + ":lease", "a list")
    remote.put(OTHER, DATA)
    assert remote.get(KEY).kind == "unreadable"
    assert remote.get(OTHER).data == DATA
    with remote.claim(KEY, timeout=5) as claim:
        assert claim.found is None
    assert {entry.key for entry in remote.entries()} == {OTHER}


def test_a_server_without_memory_is_one_warning(remote, client, caplog):
    remote.put(KEY, DATA)
    client.config_set("maxmemory", "1mb")
    try:
        for _ in range(3):
            remote.put(OTHER, bytes(900_000))
        assert remote.get(KEY).data == DATA
    finally:
        client.config_set("maxmemory", "0")
    assert len(caplog.records) == 1
    assert "used memory" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        b"+OK\r\n",
        b":7\r\n",
        b":-7\r\n",
        b"$-1\r\n",
        b"*1\r\n:7\r\n",
        b"*-1\r\n",
        b"-ERR no\r\n",
        b"$9999999\r\nx",
        b"\0\xff\r\n",
        b"",
    ],
)
def test_a_server_that_answers_nonsense_is_a_miss(answer, tmp_path):
    pytest.importorskip("redis")

    class Nonsense(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(2)
            while answer and self.request.recv(4096):
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"redis://127.0.0.1:{server.server_address[1]}/0?socket_timeout=0.5"
        cache = fg.Cache([tmp_path / "local", url], key=SECRET)
        assert isinstance(cache.get(KEY), Miss)
        with cache.claim(KEY, timeout=0.2) as claim:
            assert claim.found is None
        cache.put(KEY, DATA)
        assert cache.get(KEY) == Hit(DATA, str(tmp_path / "local"))
        cache.delete(KEY)
        server.shutdown()


# Claims


def test_of_many_processes_one_makes_the_entry(server, tmp_path):
    def work():
        cache = fg.Cache([tmp_path / f"local-{os.getpid()}", server.url], key=SECRET)
        with cache.claim(KEY, timeout=60) as claim:
            if claim.found is None:
                (tmp_path / f"made-by-{os.getpid()}").touch()
                time.sleep(0.3)
                cache.put(KEY, DATA)
            else:
                assert claim.found.data == DATA

    assert [code_of(process) for process in [fork(work) for _ in range(6)]] == [0] * 6
    assert len(list(tmp_path.glob("made-by-*"))) == 1
    with server.client() as client:
        assert client.keys("*lease") == []


def test_a_killed_owner_is_noticed_before_its_lease_runs_out(remote, server, client, monkeypatch):
    for module in (claims, redis_layer):
        monkeypatch.setattr(module, "LEASE_SECONDS", 600.0)

    def work():
        with fg.Cache(server.url, key=SECRET).claim(KEY):
            time.sleep(600)

    owner = fork(work)
    until(lambda: client.exists(name() + ":lease"))
    kill(owner)
    with remote.claim(KEY, timeout=60) as claim:
        assert claim.reason == "the lease is ours"


def test_the_lease_of_an_owner_elsewhere_runs_out_by_itself(remote, client):
    client.set(name() + ":lease", SEAL.lease(KEY, "another-boot 1 0123 elsewhere"), px=400)
    with remote.claim(KEY, timeout=60) as claim:
        assert claim.reason == "the lease is ours"


def test_a_lease_is_renewed_while_its_owner_works(remote, client, monkeypatch):
    monkeypatch.setattr(claims, "_RENEW_SECONDS", 0.02)
    with remote.claim(KEY):
        client.pexpire(name() + ":lease", 3000)
        until(lambda: client.pttl(name() + ":lease") > 4000)


def test_a_lease_that_was_taken_over_is_not_the_first_owner_s_to_end(remote, client):
    with remote.claim(KEY):
        client.set(name() + ":lease", "somebody else")
    assert client.get(name() + ":lease") == b"somebody else"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 10_000_000,
        b"another-boot 1 0123 elsewhere",
        STRANGER.lease(KEY, "a 1 2 b"),
        SEAL.lease(OTHER, "a 1 2 b"),
    ],
    ids=["empty", "huge", "unsigned", "signed by another", "signed for another entry"],
)
def test_a_lease_of_a_stranger_is_not_waited_for(remote, server, client, tmp_path, content):
    client.set(name() + ":lease", content)
    with remote.claim(KEY, timeout=math.inf) as claim:
        assert claim.found is None
        assert "not signed with our key" in claim.reason
    assert client.get(name() + ":lease") == content
    layered = fg.Cache([tmp_path / "local", server.url], key=SECRET)
    with layered.claim(KEY, timeout=math.inf) as claim:
        assert claim.reason == "the lease is ours"  # that of the folder


def test_a_lease_of_ours_that_a_stranger_keeps_there_is_waited_for_until_the_time_is_over(remote, client):
    client.set(name() + ":lease", SEAL.lease(KEY, "another-boot 1@1 0123 elsewhere"))
    with remote.claim(KEY, timeout=1.0) as claim:
        assert "process 1 on elsewhere is still at it" in claim.reason


# A server that goes away


def test_no_server_costs_one_warning_and_one_attempt(tmp_path, server, caplog, monkeypatch):
    server.kill()
    attempts, connect = [], redis.Connection.connect
    monkeypatch.setattr(redis.Connection, "connect", lambda self: attempts.append(1) or connect(self))
    monkeypatch.setattr(guarded, "_REST_SECONDS", 3600.0)
    cache = fg.Cache([tmp_path / "local", server.url], key=SECRET)
    for _ in range(50):
        assert cache.get(KEY).kind == "unreachable"
        cache.put(OTHER, DATA)
        assert cache.get(OTHER).data == DATA
    with cache.claim(KEY) as claim:
        assert claim.reason == "the lease is ours"  # that of the folder
    assert len(attempts) == 1
    assert len(caplog.records) == 1


def test_a_server_that_hangs_is_given_up_soon(tmp_path, server, client, monkeypatch):
    cache = fg.Cache([tmp_path / "local", f"{server.url}?socket_timeout=0.2"], key=SECRET)
    sleeper = threading.Thread(target=lambda: client.execute_command("DEBUG", "SLEEP", "2"))
    sleeper.start()
    time.sleep(0.1)
    assert cache.get(KEY).kind == "unreachable"  # who waits for it is told that there is no such entry
    sleeper.join()


def test_a_server_that_is_back_is_used_again(remote, server, monkeypatch):
    remote.put(KEY, DATA)
    server.kill()
    assert remote.get(KEY).kind == "unreachable"
    server.start()
    monkeypatch.setattr(guarded.time, "monotonic", lambda now=guarded.time.monotonic: now() + 60)
    assert remote.get(KEY) == Miss("not there")
    remote.put(KEY, DATA)
    assert remote.get(KEY).data == DATA


def test_waiters_of_a_server_that_is_killed_make_the_entry_themselves(tmp_path, server):
    caches = [fg.Cache([tmp_path / f"local-{number}", server.url], key=SECRET) for number in range(2)]
    reasons = []

    def wait():
        with caches[1].claim(KEY, timeout=60) as claim:
            reasons.append(claim.reason)
            caches[1].put(KEY, DATA)

    waiter = threading.Thread(target=wait)
    with caches[0].claim(KEY):
        waiter.start()
        time.sleep(0.1)
        server.kill()
        waiter.join(timeout=20)
        caches[0].put(KEY, DATA)
    assert reasons == ["the lease is ours"]  # that of its own folder
    assert [cache.get(KEY).data == DATA for cache in caches] == [True, True]


def test_a_server_killed_while_clients_work_does_no_harm(tmp_path, server, monkeypatch):
    """Four threads put and get entries through two layers; the server is killed and started again, five times."""
    monkeypatch.setattr(guarded, "_REST_SECONDS", 0.02)
    wrong, is_done = [], threading.Event()
    made = {}

    def content(key):
        return key.encode() * 2000

    def work(worker):
        cache = fg.Cache([tmp_path / f"local-{worker}", server.url], key=SECRET)
        number = 0
        while not is_done.is_set():
            key = f"{worker:02x}{number:06x}" * 8
            with cache.claim(key, timeout=10) as claim:
                if claim.found is None:
                    cache.put(key, content(key))
            for known in (key, f"{worker:02x}{number // 2:06x}" * 8):
                found = cache.get(known)
                if not isinstance(found, Hit) or found.data != content(known):
                    wrong.append(found)  # the folder has it, whatever the server does
            number += 1
        made[worker] = number

    def guard(worker):
        try:
            work(worker)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=guard, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        time.sleep(0.2)
        server.kill()
        time.sleep(0.2)
        server.start()
    is_done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    for worker, number in made.items():
        local = fg.Cache(tmp_path / f"local-{worker}")
        assert number > 5
        assert len(local.entries()) == number
        assert local.verify() == []
    assert fg.Cache(server.url, key=SECRET).verify() == []


def test_a_list_reads_headers_only(remote):
    remote.put(KEY, pack({"kind": "halves", "name": "f"}, {"blob": DATA}))
    remote.put(OTHER, DATA)
    kept = {one.key: one for one in catalog(remote)}
    assert (kept[KEY].kind, kept[KEY].problem) == ("halves", None)
    assert "damaged" in kept[OTHER].problem
