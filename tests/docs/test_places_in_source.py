"""Files, functions and classes of the source that the pages name exist, under these names."""

import ast
import re

import pytest

from tests.house.source import PACKAGE, ROOT, modules

FILES = {module.file: module for module in modules().values()}
ROOMS = {file.partition("/")[0] for file in FILES if "/" in file}
PLACE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`(?:: ((?:`\w+`(?:, )?)+))?")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "FORMAT.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_is_in_the_source_is_there(page):
    wrong = []
    for file, names in PLACE.findall(page.read_text()):
        if file.partition("/")[0] not in ROOMS or (ROOT / file).exists():
            continue
        if file not in FILES:
            wrong.append(f"{file} is not in {PACKAGE.name}")
            continue
        defined = names_in(FILES[file].tree)
        wrong += [f"{file} has no {name}" for name in re.findall(r"`(\w+)`", names) if name not in defined]
    assert wrong == []


def names_in(tree: ast.Module) -> set[str]:
    """Everything that a file defines or binds: functions, classes, methods, variables."""
    named = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return named | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
