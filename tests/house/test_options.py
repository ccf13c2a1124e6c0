"""Options and environment variables, frozen: a change here is a change of the contract and of the changelog."""

import ast
import inspect
from dataclasses import fields

import foregrad as fg
from foregrad.process import environment
from foregrad.runtime.options import Options
from tests.house.source import ROOT, modules

PAGE = (ROOT / "docs" / "options.md").read_text()
SETTINGS = ["keep_freed_memory", "lazy_dynamo"]
COMMON = ["backend", "passes", "rng", "regions", "dynamic", "questions", "python", "refused", "cache", "progress"]

#: Where the whole environment is handed on, changed for a while, or is an object that the user's code has read.
ELSEWHERE = {
    "process/environment.py",
    "cache/key/settings.py",  # variables of libraries, which are in the key
    "torch_private/while_compiling.py",  # Inductor's folder, while foregrad compiles
}


def test_compile_and_step_have_these_options():
    assert options_of(fg.compile) == COMMON
    assert sorted(options_of(fg.step)) == sorted(COMMON)
    named = ["backend", "passes", "shows_progress", "cache", "questions", "refused", "python", "dynamic"]
    assert [field.name for field in fields(Options)] == named


def test_configure_has_these_options():
    assert options_of(fg.configure) == SETTINGS


def test_the_page_has_every_option_and_variable():
    rows = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `")}
    assert rows == {*COMMON, *SETTINGS} | {variable.name for variable in environment.OWN}
    assert all(f"| `{variable.name}` | {variable.says} |" in PAGE for variable in environment.OWN)
    assert all(f"`{variable.name}`" in PAGE for variable in environment.OF_OTHERS)


def test_the_environment_is_read_in_one_place():
    found = {
        f"{module.file}:{node.lineno}"
        for module in modules().values()
        if module.file not in ELSEWHERE
        for node in ast.walk(module.tree)
        if reads(node)
    }
    assert not found


def options_of(function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


def reads(node: ast.AST) -> bool:
    """`os.environ.get(...)`, `os.environ[...]` and `os.getenv(...)`."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in ("os.environ.get", "os.getenv")
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ"
