"""Refusals: what a function does to the world outside that a program could not do at each call."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.history import attributes_of, keeps_gradient
from foregrad.core.spec import Spec
from foregrad.core.wrapper_subclass import is_wrapper
from foregrad.process.garbage_collection import young_objects
from foregrad.record.impure import is_random
from foregrad.record.lift.declared_state import Declared, StateStore, leaves_in
from foregrad.record.lift.locate import Location, Variable, variables
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.ops import Alias, aliases_in, aliases_read
from foregrad.record.python.escapes import Escape, escapes
from foregrad.record.python.executed_code import is_library
from foregrad.record.python.names_read import names_in
from foregrad.record.python.side_effects import Change, SideEffects, refuse_number_or_tensor, tensors_in
from foregrad.record.recording import Recording
from foregrad.record.results import reshaped_views
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of
from foregrad.torch_private.native_code import has_hidden_hooks


def changes_of(
    recording: Recording, beside: SideEffects, python: str | None
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """What a program does not repeat of what the function does in Python; and what it changes outside itself, if it is
    no step: the program is then that of one call."""
    watched = recording.objects.now.watched
    found = beside.changes(recording.recorder.knows)
    names = {change.name for change in found}
    if recording.numbers.given:
        _refuse_numbers_outside(recording)
    for kept in watched.outside.changed() if python is not None else ():
        if any(map(recording.recorder.knows, tensors_in(kept.now))):
            refuse_number_or_tensor(kept.name, f"\n  at {kept.line}")
    changed = [one for one in watched.outside.changes(beside.known()) if one.name not in names]
    once = changed if python is None else []
    changes = dict.fromkeys([*found, *watched.anew.changes, *(changed if python is not None else [])])
    if changes and python == "error":
        what = "the step does in Python what its program would not repeat:\n" + "\n".join(map(str, changes))
        raise CaptureError(f"{what}\n{recording.definition}\nDo it outside the step.")
    if once and recording.sizes is not None:
        what = "\n".join(map(str, once))
        raise CaptureError(f"the function changes objects outside itself:\n{what}\n{recording.definition}")
    return tuple(changes), tuple(once)


def _refuse_numbers_outside(recording: Recording) -> None:
    """A number that varies would stay in an object outside as what stands for it."""
    for kept in recording.objects.now.watched.outside.changed():
        held = kept.now if isinstance(kept.now, dict) else dict(enumerate(kept.now if type(kept.now) is tuple else ()))
        leaves = [leaf for value in held.values() for leaf in leaves_in(value)]
        if any(expression_of(leaf) is not None for leaf in (kept.now, *leaves)):
            raise CaptureError(
                f"the function stores a number that varies in `{kept.name}`, outside itself.\n{recording.definition}\n"
                "Return it, and store it outside."
            )


def refuse_types_of_numbers(recording: Recording) -> None:
    """A number that varies says that it is a float to `isinstance`, and not to `type`."""
    ran = recording.recorder.executed.ran() if recording.numbers.given else ()
    for code, names in ran:
        if not is_library(code) and "type" in names_in(code).globals and "type" not in names:
            raise CaptureError(
                f"{code.co_qualname} asks for the `type` of something, which may be a number that varies.\n"
                f"{recording.definition}\nAsk with `isinstance`."
            )


def refuse_stored(recording: Recording, stored: Sequence[StateStore]) -> None:
    """Refuse new objects in declared state: they may hold tensors without data, and no call could make them."""
    is_new = young_objects()
    for store in stored:
        for leaf in _held(store.value):
            is_ours = type(leaf).__module__.startswith("foregrad.")
            if isinstance(leaf, _KNOWN) or is_ours or not gc.is_tracked(leaf) or not is_new(leaf):
                continue
            raise CaptureError(
                f"the function puts a new {type(leaf).__name__} into {store.slot.name}, which a program cannot make at "
                f"each call.\n{recording.definition}\nPut tensors and numbers there, in lists, tuples and dicts, or "
                "make it outside."
            )


_KNOWN = (torch.Tensor, torch.Size, torch.SymInt, torch.SymFloat, torch.SymBool)


def _held(value: Any) -> list[Any]:
    """What a value holds, through the containers that each call can make."""
    if type(value) is dict:
        return [leaf for one in value.values() for leaf in _held(one)]
    return [leaf for one in value for leaf in _held(one)] if type(value) in (list, tuple) else [value]


def refuse_kept(recording: Recording, body: Any, before: tuple[Variable, ...]) -> None:
    """A tensor put into a variable, a list or an object outside would stay there without data."""
    values = {(id(variable.owner), variable.key): variable.value for variable in before}
    for variable in variables(body):
        kept = [t for t in _tensors_in(variable.value) if recording.recorder.knows(t)]
        if not kept:
            continue
        if isinstance(variable.value, (torch.Tensor, torch.SymFloat)):
            variable.assign(values.get((id(variable.owner), variable.key)))
        raise CaptureError(
            f"the function stores a tensor {Spec.of(kept[0])} in `{variable.name}`, outside itself; a program "
            f"cannot do that at each call.\n{recording.definition}\nReturn the tensor and store it outside."
        )


def refuse_escaped(recording: Recording, named: list[tuple[str, Any]]) -> None:
    """The same for whatever else the function can reach: lists of modules, dicts that hooks fill, its arguments.
    `named` is what was there before it ran; modules that it makes may hold what they like."""
    roots = list(named)
    found: list[Escape] = []
    for scope in recording.recorder.executed.named():
        for name in sorted(scope.names & scope.variables.keys()):
            value = scope.variables[name]
            if any(map(recording.recorder.knows, _tensors_in(value, 0))):
                found.append(Escape(value, name, scope.variables))
            roots.append((name, value))
    for escape in escapes(recording, roots):
        is_tensor = isinstance(escape.tensor, torch.Tensor)
        if escape.cache is not None and is_tensor and _would_be_the_same(recording, escape.tensor):
            escape.undo()  # it is computed again when it is asked for
        else:
            found.append(escape)
    if not found:
        return
    first = found[0]
    if not isinstance(first.tensor, torch.Tensor):
        for escape in found:
            escape.undo()
        kind = type(first.tensor).__name__
        raise CaptureError(
            f"the function stores a {kind} that it was given in `{first.path}`, outside itself; a "
            f"program cannot do that at each call.\n{recording.definition}\nStore it outside."
        )
    alias = recording.recorder.alias(found[0].tensor)
    made = None if alias.op is None else recording.recorder.ops[alias.op].origin
    line = recording.definition if made is None or made.code is None else f"  at {made}"
    for escape in found:
        escape.undo()
    raise CaptureError(
        f"the function stores a tensor {alias.spec} in `{found[0].path}`, outside itself; a program cannot do that at "
        f"each call.\n{line}\nReturn the tensor and store it outside."
    )


def _would_be_the_same(recording: Recording, tensor: torch.Tensor) -> bool:
    """Whether each call would compute a tensor alike: from no input, without a draw, and no gradient is kept in it."""
    varying: set[Any] = set()
    for op in recording.recorder.ops:
        read = {alias.storage for alias in aliases_read((op.args, op.kwargs))}
        if is_random(op.func) or any(one in varying or one.kind == "input" for one in read):
            varying.update(alias.storage for alias in (*aliases_in(op.outputs), *op.writes))
    return not tensor.requires_grad and recording.recorder.alias(tensor).storage not in varying


def _tensors_in(value: Any, depth: int = 3) -> list[torch.Tensor]:
    """Tensors in a value, in containers in it, and in the attributes of a plain object, and those of numbers."""
    if isinstance(value, torch.Tensor):
        return [value]
    item = item_of(value)
    if item is not None:
        return [item.tensor]
    if isinstance(value, (list, tuple, set)) and depth:
        return [t for v in value for t in _tensors_in(v, depth - 1)]
    if isinstance(value, dict) and depth:
        return [t for v in value.values() for t in _tensors_in(v, depth - 1)]
    is_plain = not isinstance(value, (type, ModuleType, FunctionType, torch.nn.Module))
    return _tensors_in(vars(value), 1) if depth and is_plain and hasattr(value, "__dict__") else []


def refuse_made_modules(recording: Recording, made: list[tuple[str, torch.nn.Module]]) -> None:
    """A layer that is built at the first call would be built anew, with other weights, at each call."""
    for path, module in made:
        raise CaptureError(
            f"the function makes a {type(module).__name__} and stores it as `{path}`; a program would make a new one "
            f"at each call.\n{recording.definition}\nMake it in __init__, or call the model once before it is compiled."
        )


_ABSENT = object()


def refuse_attributes(recording: Recording) -> None:
    """A Python attribute set on an input, or on a tensor that is a result, would be lost."""
    given = {id(lifted.ghost) for lifted in recording.inputs.all}
    attributes = () if recording.sizes is None else recording.sizes.attributes
    for lifted in recording.inputs.all:
        known = {} if lifted.real is None else attributes_of(lifted.real)
        now = {name: value for name, value in vars(lifted.ghost).items() if name[:1] != "_" and name not in attributes}
        names = [name for name in {**known, **now} if name not in now or known.get(name, _ABSENT) is not now[name]]
        if names:
            raise CaptureError(
                f"the function sets the attribute {names[0]!r} on an input {lifted.spec}; a program cannot do that at "
                f"each call.\n{recording.definition}\nSet it outside."
            )
    for made in recording.outputs:
        is_made = isinstance(made, torch.Tensor) and id(made) not in given and not is_wrapper(made)
        names = sorted(name for name in vars(made) if name[:1] != "_" and name not in attributes) if is_made else []
        if names:
            raise CaptureError(
                f"the function sets the attribute {names[0]!r} on a tensor {recording.recorder.alias(made).spec} that "
                f"it returns or stores; a program cannot do that at each call.\n{recording.definition}\n"
                "Set it outside, or return what it holds."
            )


def refuse_hidden_hooks(recording: Recording) -> None:
    """A program that adds to a .grad does so without the engine, which would have called these hooks."""
    for lifted in recording.grads.accumulated:
        if lifted.real is not None and has_hidden_hooks(lifted.real):
            raise CaptureError(
                f"backward() inside the function reaches a parameter {lifted.spec} whose gradient has hooks on its "
                "accumulator, in C++ or in Python; DistributedDataParallel averages gradients by such hooks.\n"
                f"{recording.definition}\nRun backward() and the optimizer outside, and compile the model alone: "
                "DistributedDataParallel(fg.compile(model))."
            )


def refuse_hooks_on_views(recording: Recording) -> None:
    """The gradient of a view whose geometry is changed goes to what it is a view of."""
    for lifted in reshaped_views(recording):
        if lifted.real is None or not keeps_gradient(lifted.real):
            continue
        changes = [op for op in recording.recorder.ops if op.renames and op.renames.object == lifted.alias.object]
        line = f"  at {changes[0].origin}" if changes else recording.definition
        raise CaptureError(
            f"the function changes the geometry of an input {lifted.spec} that shares memory with another and has "
            f"hooks or keeps its gradient.\n{line}\nPass copies, or change a view of it."
        )


def refuse_sizes(recording: Recording) -> None:
    """Sizes of arguments that share memory vary only where that cannot be seen."""
    if recording.sizes is None:
        return
    apart = {lifted.alias.storage: lifted for lifted in recording.inputs.apart}
    for op in recording.recorder.ops:
        for alias in (*op.writes, *([op.renames] if op.renames is not None else [])):
            if alias.storage in apart:
                name = recording.inputs.names.get(id(apart[alias.storage].real), "an argument")
                raise CaptureError(f"{name} shares memory with another argument, and is written.\n  at {op.origin}")
    if not recording.sizes.symbols:
        raise CaptureError(
            f"what would vary are arguments that share memory and need gradients, or views of such.\n"
            f"{recording.definition}"
        )


def refuse_made_up(recording: Recording, locations: dict[Any, Location], declared: Declared) -> None:
    """A tensor that the function has made around tensors from outside would always be the one of this call."""
    grads = [grad for _, grad in recording.grads.assumed() if isinstance(grad, Outer)]
    for outer in recording.inputs.outer:
        is_kept = recording.inputs.traced_outer(outer) in locations or id(outer.real) in declared.tensors
        is_found = outer.is_argument or is_kept or outer in grads
        if not is_found:
            raise CaptureError(
                f"the function uses a {outer.recipe} that is no argument, and in no module or variable.\n"
                f"{recording.definition}\nPass it as an argument."
            )


def refuse_growth(recording: Recording) -> None:
    """Memory behind an input that it does not show would come to light; what grows must be an input itself, no view."""
    inputs = recording.inputs.all
    own = {lifted.alias.object for lifted in inputs if lifted.base is None}
    for op in recording.recorder.ops[: recording.num_forward]:
        if op.renames is None or not recording.recorder.memory[op.renames.storage].is_grown:
            continue
        is_view = op.renames.object not in own and _ends_behind(op.outputs)
        for lifted in inputs:
            storage = lifted.alias.storage
            if storage is op.renames.storage and (is_view or lifted.num_bytes > storage.num_bytes):
                raise CaptureError(
                    f"the function grows an input {lifted.spec} into memory behind it.\n  at {op.origin}\nPass all of "
                    "its memory, or a copy."
                )


def _ends_behind(alias: Alias) -> bool:
    """Whether an alias reaches further than its storage did at first."""
    return (alias.offset + alias.spec.extent) * alias.dtype.itemsize > alias.storage.num_bytes
