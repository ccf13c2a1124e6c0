"""python -m tests.attacks --count 100000: random hostile files; no code of theirs runs, errors are of our own kind.

Each is loaded, printed and called, and may take at most 1 s of the processor and 200 MB to load. They are taken in
processes of their own, so that one that ends its process is found.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

_CHUNK = 1000
_MOST_ADDRESSES = 16 << 30  # a program may allocate what it likes, and this machine has no more
SECONDS, MEMORY = 1.0, 200 * 10**6


def work(seeds: range) -> None:
    """Print a line before and after each file."""
    import torch

    from tests.attacks.hostile import CANARY, outcome
    from tests.attacks.mutate import mutated

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FOREGRAD_CONFIG_DIR"] = f"{folder}/keys"
        for seed in seeds:
            print(seed, flush=True)
            try:
                found: dict[str, Any] = asdict(outcome(mutated(seed), Path(folder) / "file.fg"))
            except Exception as error:
                found = {"wrong": f"{error!r:.300}"}
            if CANARY.exists():
                found = {"wrong": "its code has run"}
                CANARY.unlink()
            print(json.dumps(found), flush=True)


def taken(seeds: range) -> list[tuple[int, dict[str, Any]]]:
    """What became of each file, in a process of its own; the next one goes on where that has ended."""
    found, left = [], seeds
    while left:
        command = [sys.executable, "-m", "tests.attacks", "--work", str(left.start), str(left.stop)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = iter(ended.stdout.splitlines())
        for line in lines:
            died = {"wrong": f"the process ends with {ended.returncode}: {ended.stderr[-300:]}"}
            found.append((int(line), json.loads(next(lines, json.dumps(died)))))
        left = range(found[-1][0] + 1, left.stop) if found else range(0)
    return found


def results(seeds: range, jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    chunks = [seeds[i : i + _CHUNK] for i in range(0, len(seeds), _CHUNK)]
    with ThreadPoolExecutor(jobs) as pool:
        for found in track(pool.map(taken, chunks), total=len(chunks), console=Console(stderr=True)):
            yield from found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of files")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(range(*options.work))
        return 0
    became: collections.Counter[str] = collections.Counter()
    wrong, longest, most = [], 0.0, 0
    for seed, found in results(range(options.start, options.start + options.count), options.jobs):
        if "wrong" in found or found["seconds"] > SECONDS or found["memory"] > MEMORY:
            wrong.append(f"{seed}: {found}")
            continue
        became[found["became"]] += 1
        longest, most = max(longest, found["seconds"]), max(most, found["memory"])
    for word, count in became.most_common():
        print(f"{count:8}  {word}")
    print(f"to load one took at most {longest:.2f} s of the processor and {most / 1e6:.0f} MB")
    print(*(wrong or ["nothing is wrong"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
