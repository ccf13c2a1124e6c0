"""The source tree as data: modules, their imports, and the order that docs/layout.md states."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "foregrad"
LAYOUT = ROOT / "docs" / "layout.md"


@dataclass(frozen=True)
class Module:
    """One file of src: `foregrad.record.trace` is `record/trace.py`."""

    name: str
    path: Path

    @property
    def file(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def tree(self) -> ast.Module:
        return _parse(self.path)


@cache
def modules() -> dict[str, Module]:
    """Every module of the library by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


@dataclass(frozen=True)
class Import:
    """A name that a file imports; `from torch.fx import Graph` is in full `torch.fx.Graph`."""

    line: int
    source: str
    name: str
    bound: str

    @property
    def full(self) -> str:
        return f"{self.source}.{self.name}" if self.name else self.source


def imports(module: Module) -> list[Import]:
    """All imports of a file, wherever they stand: at the top, in functions, under TYPE_CHECKING."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found.append(Import(node.lineno, alias.name, "", bound))
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            found += [Import(node.lineno, source, alias.name, alias.asname or alias.name) for alias in node.names]
    return found


def dependencies(module: Module) -> dict[str, int]:
    """Modules of the library that a file imports, each with the line; not the parents of those."""
    found: dict[str, int] = {}
    for item in imports(module):
        target = item.full if item.full in modules() else item.source
        if target in modules() and target != module.name:
            found.setdefault(target, item.line)
    return found


@cache
def layout() -> tuple[dict[str, int], list[str]]:
    """What docs/layout.md states: the stage of each folder or top-level file, and every file it lists.

    A stage is a numbered line, `2. **`record/`**: ...`, and may name several; its files are the
    bullets below it.
    """
    order: dict[str, int] = {}
    files: list[str] = []
    folder = ""
    for line in LAYOUT.read_text().splitlines():
        if stage := re.match(r"(\d+)\. (\*\*`.+?`\*\*)", line):
            names = re.findall(r"`([^`]+)`", stage[2])
            order |= {name.removesuffix("/"): int(stage[1]) for name in names}
            folders = [name for name in names if name.endswith("/")]
            files += [name for name in names if not name.endswith("/")]
            folder = folders[-1] if folders else ""
        elif bullet := re.match(r"\s+- `([^`]+\.py)`", line):
            files.append(folder + bullet[1])
    return order, files


def place(module: Module) -> int | None:
    """Where docs/layout.md puts a module in the flow, None if nowhere."""
    order, _ = layout()
    top = module.file.split("/")[0]
    return order.get(top)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    keep = len(parts) - node.level + module.is_package
    return ".".join([*parts[:keep], *filter(None, [node.module])])


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))
