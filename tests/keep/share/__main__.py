"""python -m tests.keep.share: how much real code starts without tracing in a second process; what does not says why."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.keep.share.starts import DOUBTS, STARTS, start_twice


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.keep.share", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = [name for name in STARTS if options.only in name]
    wrong = 0
    found = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for second in pool.map(start_twice, names):
            found += second.found
            wrong += not second.is_right
            print(f"{'found ' if second.found else 'traced'} {second.name}", flush=True)
            if not second.is_right:
                print(f"  its loss differs\n{second.explained}" if not second.is_same else second.explained, flush=True)
    print(f"{found} of {len(names)} start without tracing; {len(DOUBTS)} are known to trace")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
