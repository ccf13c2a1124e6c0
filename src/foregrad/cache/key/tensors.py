"""Tensors, modules and optimizers: their layout, not their data.

    fc: train Linear in_features=8 out_features=2
    fc.weight: Parameter f32[2, 8] leaf requires_grad grad None

Each call brings its own tensors, so that what a program depends on is how they look and how they hang together. Numbers
of declared optimizers and schedulers are read at each call too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from foregrad.cache.key.data import show_entry, show_object, slots_of
from foregrad.cache.key.libraries import library_of_class
from foregrad.cache.key.walk import KeyWalk, Shower
from foregrad.core.spec import contiguous_stride, dtype_text, is_number
from foregrad.torch_private.autograd import accumulation_hooks, gradient_hooks
from foregrad.torch_private.marks import MARKS
from foregrad.torch_private.modules import NAMED_HOOKS, TABLES, forward_hook_numbers
from foregrad.torch_private.tensors import storage_key, view_base


def show_tensor(walk: KeyWalk, tensor: torch.Tensor, place: str) -> str:
    """All that a program may depend on but the data."""
    kind, is_leaf = type(tensor), tensor.is_leaf
    text = f"{kind.__name__ if kind in _USUAL else walk.kind(kind)} {spec_text(walk, tensor)}"
    if tensor.layout is not torch.strided:
        return f"{text} {tensor.layout}"
    if tensor.requires_grad:
        text += " requires_grad" if is_leaf else " requires_grad, no leaf"
    if tensor.is_inference():
        text += " inference"
    if tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()):
        text += " lazily conjugate" if tensor.is_conj() else " lazily negative"
    text += f"{' view' if view_base(tensor) is not None else ''}{_memory(walk, tensor, place)}"
    if is_leaf or tensor.retains_grad:
        grad = tensor.grad
        text += "" if grad is None else f" grad ({walk.show(grad, f'{place}.grad')})"
    for hooks in (gradient_hooks(tensor), accumulation_hooks(tensor)):
        text += f" hooks {show_hooks(walk, hooks, place)}" if hooks else ""
    for name, value in vars(tensor).items():
        if name in MARKS:
            continue
        text += f" {show_entry(walk, name, value, place)}"
    return text


_USUAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@functools.lru_cache(maxsize=4096)
def _looks(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> str:
    text = f"{dtype_text(dtype)}{list(shape)}"
    return text if stride == contiguous_stride(shape) else f"{text} stride {stride}"


def spec_text(walk: KeyWalk, tensor: torch.Tensor) -> str:
    if id(tensor) in walk.of_any_size:
        shape = ", ".join("any" if size > 1 else str(size) for size in tensor.shape)
        return f"{dtype_text(tensor.dtype)}[{shape}]"
    text = _looks(tuple(tensor.shape), tensor.stride() if tensor.layout is torch.strided else (), tensor.dtype)
    return text if tensor.device.type == "cpu" else f"{text} {walk.device(tensor.device)}"


def _memory(walk: KeyWalk, tensor: torch.Tensor, place: str) -> str:
    """Where in which memory a tensor lies, if it does not have one to itself."""
    storage, offset = tensor.untyped_storage(), tensor.storage_offset()
    first, where = walk.storages.setdefault(storage_key(storage), (tensor, place))
    if first is not tensor:
        return f" in the memory of {where} at {offset}"
    size = storage.nbytes()
    return f" at {offset} of {size} bytes" if offset or size != tensor.nbytes else ""


def show_hooks(walk: KeyWalk, hooks: Any, place: str) -> str:
    """Hooks in their order; the numbers by which they are known differ from process to process."""
    return walk.show(list(hooks.values()), f"{place} hooks")


# -- modules ------------------------------------------------------------------------------------------------

#: Attributes that every module has, as they are in most.
_DEFAULTS: dict[str, Any] = {
    key: value for key, value in vars(torch.nn.Module()).items() if key not in (*TABLES, "training")
}


def show_module(walk: KeyWalk, module: torch.nn.Module, place: str) -> str:
    """A module and all in it, one line each."""
    lines: list[str] = []
    _tell_module(walk, module, place, "", lines)
    return "\n".join(lines)


def _tell_module(walk: KeyWalk, module: torch.nn.Module, place: str, path: str, lines: list[str]) -> None:
    """The line of a module, then those of all in it. Attributes come last: they may refer to what is in it."""
    here, below = len(lines), f"{path}." if path else ""
    lines.append("")
    for table in TABLES:
        for name, value in vars(module).get(table, {}).items():
            key = name if name.isalnum() or name.isidentifier() else repr(name)
            if isinstance(value, torch.nn.Module) and walk.first_place(value) is None:
                walk.meet(value, f"{place}.{key}")
                _tell_module(walk, value, f"{place}.{key}", f"{below}{key}", lines)
            else:
                lines.append(f"{below}{key}: {table[1:]} {walk.show(value, f'{place}.{key}')}")
    mode = "train" if module.training else "eval"
    lines[here] = f"{path or 'module'}: {mode} {walk.kind(type(module))}{_attributes(walk, module, place)}"


def _attributes(walk: KeyWalk, module: torch.nn.Module, place: str) -> str:
    text = ""
    for key, value in vars(module).items():
        if key in TABLES or key == "training":
            continue
        if key in _DEFAULTS and type(value) is type(_DEFAULTS[key]) and not value and not _DEFAULTS[key]:
            continue
        if key in _DEFAULTS and key.endswith("_hooks"):
            text += f" {key}={show_hooks(walk, value, f'{place}.{key}')}"
        elif key in NAMED_HOOKS:
            text += f" {key}={sorted(_ranks(module, value))}"
        else:
            text += f" {show_entry(walk, key, value, place)}"
    for name in (name for cls in type(module).__mro__ for name in slots_of(cls) if name != "_foregrad"):
        if hasattr(module, name):
            text += f" {show_entry(walk, name, getattr(module, name), place)}"
    return text


def _ranks(module: torch.nn.Module, numbers: Any) -> list[str]:
    order = forward_hook_numbers(module)
    return [f"{order.index(number)}: {numbers[number]}" for number in numbers if number in order]


# -- optimizers ---------------------------------------------------------------------------------------------


def show_optimizer(walk: KeyWalk, optimizer: torch.optim.Optimizer, place: str) -> str:
    """Groups and state, one line each; numbers of a declared one by their type."""
    if id(optimizer) not in walk.declared:
        return show_object(walk, optimizer, place)
    lines = [f"optimizer: {walk.kind(type(optimizer))}"]
    is_torchs = library_of_class(type(optimizer)) is not None
    for key, value in vars(optimizer).items():
        where = f"{place}.{key}"
        if key == "param_groups":
            lines += [f"group {i}: {_declared(walk, group, f'{where}[{i}]')}" for i, group in enumerate(value)]
        elif key == "state":
            for i, (of, values) in enumerate(value.items()):
                lines.append(f"state {i} of {walk.show(of, where)}: {_declared(walk, values, f'{where}[{i}]')}")
        elif key.startswith("_optimizer_") and key.endswith("_hooks"):
            lines += [f"{key} {show_hooks(walk, value, where)}"] if value else []
        elif key == "defaults" and is_torchs:
            lines.append(f"{key} {_declared(walk, value, where)}")
        else:
            lines.append(show_entry(walk, key, value, place))
    return "\n".join(lines)


def show_scheduler(walk: KeyWalk, value: Any, place: str) -> str:
    """A scheduler or GradScaler: all its attributes, numbers of a declared one by their type."""
    if id(value) not in walk.declared:
        return show_object(walk, value, place)
    lines = [f"{k}: {_declared(walk, v, f'{place}.{k}')}" for k, v in vars(value).items()]
    return "\n".join([f"object: {walk.kind(type(value))}", *lines])


def _declared(walk: KeyWalk, value: Any, place: str) -> str:
    """Declared state: a capture turns its numbers into symbols, and what it is told of them is a guard."""
    if is_number(value):
        return type(value).__name__
    if isinstance(value, LRScheduler):
        walk.declared.add(id(value))
        return walk.show(value, place)
    if isinstance(value, dict):
        keys = [_key(walk, key, place) for key in value]
        items = [f"{k}: {_declared(walk, v, f'{place}[{k}]')}" for k, v in zip(keys, value.values(), strict=True)]
        return f"{type(value).__name__}{{{', '.join(items)}}}"
    if type(value) in (list, tuple):
        items = [_declared(walk, v, f"{place}[{i}]") for i, v in enumerate(value)]
        return f"{type(value).__name__}[{', '.join(items)}]"
    return walk.show(value, place)


def _key(walk: KeyWalk, key: Any, place: str) -> str:
    """A key of declared state. A GradScaler knows optimizers by their ids."""
    known = walk.place_of_id(key) if type(key) is int else None
    return walk.show(key, place) if known is None else f"id of {known}"


def show_equal_numbers(state: tuple[Any, ...]) -> str:
    """Which small tensors of declared state hold the same number: in a capture those of one name are one symbol."""
    known: dict[tuple[str, torch.dtype], dict[str, int]] = {}
    told: dict[tuple[str, torch.dtype], list[str]] = {}
    for name, tensor in _small_tensors(state):
        numbers = known.setdefault((name, tensor.dtype), {})
        rank = numbers.setdefault(repr(tensor.item()), len(numbers))
        told.setdefault((name, tensor.dtype), []).append(str(rank))
    differ = {one: ranks for one, ranks in told.items() if len(known[one]) > 1}
    return "\n".join(f"{name} {dtype_text(dtype)}: {' '.join(ranks)}" for (name, dtype), ranks in differ.items())


def _small_tensors(state: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of declared state that may be read as numbers, by the names that a capture has for them."""
    for one in state:
        if isinstance(one, torch.nn.Module):
            yield from (("number", buffer) for buffer in one.buffers() if _is_small(buffer))
        elif isinstance(one, torch.Tensor):
            yield from [("number", one)] if _is_small(one) else []
        elif isinstance(one, torch.optim.Optimizer):
            yield from _small_in({"param_groups": one.param_groups, "state": one.state})
        else:
            yield from _small_in(getattr(one, "__dict__", {}))


def _small_in(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, torch.Tensor):
            yield from [(str(key), item)] if _is_small(item) else []
        elif isinstance(item, LRScheduler):
            yield from _small_in(vars(item))
        elif isinstance(item, (dict, list, tuple)):
            yield from _small_in(item)


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 0 and tensor.device.type == "cpu"


TENSORS: dict[type, Shower] = {
    torch.Tensor: show_tensor,
    torch.nn.Parameter: show_tensor,
    torch.nn.Module: show_module,
    torch.optim.Optimizer: show_optimizer,
    LRScheduler: show_scheduler,
    torch.amp.GradScaler: show_scheduler,
}
