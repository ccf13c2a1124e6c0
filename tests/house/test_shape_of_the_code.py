"""Habits of the source: files named for their idea, a function on a screen, no error swallowed."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.source import Module, modules

LINES_PER_FUNCTION = 60

EVERY_MODULE = pytest.mark.parametrize("module", modules().values(), ids=lambda module: module.file)


@EVERY_MODULE
def test_a_file_is_named_for_its_idea(module: Module):
    assert module.path.stem not in ("utils", "util", "helpers", "misc", "common")


@EVERY_MODULE
def test_a_function_fits_on_a_screen(module: Module):
    sizes = {f"{module.file}:{node.lineno} {node.name}": length(node) for node in functions(module)}
    assert {name: size for name, size in sizes.items() if size > LINES_PER_FUNCTION} == {}


@EVERY_MODULE
def test_no_error_is_swallowed(module: Module):
    """No bare `except:`, and no handler that does nothing."""
    found = [
        f"{module.file}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and (node.type is None or all(map(does_nothing, node.body)))
    ]
    assert not found, "\n".join(found)


@EVERY_MODULE
def test_files_get_their_names_in_one_place(module: Module):
    """Whoever writes beside a path and renames has to think of fsync, modes, failures and kills."""
    names = ("os.link", "os.rename", "os.renames", "os.replace", "shutil.move")
    found = [
        f"{module.file}:{node.lineno}: {name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute | ast.alias | ast.Name)
        for name in (ast.unparse(node),)
        if name in names or name.rpartition(".")[2] in ("mkstemp", "NamedTemporaryFile")
    ]
    assert not found or module.file == "process/atomic_write.py", "\n".join(found)


@EVERY_MODULE
def test_an_exception_to_lint_carries_its_reason(module: Module):
    """`# noqa: E501  # why` says why; `# type: ignore[arg-type]` names at least the rule."""
    fine = re.compile(r"# noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*\W+\w.*|# type: ignore\[[\w, -]+\].*")
    found = [
        f"{module.file}:{number}: {line.strip()}"
        for number, line in enumerate(module.path.read_text().splitlines(), start=1)
        if (mark := re.search(r"# (noqa|type: ignore).*", line)) and not fine.fullmatch(mark[0])
    ]
    assert not found, "\n".join(found)


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def does_nothing(node: ast.stmt) -> bool:
    is_ellipsis = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or is_ellipsis
