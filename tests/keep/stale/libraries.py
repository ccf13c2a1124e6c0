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

#: The distribution of each module, and what it holds by itself.
BASE = {
    "fakelib/__init__.py": _FAKELIB,
    "fakelib/inner.py": "K = 1\n",
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
