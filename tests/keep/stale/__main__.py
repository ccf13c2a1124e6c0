"""python -m tests.keep.stale --count 2000: random packages, edited between two processes or within one; none is stale.

A package computes a tensor from numbers that come from somewhere (`values.py`), are held by something (`containers.py`,
`numbers.py`, `patches.py`, `reached.py`) and are read in some way (`readers.py`), in random order and depth, over modules of the
user's and of installed libraries. `--alone` takes each form by itself, with each of its edits. A program that was found
without tracing and gives something else than eager is stale.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
from functools import partial

from tests.keep.stale.alone import alone
from tests.keep.stale.known import KNOWN, is_known
from tests.keep.stale.packages import Package, random_package
from tests.keep.stale.pairs import BAD, WRONG, Pair, check, prepare, smallest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.keep.stale", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="number of packages")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--alone", action="store_true", help="every form by itself, with each of its edits")
    parser.add_argument("--known", action="store_true", help="those that are not right yet, by themselves")
    parser.add_argument("--only", default="", help="forms whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="in processes that share nothing, not in copies of one")
    parser.add_argument("--smallest", action="store_true", help="make what is found smaller")
    parser.add_argument("--show", default="", help="another verdict to tell of")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    prepare()
    if options.alone or options.known:
        packages = [one for one in alone() if options.only in form_of(one)]
        packages = [one for one in packages if form_of(one) in KNOWN or not options.known]
    else:
        packages = [random_package(seed) for seed in range(options.seed, options.seed + options.count)]
    counts: collections.Counter[str] = collections.Counter()
    right, new = set(KNOWN), 0
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for pair in pool.imap_unordered(partial(check, fresh=options.fresh), packages):
            counts[pair.verdict] += 1
            is_bad = pair.verdict in (BAD if options.alone else WRONG)  # of random ones, eager cannot run some
            if is_bad and (options.alone or options.known):
                right -= {form_of(pair.package)}
            if is_bad and not is_known(pair.package):
                new += 1
            if (is_bad and not is_known(pair.package)) or pair.verdict == options.show:
                tell(smallest(pair, fresh=options.fresh) if options.smallest else pair)
    print(f"{counts.total()} packages:")
    print("\n".join(f"{count:6} {verdict}" for verdict, count in sorted(counts.items())))
    unchanged = counts["unchanged, found"] + counts["unchanged, traced"]
    print(f"of those left unchanged, {counts['unchanged, found']} of {unchanged} start without tracing")
    if options.known and right:
        print("these are right now, and known.py should not name them:", *sorted(right), sep="\n  ")
    return int(bool(new or (options.known and right)))


def form_of(package: Package) -> str:
    return package.chains[0][-1].form


def tell(pair: Pair) -> None:
    print(f"{pair.verdict}:{pair.package}")
    for one in pair.said:
        print("   ", json.dumps({name: text for name, text in one.items() if name != "why"}))
        print("\n".join(f"      {line}" for why in one["why"] for line in why.splitlines()[-6:]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
