"""No test fails because a machine is busy: none asserts that something took less than so many seconds."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import ROOT

CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
FILES = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_assertion_bounds_a_time_from_above(file):
    assert [*upper_bounds(ast.parse(file.read_text()))] == []


def test_an_upper_bound_is_found():
    source = (
        "assert time.monotonic() - began < 2\nassert time.monotonic() - began >= 0.3\nassert 3 > clock.perf_counter()"
    )
    assert [*upper_bounds(ast.parse(source))] == [1, 3]


def upper_bounds(tree: ast.Module) -> Iterator[int]:
    """Lines that assert `clock() - began < seconds`, in any order of the operands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for compare in (part for part in ast.walk(node.test) if isinstance(part, ast.Compare)):
                operands = [compare.left, *compare.comparators]
                for left, order, right in zip(operands, compare.ops, operands[1:], strict=False):
                    smaller = left if isinstance(order, ast.Lt | ast.LtE) else right
                    larger = right if smaller is left else left
                    if isinstance(order, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and reads(smaller) and not reads(larger):
                        yield node.lineno


def reads(node: ast.expr) -> bool:
    """Whether a clock is read in an expression, and is not inside of a call such as `abs(then - time())`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute | ast.Name) and name_of(node.func) in CLOCKS and not node.args
    return any(reads(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def name_of(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
