"""python -m tests.keep.kills: writers and readers of one entry, and the writers are killed in the middle.

Every entry says what it should be, so that a reader need not believe the store. There is a good one from the beginning:
no reader may ever find anything else than a good one, and in the end nothing else than good ones is there. With
--damage somebody also changes bytes of the entry: then readers may find nothing, and still nothing wrong.
With --inductor it is processes that compile which are killed: see `build_kills.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import foregrad as fg
from foregrad.cache.store.layer import Miss

KEY = "3f0c" * 16


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.keep.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--damage", action="store_true", help="also change bytes of the entry")
    parser.add_argument("--inductor", action="store_true", help="kill processes that compile")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.inductor:
        from tests.keep import build_kills

        return build_kills.run(options)
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), options)


def run(folder: Path, options: argparse.Namespace) -> int:
    dice = random.Random(options.seed)
    cache = fg.Cache(folder / "cache")
    cache.put(KEY, entry(dice))
    readers = [start(read, folder, number, options.damage) for number in range(options.readers)]
    writers = [start(write, folder, number) for number in range(options.writers)]
    try:
        for count in range(options.kills):
            time.sleep(dice.expovariate(200))
            victim = dice.randrange(len(writers))
            end(writers[victim], signal.SIGKILL)
            writers[victim] = start(write, folder, options.writers + count)
            if options.damage and dice.random() < 0.5:
                change_a_byte(cache, dice)
    finally:
        for process in writers:
            end(process, signal.SIGKILL)
        codes = [end(process, signal.SIGTERM) for process in readers]
    cache.put(KEY, entry(dice))
    return report(cache, folder, codes, options)


def report(cache: fg.Cache, folder: Path, codes: list[int], options: argparse.Namespace) -> int:
    seen: Counter[str] = Counter()
    for file in folder.glob("reader-*"):
        seen.update({name: int(count) for name, _, count in (line.partition("=") for line in file.read_text().split())})
    strays = list((folder / "cache").rglob("*.tmp"))
    for path in strays:
        os.utime(path, (0, 0))
    (swept,) = cache.gc()
    print(f"{options.kills} kills; readers found {dict(seen)}; {len(strays)} temporary files left behind and collected")
    allowed = {"good", "damaged", "not_there"} if options.damage else {"good"}
    is_fine = (
        set(seen) <= allowed
        and seen["good"] > 0
        and not any(codes)
        and len(codes) == options.readers
        and cache.verify() == []
        and is_good(cache.get(KEY).data)
        and swept.strays == len(strays)
        and not list((folder / "cache").rglob("*.tmp"))
    )
    print("fine" if is_fine else f"WRONG: exit codes of the readers {codes}, damaged {cache.verify()}")
    return 0 if is_fine else 1


def start(work, folder: Path, number: int, *rest: object) -> int:
    """A process that does some work until it is ended."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        work(folder, number, *rest)
    except SystemExit:
        code = 0
    except BaseException as error:
        print(f"{work.__name__} {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def end(process: int, how: signal.Signals) -> int:
    os.kill(process, how)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def write(folder: Path, number: int) -> None:
    dice = random.Random(number)
    cache = fg.Cache(folder / "cache")
    while True:
        cache.put(KEY, entry(dice))


def read(folder: Path, number: int, is_damaged: bool) -> None:
    cache = fg.Cache(folder / "cache")
    seen: Counter[str] = Counter()
    try:
        while True:
            found = cache.get(KEY)
            kind = found.kind.replace(" ", "_") if isinstance(found, Miss) else "good" if is_good(found.data) else "bad"
            seen[kind] += 1
            if kind != "good" and not is_damaged:
                raise AssertionError(f"found {found!r:.200}")
            time.sleep(0.001)
    finally:
        (folder / f"reader-{number}").write_text("\n".join(f"{name}={count}" for name, count in seen.items()))


def entry(dice: random.Random) -> bytes:
    """Up to some 300 KB that begin with their own digest."""
    body = dice.randbytes(int(10 ** dice.uniform(0, 5.5)))
    return hashlib.sha256(body).digest() + body


def is_good(data: bytes) -> bool:
    return hashlib.sha256(data[32:]).digest() == data[:32]


def change_a_byte(cache: fg.Cache, dice: random.Random) -> None:
    """What a bad disk does: the file keeps its name and its length."""
    (folder,) = cache._folders()
    try:
        with open(folder.file(KEY), "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(dice.randrange(size))
            old = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([old[0] ^ dice.randrange(1, 256)]))
    except FileNotFoundError:
        return


if __name__ == "__main__":
    sys.exit(main())
