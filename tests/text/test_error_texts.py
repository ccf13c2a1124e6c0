"""Every message with which foregrad raises, in one file, so that they can be read together: `errors.golden`.

Parts that a call fills in stand in braces, as in the source.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import foregrad as fg
from tests.golden import assert_golden
from tests.house.source import Module, modules

#: Errors whose text users read: foregrad's own, and those that say what an argument must be.
RAISED = {
    *(name for name in fg.__all__ if isinstance(getattr(fg, name), type) and issubclass(getattr(fg, name), Exception)),
    "TypeError",
    "ValueError",
}


def test_all_error_texts():
    sections = [
        f"== {module.file}\n" + "\n".join(found) for module in modules().values() if (found := list(texts(module)))
    ]
    assert_golden("\n".join(sections) + "\n", Path(__file__).with_name("errors.golden"))


def texts(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and name_of(node.func) in RAISED and node.args:
            text = message(node.args[0])
            if text.strip("{}") != text or " " in text:
                yield f"{name_of(node.func)}: {text}"


def message(node: ast.expr) -> str:
    """A message with its lines indented, and braces around what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value).replace("\n", "\n    ")
    if isinstance(node, ast.JoinedStr):
        return "".join(message(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return message(node.left) + message(node.right)
    return "{" + ast.unparse(node) + "}"


def name_of(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else ""
