"""python -m tests.keep.fuzz --count 50000: random damage to entries; errors are ours, and what is accepted is right.

Half of the inputs have their digest and lengths put right again after the damage, so that they reach what lies behind.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
from typing import Any

from foregrad.cache.format.container import pack, read_header, unpack
from foregrad.cache.format.keys import Trust
from tests.keep import plain_reader
from tests.keep.entries import ABOUT, BLOBS, KEY, OURS, contents, forge

TRUST = Trust((KEY,))
BASES = [
    pack(ABOUT, BLOBS),
    pack(ABOUT, BLOBS, signer=KEY),
    pack({}, {}),
    pack({"a": [[], {}, [{"b": "\x00\U0001f600"}]]}, {"a": b"", "b": b"x" * 64, "c/d": b"y"}, signer=KEY),
]
SIGNED = [plain_reader.read(base) for base in BASES if plain_reader.signature(base)]

NASTY: list[Any] = [
    *(-1, 0, 1, 64, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.0, 1.0, 1e308, True, False, None),
    *(float("nan"), float("inf"), "", "a", "..", "../a", "/a", "a\\b", "a\0", "\ud800", "\U0001f600", "x" * 300),
    *([], {}, [[]], {"": ""}, [None] * 50, "0" * 64, "f" * 64),
]


def check(data: bytes, trust: Trust | None) -> str:
    """What became of an input, in a word; an AssertionError or a foreign error if that is wrong."""
    try:
        read_header(data)
        found = contents(unpack(data, trust=trust))
    except OURS as error:
        return type(error).__name__
    assert found == plain_reader.read(data)
    assert trust is None or found in SIGNED, "a changed entry was trusted"
    return "accepted"


def damaged(seed: int) -> bytes:
    """An entry with one to four random changes."""
    rng = random.Random(seed)
    data = rng.choice(BASES)
    kind = rng.choice(["bytes", "text", "tree", "tree"])
    if kind == "bytes":
        for _ in range(rng.randint(1, 4)):
            data = change_bytes(rng, data)
        return data
    signature, header = int.from_bytes(data[12:16], "little"), int.from_bytes(data[16:24], "little")
    text, body = data[64 : 64 + header], data[-(-(64 + header + signature) // 64) * 64 :]
    if kind == "text":
        for _ in range(rng.randint(1, 4)):
            text = change_bytes(rng, text)
    else:
        text = change_tree(rng, text)
    return forge(text, body)


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """One change to bytes that know nothing of their meaning."""
    at = rng.randint(0, len(data))
    length = rng.choice([1, 1, 1, 2, 8, 64])
    some = rng.choice(
        [b"\0", b"\xff", b'"', b"\\", b"[", b"{", b"]", b"}", b",", b":", b"-", b"0", b"e", b"\xed\xa0\x80"]
    )
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes(b ^ (1 << rng.randrange(8)) for b in data[at : at + 1]) + data[at + 1 :]
        case 1:
            return data[:at] + rng.randbytes(length) + data[at + length :]
        case 2:
            return data[:at] + data[at + length :]
        case 3:
            return data[:at] + some * length + data[at:]
        case 4:
            other = rng.randint(0, len(data))
            return data[:at] + data[other : other + length] + data[at:]
        case _:
            return data[:at] + rng.choice([b"", some, data])


def change_tree(rng: random.Random, text: bytes) -> bytes:
    """One to three changes to the header as data, written with or without escapes, and sometimes with a key twice."""
    tree = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        change_node(rng, tree)
    raw = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        raw = raw.replace(b"{", b'{"name": 1, "format": 1, ', rng.randint(1, 2))
    if rng.random() < 0.05:
        raw = raw.replace(b"[", b"[" * rng.choice([2, 70, 5000]), 1)
    return raw


def change_node(rng: random.Random, tree: Any) -> None:
    nodes = [tree]
    for node in nodes:
        children = node.values() if isinstance(node, dict) else node
        nodes += [child for child in children if isinstance(child, dict | list) and child]
    node = rng.choice(nodes)
    key = rng.choice(list(node) if isinstance(node, dict) else range(len(node))) if node else None
    match rng.randrange(4):
        case 0 if key is not None:
            del node[key]
        case 1 if isinstance(node, list) and node:
            node.append(node[key])
        case 2 if isinstance(node, dict):
            node[rng.choice(["", "name", "offset", "format", "blobs", "x"])] = rng.choice(NASTY)
        case _ if key is not None:
            node[key] = rng.choice(NASTY)


def run(seeds: range, trust: Trust | None) -> collections.Counter[str]:
    """How many inputs came to what."""
    verdicts: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        try:
            verdicts[check(damaged(seed), trust)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.keep.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="number of inputs")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    options = parser.parse_args()
    for who, trust in {"by anyone": None, "by one who trusts a key": TRUST}.items():
        verdicts = run(range(options.start, options.start + options.count), trust)
        counts = ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
        print(f"{verdicts.total()} damaged entries read {who}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
