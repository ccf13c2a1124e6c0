"""Pairs: a package in two processes, or twice in one, beside eager; and the smallest package that is still wrong."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Folders below this one count as those of installed distributions.
SITE = Path(tempfile.gettempdir()) / f"stale-site-{os.getuid()}"
if "foregrad" not in sys.modules:
    site.USER_SITE = str(SITE)

import torch  # noqa: E402  after the folder is known

import foregrad as fg  # noqa: E402  after the folder is known
from foregrad.cache.serialize.cached_calls import FOUND  # noqa: E402  after the folder is known
from foregrad.core.errors import ForegradError  # noqa: E402  after the folder is known
from tests.keep.stale.libraries import install  # noqa: E402  after the folder is known
from tests.keep.stale.packages import (  # noqa: E402  the same
    Package,
    Written,
    can_change,
    edits_of,
    is_whole,
    versions,
    write,
)

WRONG = ("stale", "wrong", "error")
BAD = (*WRONG, "invalid")


@dataclass(frozen=True)
class Pair:
    """What became of a package: a word for it, and how both calls came about."""

    package: Package
    verdict: str
    said: tuple[dict[str, Any], ...]


def check(package: Package, *, fresh: bool = False) -> Pair:
    """Run a package before and after its edit; in copies of this process, or in fresh ones."""
    run_in = in_a_process if fresh else in_a_copy
    folder = Path(tempfile.mkdtemp(prefix="stale-"))
    SITE.mkdir(parents=True, exist_ok=True)
    installed = Path(tempfile.mkdtemp(dir=SITE))
    try:
        written = write(package)
        before, after = written.at(None), written.at(package.edit)
        _lay_out(folder, installed, before, {})
        said = run_in(folder, installed, before, package.change is not None)
        if package.change is None and said[0]["how"] not in ("error", "invalid", "refused"):
            _lay_out(folder, installed, after, versions(before, after, package.is_rebuilt))
            said += run_in(folder, installed, after, False)
        return Pair(package, _verdict(package, said), tuple(said))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(installed, ignore_errors=True)


def _lay_out(folder: Path, installed: Path, written: Written, changed: Any) -> None:
    shutil.rmtree(folder / "source", ignore_errors=True)
    for name, text in written.files.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.rmtree(installed, ignore_errors=True)
    install(installed, written.installed, changed)


def _verdict(package: Package, said: list[dict[str, Any]]) -> str:
    """`stale` is a wrong result of a program that was found. A refusal and a capture are right; `invalid` is a package
    that eager cannot run."""
    first, second = said[0], said[-1]
    for word in ("invalid", "error"):
        if word in (first["how"], second["how"]):
            return word
    if not first["same"]:
        return "wrong"
    if not second["same"]:
        return "stale" if second["how"] == FOUND else "wrong"
    if "refused" in (first["how"], second["how"]):
        return "refused"
    if package.change is not None:
        kind = "changed"
    else:
        kind = "unchanged" if package.edit is None else "edited"
    effect = "" if first["value"] != second["value"] or kind == "unchanged" else " without effect"
    return f"{kind}{effect}, {'found' if second['how'] == FOUND else 'traced'}"


def run(folder: Path, installed: Path, written: Written, changes: bool) -> list[dict[str, Any]]:
    """What a process finds: how the call came about, and whether it is eager's; again after a change."""
    outside = written.outside
    os.environ.update({name[4:]: text for name, text in outside.items() if name.startswith("env:")})
    sys.argv = ["main.py", *(text for name, text in outside.items() if name.startswith("argv:"))]
    sys.path[:0] = [str(folder / "source"), str(installed)]
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    main = _imported("main")
    if isinstance(main, dict):
        return [main]
    said = [_call(main.f, folder)]
    if changes and said[0]["how"] not in ("error", "invalid", "refused"):
        try:
            importlib.import_module("changes").change()
        except Exception:
            return [*said, _failed("invalid")]
        said.append(_call(main.f, folder))
    return said


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception:
        return _failed("invalid")


def _call(function: Callable[..., Any], folder: Path) -> dict[str, Any]:
    x = torch.ones(3)
    try:
        expected = function(x)
    except Exception:
        return _failed("invalid")
    try:
        compiled = fg.compile(function, backend="eager", cache=str(folder / "cache"), progress=False)
        found = compiled(x)
    except ForegradError as error:
        return {"how": "refused", "same": True, "value": [], "why": [str(error)[:300]]}
    except Exception:
        return _failed("error")
    if not compiled.captures:  # a mode of the user's has run the function itself
        return {"how": "eager", "same": torch.equal(found, expected), "value": expected.tolist(), "why": []}
    origin = compiled.captures[0].origin
    why = [str(why)[:200] for why in origin.reasons]
    return {"how": origin.how, "same": torch.equal(found, expected), "value": expected.tolist(), "why": why}


def _failed(word: str) -> dict[str, Any]:
    return {"how": word, "same": True, "value": [], "why": [traceback.format_exc()[-1500:]]}


def in_a_copy(*given: Any) -> list[dict[str, Any]]:
    """Run in a copy of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = run(*given)
        except BaseException:
            said = [_failed("error")]
        with os.fdopen(writer, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = json.loads(pipe.read() or "null")
    os.waitpid(child, 0)
    return said or [{"how": "error", "same": True, "value": [], "why": ["the process died"]}]


def in_a_process(folder: Path, installed: Path, written: Written, changes: bool) -> list[dict[str, Any]]:
    """Run in a process of its own."""
    given = json.dumps([str(folder), str(installed), written.outside, changes])
    command = [sys.executable, "-m", "tests.keep.stale.pairs", given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"how": "error", "same": True, "value": [], "why": [done.stderr[-1500:]]}]
    return json.loads(done.stdout.splitlines()[-1])


def prepare() -> None:
    """Do once what every copy would do."""
    fg.compile(lambda x: x * 2, backend="eager", cache=False)(torch.ones(2))


def smallest(pair: Pair, *, fresh: bool = False) -> Pair:
    """The smallest package that has the same verdict: chains, then levels are left out; then modules are made one."""
    found = True
    while found:
        found = False
        for smaller in _smaller(pair.package):
            try:
                tried = check(smaller, fresh=fresh)
            except (ValueError, KeyError, IndexError):
                continue
            if tried.verdict == pair.verdict:
                pair, found = tried, True
                break
    return pair


def _smaller(package: Package) -> Iterator[Package]:
    chains = package.chains
    for place in range(len(chains)):
        if len(chains) > 1:
            yield from _with(package, (*chains[:place], *chains[place + 1 :]))
    for place, chain in enumerate(chains):
        for depth in range(1, len(chain)):
            shorter = (*chain[:depth], *chain[depth + 1 :])
            if is_whole(shorter):
                yield from _with(package, (*chains[:place], shorter, *chains[place + 1 :]))
    for place, chain in enumerate(chains):
        plain = tuple(replace(level, home="main", style="module", is_made=False) for level in chain)
        if plain != chain:
            yield from _with(package, (*chains[:place], plain, *chains[place + 1 :]))


def _with(package: Package, chains: Any) -> Iterator[Package]:
    """A smaller package with each of its edits, or with each of its changes."""
    smaller = Package(chains, is_rebuilt=package.is_rebuilt)
    if package.change is not None:
        for place, chain in enumerate(chains):
            for depth in range(len(chain)):
                if can_change(chain, depth):
                    yield replace(smaller, change=(place, depth))
    elif package.edit is not None:
        for edit in edits_of(smaller):
            yield replace(smaller, edit=edit)
    else:
        yield smaller


if __name__ == "__main__":
    where, libraries, outside, changes = json.loads(sys.argv[1])
    print(json.dumps(run(Path(where), Path(libraries), Written({}, {}, outside), changes)))
