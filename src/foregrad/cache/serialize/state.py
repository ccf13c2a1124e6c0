"""State in files: what the modules and optimizers of a program look like, their tensors, and stand-ins without code.

Modules are written as paths with tensors and flags, optimizers as their groups and their state; no class is needed to
read them. A tensor that several places share is written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from foregrad.cache.serialize.plain_values import from_json, to_json
from foregrad.cache.serialize.tensors import strided
from foregrad.core.errors import CannotKeep
from foregrad.core.spec import Spec
from foregrad.torch_private.modules import TENSOR_TABLES, children_of


@dataclass(frozen=True)
class KeptState:
    """The layout of state as JSON, and its tensors by name."""

    layout: list[Any]
    tensors: dict[str, Tensor]


def keep_state(state: tuple[Any, ...]) -> KeptState:
    """Take state apart."""
    names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}

    def tensor(name: str, value: Tensor) -> dict[str, Any]:
        if id(value) not in names:
            names[id(value)] = name
            tensors[name] = value
        return {"is": "tensor", "name": names[id(value)], "spec": str(Spec.of(value)), **_facts(value)}

    layout = [_keep(number, one, tensor) for number, one in enumerate(state)]
    return KeptState(layout, tensors)


def _facts(value: Tensor) -> dict[str, Any]:
    spec = Spec.of(value)
    return {
        "stride": list(spec.stride),
        "requires_grad": spec.requires_grad,
        "is_parameter": isinstance(value, nn.Parameter),
    }


def _keep(number: int, one: Any, tensor: Any) -> dict[str, Any]:
    if isinstance(one, nn.Module):
        return {"is": "module", "class": type(one).__name__, "modules": [*_modules(number, one, tensor)]}
    if isinstance(one, Optimizer):
        return _optimizer(number, one, tensor)
    if isinstance(one, Tensor):
        return tensor(f"{number}", one)
    raise CannotKeep(f"a {type(one).__name__} cannot be kept in a file; leave it outside the step")


def _modules(number: int, top: nn.Module, tensor: Any) -> Iterator[dict[str, Any]]:
    for path, module in top.named_modules():
        tables = {}
        for table in TENSOR_TABLES:
            held = getattr(module, table).items()
            prefix = f"{number}.{path}." if path else f"{number}."
            tables[table] = [[key, None if t is None else tensor(prefix + key, t)] for key, t in held]
        yield {"path": path, "class": type(module).__name__, "training": module.training, **tables}


def _optimizer(number: int, optimizer: Optimizer, tensor: Any) -> dict[str, Any]:
    def other(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensor(f"{number}.{path}", value)
        raise CannotKeep(f"{type(optimizer).__name__} keeps a {type(value).__name__}, which no file can hold")

    groups, entries = [], []
    for place, group in enumerate(optimizer.param_groups):
        path = f"groups.{place}"
        kept = []
        for key, value in group.items():
            path = f"groups.{place}.{key}"
            kept.append([key, _numbered(path, number, value, tensor) if key == "params" else to_json(value, other)])
        groups.append(kept)
    for place, (parameter, held) in enumerate(optimizer.state.items()):
        items = []
        for key, value in held.items():
            path = f"state.{place}.{key}"
            items.append([key, to_json(value, other)])
        entries.append([tensor(f"{number}.state.{place}", parameter), items])
    return {"is": "optimizer", "class": type(optimizer).__name__, "groups": groups, "state": entries}


def _numbered(path: str, number: int, members: list[Tensor], tensor: Any) -> list[Any]:
    return [tensor(f"{number}.{path}.{place}", member) for place, member in enumerate(members)]


# -- comparing ----------------------------------------------------------------------------------------------


def mismatches(kept: list[Any], state: tuple[Any, ...]) -> list[str]:
    """What is different about state that a file is to be used with, one line each."""
    if len(kept) != len(state):
        return [f"the file was made for {len(kept)} states, {len(state)} are given"]
    found: list[str] = []
    given = keep_state(state).layout
    for number, (old, new) in enumerate(zip(kept, given, strict=True)):
        if old["is"] != new["is"]:
            found.append(f"state {number}: the file was made for a {old['is']}, a {new['is']} is given")
            continue
        before, now = (dict(_entries(one)) for one in (old, new))
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                found.append(
                    f"state {number}, {name}: {before.get(name, 'absent')} in the file, {now.get(name, 'absent')}"
                )
    return found


def _entries(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What must agree: names, shapes and dtypes, and which tensors are one."""
    if one["is"] == "tensor":
        yield "tensor", _text(one)
    for module in one.get("modules", ()):
        for table in TENSOR_TABLES:
            for key, tensor in module[table]:
                yield (f"{module['path']}.{key}".lstrip(".")), _text(tensor)
    for place, group in enumerate(one.get("groups", ())):
        yield f"parameter group {place}", ", ".join(sorted(key for key, _ in group))
        for member, tensor in enumerate(dict(group)["params"]):
            yield f"parameter group {place}, parameter {member}", _text(tensor)


def _text(tensor: Any) -> str:
    if tensor is None:
        return "None"
    kind = "" if tensor["requires_grad"] else ", frozen" * tensor["is_parameter"]
    return f"{tensor['spec']}{kind}, as {tensor['name']}"


# -- without code -------------------------------------------------------------------------------------------


class LoadedModule(nn.Module):
    """A module that was read from a file: its paths, parameters, buffers and flags, and no code."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this module was read from a file, which holds its tensors and not its code")


class LoadedOptimizer:
    """An optimizer that was read from a file: its groups and its state. The program does its work."""

    def __init__(self, param_groups: list[dict[str, Any]], state: dict[Tensor, dict[str, Any]]) -> None:
        self.param_groups = param_groups
        self.state = state


def stand_ins(layout: list[Any], tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """State made from a file alone."""
    made: dict[str, Tensor] = {}

    def tensor(data: Any) -> Any:
        if data is None:
            return None
        if data["name"] not in made:
            value, wants = strided(tensors[data["name"]], tuple(data["stride"])), data["requires_grad"]
            made[data["name"]] = nn.Parameter(value, wants) if data["is_parameter"] else value.requires_grad_(wants)
        return made[data["name"]]

    return tuple(_stand_in(one, tensor) for one in layout)


def _stand_in(one: dict[str, Any], tensor: Any) -> Any:
    if one["is"] == "tensor":
        return tensor(one)
    if one["is"] == "optimizer":
        groups = [
            {k: [tensor(t) for t in v] if k == "params" else from_json(v, tensor) for k, v in group}
            for group in one["groups"]
        ]
        state = {tensor(p): {k: from_json(v, tensor) for k, v in held} for p, held in one["state"]}
        return LoadedOptimizer(groups, state)
    made: dict[str, LoadedModule] = {}
    for module in one["modules"]:
        path, _, name = module["path"].rpartition(".")
        made[module["path"]] = here = LoadedModule()
        here.training = module["training"]
        for table in TENSOR_TABLES:
            getattr(here, table).update({key: tensor(t) for key, t in module[table]})
        if module["path"]:
            children_of(made[path])[name] = here
    return made[""]
