"""`docs/process.md` lists what foregrad changes in a process, all of it by a `TemporaryChange`."""

import ast
import importlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from foregrad.process.temporary import TemporaryChange
from foregrad.torch_private import while_compiling
from tests.house.source import ROOT, Module, modules

ROWS = [line for line in (ROOT / "docs" / "process.md").read_text().splitlines() if line.startswith("| `")]
LISTED = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}

#: Where something is stored in modules and classes of others, and it is no temporary change.
ELSEWHERE = {
    "core/generated.py": "texts of generated functions, for tracebacks, under names of their own",
    "process/temporary.py": "what all temporary changes do",
    "torch_private/startup.py": "asked for by `fg.configure`",
}
#: Functions that change a process, and the files that may call them.
CALLS = {
    "register_at_fork": {"process/forks.py"},
    "atexit.register": {"process/folders.py"},
    "gc.callbacks.append": {"process/heap.py"},
    "mallopt": {"process/heap.py"},
    "sys.setprofile": {"record/python/executed_code.py"},
    "torch.set_num_threads": {"process/threads.py"},
    "register_pytree_node": {"torch_private/pytree.py"},
    "setattr": {"process/temporary.py", "record/session.py", "torch_private/startup.py"},
}
#: Classes of foregrad's own that get their methods in a loop.
OWN = ("Size", "Moment")


def test_the_page_lists_every_change():
    assert not {place for place in declared() if not any(fnmatchcase(place, row) for row in LISTED)}


def test_every_change_on_the_page_is_made():
    found = declared()
    assert not {row for row in LISTED if not any(fnmatchcase(place, row) for place in found)}


def test_what_belongs_to_others_is_changed_by_temporary_changes_alone():
    found = {
        f"{module.file}:{line}"
        for module in modules().values()
        if module.file not in ELSEWHERE
        for line in stores(module)
    }
    assert not found


def test_the_process_is_changed_in_few_places():
    found: dict[str, set[str]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            for name in CALLS:
                is_own = name == "setattr" and ast.unparse(node.args[0]) in OWN if called == name else False
                if (called == name or called.endswith(f".{name}")) and not is_own:
                    found.setdefault(name, set()).add(module.file)
    assert found == CALLS


def declared() -> set[str]:
    """The places of every temporary change in the source."""
    files = [importlib.import_module(name) for name in modules()]
    tools = while_compiling.Tools("c++", lambda *_: (0, ""), Path("headers"), lambda _, make: make())
    compiling = while_compiling._Compiling()
    compiling.build_with(tools)
    kept = [one for file in files for one in vars(file).values() if isinstance(one, TemporaryChange)]
    changes = [*kept, *compiling._changes, *subclasses(TemporaryChange)]
    return {place for one in changes for place in getattr(one, "places", ())} | set(replaced())


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def replaced() -> Iterator[str]:
    """What `replaced(owner, name, value)` is called with, by the names that the file has imported."""
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "replaced" and len(node.args) == 3:
                owner, name = node.args[0], ast.literal_eval(node.args[1])
                first, dot, rest = ast.unparse(owner).partition(".")
                yield f"{imported(module)[first]}{dot}{rest}.{name}"


def imported(module: Module) -> dict[str, str]:
    """Names that a file imports from others, each with the whole one."""
    found = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0]: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return {name: whole for name, whole in found.items() if not whole.startswith("foregrad")}


def stores(module: Module) -> Iterator[int]:
    """Lines that store something in what is imported from others, or take it out, outside of temporary changes."""
    others = imported(module)
    kinds = [n for n in ast.walk(module.tree) if isinstance(n, ast.ClassDef) and is_temporary(n)]
    inside = {id(n) for kind in kinds for n in ast.walk(kind)}
    for node in ast.walk(module.tree):
        is_part = isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del))
        if is_part and id(node) not in inside and root(node) in others:
            yield node.lineno


def is_temporary(kind: ast.ClassDef) -> bool:
    return any(ast.unparse(base) in ("TemporaryChange", "Replacement") for base in kind.bases)


def root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
