"""python -m tests.house.private_names PYTHON: what another torch has of the private names that foregrad uses.

PYTHON is the interpreter of an environment with that torch. The names are those of `docs/torch-private.md` and, below
the modules that it names as a whole, those that the source uses. Printed are names that are gone, and those whose
signature differs, where Python or the docstring of a C++ function tells one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.house.source import ROOT, modules
from tests.house.test_imports import PRIVATE, is_private, torch_names

GONE = "gone"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def main(python: str) -> int:
    here = names_here()
    there = json.loads(ask(python))
    print(f"torch {there.pop('torch.__version__')} beside torch {here.pop('torch.__version__')}, {len(here)} names:")
    gone, changed = differences(here, there)
    for name in gone:
        print(f"  gone     {name}")
    for name in changed:
        print(f"  changed  {name}\n             {here[name]}\n             {there[name]}")
    unknown = [name for name, one in here.items() if one == GONE]
    if unknown:
        print(f"  not looked at, since no example here has them: {', '.join(unknown)}")
    print(f"{len(gone)} gone, {len(changed)} changed")
    return 1 if gone or changed else 0


def differences(here: dict[str, str], there: dict[str, str]) -> tuple[list[str], list[str]]:
    """The names that the other torch does not have, and those that it has otherwise."""
    known = [name for name, one in here.items() if one != GONE]
    gone = [name for name in known if there[name] == GONE]
    return gone, [name for name in known if there[name] not in (GONE, here[name])]


def ask(python: str) -> str:
    """The same names in another environment, which need not be able to import foregrad."""
    command = [python, "-m", "tests.house.private_names", "--describe"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def names_here() -> dict[str, str]:
    """Each name, and what this environment's torch has by it: a signature, a kind, or nothing."""
    import torch

    examples = list(examples_of(torch))
    found = {name: describe(name, examples) for name in sorted({*names_on_page(), *names_in_source()})}
    return {"torch.__version__": torch.__version__, **found}


def names_on_page() -> set[str]:
    """What stands in the first column of the tables."""
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "torch-private.md").read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def names_in_source() -> set[str]:
    used = {name for one in modules().values() if one.name.startswith(PRIVATE) for _, name in torch_names(one)}
    return {name for name in used if is_private(name)}


def describe(name: str, examples: list[Any]) -> str:
    if name.startswith("torch."):
        found = look_up(name)
        return GONE if found is None else signature_of(found)
    has = [one for one in examples if any(each == name or each.startswith(f"{name}self") for each in dir(one))]
    return "an attribute" if has else GONE


def look_up(name: str) -> Any:
    """What a dotted name stands for: the longest part of it that is a module, and attributes of that."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found
    return None


def signature_of(found: Any) -> str:
    """How it is called, without types; else what it is."""
    if not callable(found) or (isinstance(found, type) and issubclass(found, BaseException)):
        return type(found).__name__
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return told_by_docstring(found)
    plain = inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters])
    return ADDRESS.sub("", str(plain))


def told_by_docstring(found: Any) -> str:
    """The arguments of a C++ function, by the first line of what pybind11 writes about it."""
    first = (inspect.getdoc(found) or "").partition("\n")[0]
    is_told = first.startswith(f"{getattr(found, '__name__', None)}(")
    return f"({', '.join(re.findall(r'([*]*[a-z]+[a-z_0-9]*): ', first))})" if is_told else type(found).__name__


def examples_of(torch: Any) -> Iterator[Any]:
    """One of each kind of object whose attributes the page names without their class."""
    tensor = torch.ones(2, 2, requires_grad=True)
    node = (tensor * tensor).grad_fn
    yield from (tensor, node, tensor.untyped_storage(), torch.default_generator, torch.ops.aten.add.Tensor, torch)
    yield from (tensor.detach().to_sparse(), torch.autograd.Function, torch.nn.Module(), torch.autograd.forward_ad)
    optimizer = torch.optim.SGD([tensor], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    yield from (optimizer, optimizer.step, torch.amp.GradScaler("cpu"))
    yield from (importlib.import_module("torch._dynamo.eval_frame"), torch.compiler.disable(lambda: None))
    yield saved_by_a_function(torch, tensor)


def saved_by_a_function(torch: Any, tensor: Any) -> Any:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x * 2

    return Twice.apply(tensor).grad_fn


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        print(json.dumps(names_here()))
    else:
        sys.exit(main(*sys.argv[1:]))
