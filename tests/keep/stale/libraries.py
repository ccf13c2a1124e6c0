"""Distributions as pip installs them: a library, its dependency, and two that share a namespace."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

_FAKELIB = """
import contextvars, functools, os
import fakedep
from fakelib import inner
OPTIONS = {"a": {}, "scale": {"by": 1}}
HOOKS, FLAG, REGISTRY = [], 1, {}
CONTEXT = contextvars.ContextVar("k", default=1)
class State:
    k = 1
    def get(self):
        return self.k
STATE = State()
class Scaler:
    def __init__(self, k):
        self.k = k
    def __call__(self, x):
        return x * self.k
DEFAULT = Scaler(1)
def scale():
    return 1
def run(x):
    return x * scale()
def scaled(x):
    return x * OPTIONS["scale"]["by"]
def flagged(x):
    return x * FLAG
def stated(x):
    return x * STATE.k
def got(x):
    return x * STATE.get()
def powered(x, k=1):
    return x + k
def shifted(x, *, k=1):
    return x + k
def deep(x):
    return x * fakedep.K
def defaulted(x):
    return DEFAULT(x)
@functools.lru_cache
def remembered():
    return FLAG
def configure(k):
    def configured(x):
        return x * k
    return configured
configured = configure(1)
def in_context(x):
    return x * CONTEXT.get()
def from_environment(x):
    return x * int(os.environ.get("FAKELIB_K", "1"))
def register(name):
    def add(function):
        REGISTRY[name] = function
        return function
    return add
def find(name):
    return REGISTRY[name]
def call(function, *args):
    return function(*args)
"""
_REACH = """
import collections, functools, importlib.metadata, inspect, os, sys, threading, types, warnings, weakref
import numpy as np
class Node:
    __slots__ = ("k", "next")
    def __init__(self, k=1, next=None):
        self.k, self.next = k, next
    def last(self):
        return self if self.next is None else self.next.last()
CHAIN = Node(0, Node(0, Node(0, Node(0, Node(0, Node(0, Node(0, Node(0, Node(1)))))))))
DEEP = {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"k": 1}}}}}}}}}
class Base:
    found = []
    def __init_subclass__(cls):
        Base.found.append(cls)
    def scale(self):
        return 1
    def run(self, x):
        return x * self.scale()
class Meta(type):
    table = {}
    def __getattr__(cls, name):
        return Meta.table[name]
class Configured(metaclass=Meta): ...
class Flagged:
    def __init__(self):
        self._kept = {"k": 1}
    @property
    def k(self):
        return self._kept["k"]
    def __getattr__(self, name):
        return self._kept[name]
FLAGGED, LOCAL, WEAK = Flagged(), threading.local(), weakref.WeakKeyDictionary()
VALUES = weakref.WeakValueDictionary()
QUEUE, ORDERED, TABLE = collections.deque([1]), collections.OrderedDict(k=1), np.ones(3, int)
MASKED = np.ma.masked_array([1, 1])
SPACE, PARTIAL = types.SimpleNamespace(k=1), functools.partial(lambda k: k, k=1)
LOCAL.k = 1
class Keeper:
    def __init__(self):
        self.inner = Node(Node(1))
KEEPER = Keeper()
def wrap(function):
    calls = {"by": 1}
    @functools.wraps(function)
    def inner(x):
        return function(x) * calls["by"]
    inner.calls = lambda: calls
    return inner
@wrap
def wrapped(x):
    return x * 1
@functools.singledispatch
def dispatched(k):
    return 1
def chained(x):
    return x * CHAIN.last().k
def deep(x):
    found = DEEP
    while "a" in found:
        found = found["a"]
    return x * found["k"]
def sized(x):
    return x * (1 + len(Base.found))
def configured(x):
    return x * Configured.k
def flagged(x):
    return x * FLAGGED.k * FLAGGED.other
def weakly(x):
    return x * sum(WEAK.values()) * sum(one.k for one in VALUES.values())
def queued(x):
    return x * QUEUE[0] * ORDERED["k"] * SPACE.k * PARTIAL()
def arrayed(x):
    return x * int(TABLE[1]) * int(MASKED.sum())
def local(x):
    return x * LOCAL.k
def kept(x):
    return x * KEEPER.inner.k.k
def from_sys(x):
    return x * getattr(sys, "fakelib_k", 1) * getattr(threading, "fakelib_k", 1) * getattr(warnings, "fakelib_k", 1)
def counted(x):
    return x * (1 + sum("fakelib" in str(one[1]) for one in warnings.filters))
def inspected(function, x):
    return x * len(inspect.signature(function).parameters)
def lazily(x):
    from fakelib import late
    return x * late.K
def told(name, x):
    return x * getattr(sys.modules["fakelib.inner"], name)
def from_file(x):
    with open(os.path.join(os.path.dirname(__file__), "settings.txt")) as file:
        return x * int(file.read())
def plugged(x):
    return x * (1 + len(importlib.metadata.entry_points(group="fakelib.plugins")))
def from_frame(x):
    return x * sys._getframe(1).f_globals.get("FAKELIB_K", 1)
class Lazy:
    @functools.cached_property
    def k(self):
        return SPACE.k
LAZY = Lazy()
def lazy(x):
    return x * LAZY.k
"""

#: The distribution of each module, and what it holds by itself.
BASE = {
    "fakelib/__init__.py": _FAKELIB,
    "fakelib/inner.py": "K = 1\n",
    "fakelib/late.py": "K = 1\n",
    "fakelib/reach.py": _REACH,
    "fakelib/settings.txt": "1",
    "fakedep/__init__.py": "K = 1\n",
    "fakens/one/__init__.py": "",
    "fakens/two/__init__.py": "K = 1\n",
}
_DISTRIBUTIONS = {
    "fakelib": "fakelib/",
    "fakedep": "fakedep/",
    "fakens_one": "fakens/one/",
    "fakens_two": "fakens/two/",
}


def install(site: Path, files: Mapping[str, str], versions: Mapping[str, str]) -> None:
    """Write files where Python imports them from, with the lists of files that pip leaves there."""
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, folder in _DISTRIBUTIONS.items():
        version = versions.get(name, "1.0")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        own = {file: text for file, text in files.items() if distribution_of(file) == name}
        (info / "RECORD").write_text(
            "".join(f"{file},sha256={_digest(text)},{len(text)}\n" for file, text in own.items())
        )
        (info / "top_level.txt").write_text(folder.partition("/")[0] + "\n")


def distribution_of(file: str) -> str:
    """The distribution that a file belongs to; fakelib has those that belong to no package."""
    return next((name for name, folder in _DISTRIBUTIONS.items() if file.startswith(folder)), "fakelib")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
