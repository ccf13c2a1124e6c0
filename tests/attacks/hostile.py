"""Saved programs to be made hostile, and what notices that code of theirs has run."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import foregrad as fg
from foregrad.cache.format.container import pack, unpack
from foregrad.cache.format.keys import SharedKey, Signer

#: The file that only executed code of an attack would create.
CANARY = Path(tempfile.gettempdir()) / f"foregrad-attack-has-run-{os.getpid()}"

#: Python that creates it.
CREATES = f"open({str(CANARY)!r}, 'w')"


@dataclass(frozen=True)
class Saved:
    """A saved program, taken apart; `call` runs what was loaded from it."""

    about: dict[str, Any]
    blobs: dict[str, bytes]
    call: Callable[[Any], Any]

    @property
    def table(self) -> list[Any]:
        """What its functions are made of, to be changed."""
        found: list[Any] = json.loads(self.blobs["objects.json"])
        return found

    def with_table(self, table: list[Any], **blobs: bytes) -> Saved:
        return replace(self, blobs={**self.blobs, **blobs, "objects.json": json.dumps(table).encode()})

    def with_objects(self, *objects: Any) -> tuple[list[Any], list[int]]:
        """The table with objects before all others, and where these are."""
        table = moved(self.table, len(objects))
        return [*objects, *table], list(range(len(objects)))

    def write(self, path: Path, signer: Signer | None = None) -> Path:
        path.write_bytes(pack(self.about, self.blobs, signer=signer))
        return path


def moved(value: Any, by: int) -> Any:
    """A description in a table that begins later."""
    if isinstance(value, dict):
        inner = {key: moved(one, by) for key, one in value.items()}
        return (
            {**inner, "at": value["at"] + by} if value.get("is") == "object" and type(value.get("at")) is int else inner
        )
    return [moved(one, by) for one in value] if isinstance(value, list) else value


def shifted(saved: Saved, by: int) -> Saved:
    """The same program, whose calls are found in a table that begins later."""
    about = copy.deepcopy(saved.about)
    for capture in about["captures"]:
        capture["call"], capture["bare"] = moved(capture["call"], by), moved(capture["bare"], by)
    return replace(saved, about=about)


@cache
def step() -> Saved:
    """A training step with an optimizer, op by op."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())

    @fg.step(model, optimizer, backend="eager", cache=False)
    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    given = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    for _ in range(2):
        train(*given)
    return _taken_apart(train, lambda loaded: loaded(*given))


@cache
def module() -> Saved:
    """A module and its backward, with a result in a dict."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.linear(x).tanh()}

    compiled = fg.compile(Net(), backend="eager", cache=False)
    given = torch.ones(4, 3)
    compiled(given)["out"].sum().backward()

    def call(loaded: Any) -> Any:
        loaded(given)["out"].sum().backward()
        return loaded.state[0].get_parameter("linear.weight").grad

    return _taken_apart(compiled, call)


def _taken_apart(compiled: Any, call: Callable[[Any], Any]) -> Saved:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.fg"
        compiled.save(path)
        entry = unpack(path)
        return Saved(entry.about, {name: bytes(entry.blob(name)) for name in entry.names}, call)


# -- what has run -------------------------------------------------------------------------------------------

_seen: list[str] | None = None
_FORBIDDEN = (
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "ctypes.dlopen",
    "ctypes.dlsym", "pickle.find_class", "socket.connect", "os.remove", "os.rename", "shutil.rmtree",
)  # fmt: skip


_IMPORTED = {*sys.stdlib_module_names, "foregrad", "numpy", "rich", "safetensors", "sympy", "torch"} - {
    "os",
    "subprocess",
}


#: What calls on malloc by ctypes.
_HEAP = "foregrad.process.heap"


def _who_asked() -> str:
    """The module that has called on ctypes."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "ctypes":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event.startswith("ctypes.") and _who_asked() == _HEAP:
        return  # memory that is given back to the system, at a full garbage collection
    if event.startswith(_FORBIDDEN):
        _seen.append(f"{event} {str(args)[:100]}")
    elif (
        event == "marshal.loads" and sys._getframe(1).f_code.co_name != "_compile_bytecode"
    ):  # of Python's own importer
        _seen.append(event)
    elif event == "import" and args[0].partition(".")[0] not in _IMPORTED:
        _seen.append(f"import {args[0]}")
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        _seen.append(f"open {str(args)[:100]}")
    elif event == "exec":
        name = getattr(args[0], "co_filename", "")
        if not name.startswith(("<foregrad ", sys.prefix, sys.base_prefix, str(Path(fg.__file__).parent), "<frozen")):
            _seen.append(f"exec {name}")


@contextmanager
def watched() -> Iterator[list[str]]:
    """What happens inside that only code of a file would do: processes, libraries, files, code of others."""
    global _seen
    _prepare()
    _seen = seen = []
    try:
        yield seen
    finally:
        _seen = None


@cache
def _prepare() -> None:
    """Import what loading needs, which reads code of our own."""
    with tempfile.TemporaryDirectory() as folder:
        for saved in (step(), module()):
            loaded, _ = _loaded(saved.write(Path(folder) / "fine.fg"))
            assert _called(saved, loaded) == "runs"
            with suppress(fg.ForegradError):
                fg.load(saved.write(Path(folder) / "fine.fg", SharedKey(b"p" * 32)), trust=SharedKey(b"q" * 32))
    sys.addaudithook(_hook)


@dataclass(frozen=True)
class Outcome:
    """What became of a file in a word, and what it took to load it: seconds of the processor, and bytes."""

    became: str
    seconds: float
    memory: int


def attempt(saved: Saved, path: Path, signer: Signer | None = None) -> str:
    """Load a file, print it, run it; what became of it in a word."""
    return outcome(saved, path, signer).became


def outcome(saved: Saved, path: Path, signer: Signer | None = None) -> Outcome:
    """Load a file, print it, run it. It does nothing that only code would do, and until it is called errors are of our
    own kind."""
    try:
        saved.write(path, signer)
    except ValueError as error:
        return Outcome(f"is no file: {str(error).partition(',')[0]}", 0.0, 0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the most memory so far
    memory, begin = _memory("VmRSS"), time.process_time()
    with watched() as seen:
        loaded, became = _loaded(path)
        seconds, most = time.process_time() - begin, _memory("VmHWM") - memory
        if loaded is not None:
            became = _called(saved, loaded)
    assert not seen, seen
    return Outcome(became, seconds, most)


def _loaded(path: Path) -> tuple[Any, str]:
    try:
        loaded = fg.load(path, backend="eager")
        repr(loaded), str(loaded.captures)
    except fg.ForegradError as error:
        return None, type(error).__name__
    return loaded, "loaded"


def _called(saved: Saved, loaded: Any) -> str:
    """What a program computes is its own matter, and how long: it is stopped after a while."""
    before = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(20)
    try:
        saved.call(loaded)
    except Exception:
        return "loaded, and fails"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return "runs"


def _stop(*_: Any) -> None:
    raise TimeoutError


def _memory(name: str) -> int:
    """Memory of this process: now (`VmRSS`), or the most since that was forgotten (`VmHWM`)."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name))
    return int(line.split()[1]) * 1024
