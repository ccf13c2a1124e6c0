"""`docs/torch-private.md` names every private part of torch that foregrad uses."""

import ast
import re

import torch

from tests.house.private_names import GONE, differences, look_up, signature_of
from tests.house.source import ROOT, Module, modules
from tests.house.test_imports import PRIVATE, is_private, names_defined, torch_names

PAGE = (ROOT / "docs" / "torch-private.md").read_text()
NAMED = set(re.findall(r"`([^`]+)`", PAGE))

#: Private names of Python and of sympy.
OF_OTHERS = {"_abc_impl", "_print"}


def test_every_private_name_is_on_the_page():
    found = [f"{module.file}: {name}" for module in private_modules() for name in private_names(module)]
    assert not [one for one in found if not is_named(one.rpartition(" ")[2])]


def test_every_private_attribute_is_on_the_page():
    own = {name for module in modules().values() for name in names_defined(module)}
    found = {
        f"{module.file}: {node.attr}"
        for module in private_modules()
        if module.path.stem != "global_state"  # attributes of registered ops, which are read to be compared
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own | OF_OTHERS
    }
    last = {part for name in NAMED for part in re.split(r"[. ]", name)} | {
        part for module in private_modules() for name in private_names(module) for part in name.split(".")
    }
    assert not [one for one in found if one.rpartition(" ")[2] not in last]


def test_names_that_another_torch_does_not_have_or_has_otherwise_are_told():
    here = {"torch._a": "(x)", "torch._b": "(x)", "torch._c": "module", "_d": GONE}
    there = {"torch._a": GONE, "torch._b": "(x, y)", "torch._c": "module", "_d": GONE}
    assert differences(here, there) == (["torch._a"], ["torch._b"])
    assert signature_of(lambda x, *, y=2: x) == "(x, *, y=2)"
    assert look_up("torch.utils._pytree.tree_map") is torch.utils._pytree.tree_map
    assert look_up("torch._nothing.at_all") is None


def private_modules() -> list[Module]:
    return [module for module in modules().values() if module.name.startswith(PRIVATE)]


def private_names(module: Module) -> set[str]:
    return {name for _, name in torch_names(module) if is_private(name) and not is_whole_package(name)}


def is_whole_package(name: str) -> bool:
    return name in ("torch._C", "torch._ops", "torch._library", "torch._dispatch", "torch._subclasses")


def is_named(name: str) -> bool:
    """Whether the page has a name, or what it is a part of, or parts of it."""
    return any(name == one or name.startswith(f"{one}.") or one.startswith(f"{name}.") for one in NAMED)
