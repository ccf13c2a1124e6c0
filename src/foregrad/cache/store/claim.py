"""Claim: one process works on an entry, and the others wait for it.

    with cache.claim(key) as claim:
        if claim.found is None:
            cache.put(key, build())

The owner holds a lease, which a thread renews while the work goes on. The others look for the entry until it is there.
They take over when the owner has left without one, when it has died, and when they have waited long enough. Who cannot
have a lease, since a stranger holds it, does not wait at all.

A lease saves work and decides nothing: if all of this fails, two processes build the same entry, and either is good.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foregrad.cache.store.layer import Hit, LeaseHolder, Leases
from foregrad.process.forks import divided

log = logging.getLogger("foregrad")

#: A lease that was not renewed for so long has no owner any more: it is stopped, or on a machine that is gone.
LEASE_SECONDS = 5.0
_RENEW_SECONDS = LEASE_SECONDS / 4

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


@dataclass(frozen=True)
class Claim:
    """The entry that another process has made, or None: then it is ours to make. `reason` says why it is so."""

    found: Hit | None
    reason: str


@contextmanager
def claim(look: Callable[[], Hit | None], places: Sequence[Leases], key: str, timeout: float) -> Iterator[Claim]:
    """The claim of a key, with the first of the places that can give a lease; none of them has to."""
    if hit := look():
        yield Claim(hit, "it was there")
        return
    deadline = time.monotonic() + timeout
    owner, reason = _owner(), "there are no leases here"
    for place in places:
        try:
            outcome = _wait(look, place, key, owner, deadline)
        except OSError as error:
            log.info("no lease of %.12s: %s", key, error)
            reason = f"there is no lease: {error}"
            continue
        if outcome.reason != _OURS:
            yield outcome
        else:
            with _renewed(place, key, owner):
                yield outcome
        return
    yield Claim(None, reason)


_OURS = "the lease is ours"


def _wait(look: Callable[[], Hit | None], place: Leases, key: str, owner: str, deadline: float) -> Claim:
    """Until the entry is there, the lease is ours, or the time is over."""
    pause = _FIRST_PAUSE
    seen, since = None, time.monotonic()
    while holder := place.acquire(key, owner):
        if hit := look():
            return Claim(hit, f"made by {_name(holder.owner)}")
        now = time.monotonic()
        if holder != seen:
            if seen is None:
                log.info("waiting for %s, which works on the entry %.12s", _name(holder.owner), key)
            seen, since = holder, now
        if now >= deadline:
            return Claim(None, f"{_name(holder.owner)} is still at it, and the time to wait is over")
        if _is_dead(holder) or now - since > LEASE_SECONDS:
            log.info("%s has left the entry %.12s unfinished", _name(holder.owner), key)
            place.release(key, holder.owner)
            pause = _FIRST_PAUSE
        with divided():
            time.sleep(min(pause, max(0.0, deadline - now)))
        pause = min(2 * pause, _LONGEST_PAUSE)
    if hit := look():  # finished between our look and our lease
        place.release(key, owner)
        return Claim(hit, "it was there")
    return Claim(None, _OURS)


@contextmanager
def _renewed(place: Leases, key: str, owner: str) -> Iterator[None]:
    """Hold a lease: a thread renews it until the work is done."""
    is_done = threading.Event()

    def renew() -> None:
        while not is_done.wait(_RENEW_SECONDS):
            try:
                place.renew(key, owner)
            except OSError as error:
                log.info("the lease of %.12s is not renewed: %s", key, error)

    threading.Thread(target=renew, name="foregrad lease", daemon=True).start()
    try:
        yield
    finally:
        is_done.set()
        try:
            place.release(key, owner)
        except OSError as error:
            log.info("the lease of %.12s stays: %s", key, error)


def _owner() -> str:
    """This claim: where its process runs, which process it is, and a number to tell it from all others."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    return f"{_machine()} {os.getpid()}@{_started(os.getpid())} {secrets.token_hex(8)} {host}"


@cache
def _machine() -> str:
    """Where a process number means something: one boot of one machine, one space of process numbers."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(process: int) -> str:
    """When a process has begun, by the kernel's clock, so that its number can be given to another one; empty if nobody
    says, `over` if it has ended and its parent has not looked yet."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "over" if fields[0] in "ZX" else fields[19]


def _is_dead(holder: LeaseHolder) -> bool:
    """Whether the owner ran here and does not any more."""
    machine, _, rest = holder.owner.partition(" ")
    number, _, started = rest.partition(" ")[0].partition("@")
    if machine != _machine() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        log.debug("the owner of a lease is a process of another user")
    except OverflowError:
        return False
    return bool(started) and _started(int(number)) not in ("", started)


def _name(owner: str) -> str:
    parts = owner.split(" ", 3)
    return f"process {parts[1].partition('@')[0]} on {parts[3]}" if len(parts) == 4 else "another process"
