"""Who may import what: foregrad's own stages in flow order, torch's private parts in one place."""

import ast
from collections.abc import Iterator

from tests.house.source import Module, dependencies, imports, layout, modules, place

PRIVATE = "foregrad.torch_private"
#: Private names of torch that foregrad has for something of its own, too, or might.
OF_TORCH = {"_base", "_cdata", "_schema", "_version"}
#: Private names of Python's own that code needs.
OF_PYTHON = {
    "_SimpleCData",
    "_at_fork_reinit",
    "_current_frames",
    "_exit",
    "_getframe",
    "_is_owned",
    "_lru_cache_wrapper",
}
FORBIDDEN = ("torch._functorch", "torch._dynamo", "functorch")


def test_nothing_imports_what_foregrad_replaces():
    """Imports, attributes of torch, and names given to an import function."""
    found = [
        f"{module.file}:{line}: {name}"
        for module in modules().values()
        for line, name in [*torch_names(module), *names_imported_by_string(module)]
        if any(name == root or name.startswith(root + ".") for root in FORBIDDEN)
    ]
    assert not found, "\n".join(found)


def test_private_torch_is_used_in_one_place():
    found = [
        f"{module.file}:{line}: {name}"
        for module in modules().values()
        if not module.name.startswith(PRIVATE)
        for line, name in torch_names(module)
        if is_private(name)
    ]
    assert not found, "\n".join(found)


def test_private_attributes_of_others_are_used_in_one_place():
    """`tensor._base` and `op._schema` are private names of torch too; names that foregrad defines are its own."""
    own = {name for module in modules().values() for name in names_defined(module)} | {"_foregrad"}
    found = [
        f"{module.file}:{node.lineno}: {node.attr}"
        for module in modules().values()
        if not module.name.startswith(PRIVATE)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own - OF_TORCH | OF_PYTHON
        if not (dotted(node) or "").startswith(("aten.", "torch.ops."))
    ]
    assert not found, "\n".join(found)


def test_no_import_cycles():
    """Imports inside functions count."""
    graph = {name: dependencies(module) for name, module in modules().items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_a_stage_imports_no_later_stage():
    """The order is the one that docs/layout.md states."""
    found = []
    for module in modules().values():
        for target, line in dependencies(module).items():
            here, there = place(module), place(modules()[target])
            if here is not None and there is not None and there > here:
                found.append(f"{module.file}:{line} (stage {here}) imports {target} (stage {there})")
    assert not found, "\n".join(found)


def test_the_layout_page_lists_the_files_that_exist():
    _, files = layout()
    existing = {module.file for module in modules().values() if not is_empty_package(module)}
    assert sorted(files) == sorted(set(files)), "a file is listed twice"
    assert set(files) - existing == set(), "listed, but not in src/foregrad"
    assert existing - set(files) == set(), "in src/foregrad, but not listed"


def torch_names(module: Module) -> Iterator[tuple[int, str]]:
    """Full names below torch that a file imports or reaches by attributes: `torch.utils._pytree.tree_map`."""
    bound = {"torch": "torch"}
    for item in imports(module):
        if item.source.partition(".")[0] in ("torch", "functorch"):
            yield item.line, item.full
            # `import torch.fx` binds torch; with `as`, or with `from`, the bound name is what was asked for
            bound[item.bound] = item.full if item.name or item.bound != "torch" else "torch"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and (chain := dotted(node)):
            root, _, rest = chain.partition(".")
            if root in bound:
                yield node.lineno, f"{bound[root]}.{rest}"


def names_defined(module: Module) -> Iterator[str]:
    """Functions, classes, variables of classes and attributes that a file sets."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def names_imported_by_string(module: Module) -> Iterator[tuple[int, str]]:
    """`import_module("torch._dynamo")` and `__import__`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (dotted(node.func) or "").endswith(("import_module", "__import__")):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def is_private(name: str) -> bool:
    """Whether a torch name has a private part; names of ATen ops are public: `torch.ops.aten._softmax`."""
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"]:
        return False
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


def is_empty_package(module: Module) -> bool:
    """An `__init__.py` that holds a docstring at most."""
    return module.is_package and all(isinstance(node, ast.Expr) for node in module.tree.body)


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return None
