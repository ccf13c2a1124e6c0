"""Input names: a role and a name for every input of a program, as the user knows it."""

from __future__ import annotations

import torch

from foregrad.record.lift.declared_state import Container, Declared, Slot
from foregrad.record.lift.locate import Location
from foregrad.record.recording import Recording


def give_names(recording: Recording, places: dict[int, Location], declared: Declared) -> None:
    """A role and a name for every input."""
    known = {tensor: (place.role, place.name) for tensor, place in places.items()}
    known.update((tensor, ("input", name)) for tensor, name in recording.inputs.names.items())
    for outer in recording.inputs.outer:
        outer.role, outer.name = known.get(id(outer.real), (outer.role, outer.name))
        if id(outer.real) in declared.tensors and id(outer.real) not in known:
            outer.role, outer.name = "state", _state_name(declared.tensors[id(outer.real)], places)
    owners = {grad: lifted for lifted, grad in recording.grads.on_entry.items() if isinstance(grad, torch.Tensor)}
    for outer in recording.inputs.outer:
        if outer.ghost in owners:
            outer.role, outer.name = "closure", f"{owners[outer.ghost].name}.grad"
    wholes = {
        part: (outer, path)
        for outer in recording.inputs.outer
        for part, path in zip(outer.parts, outer.paths, strict=True)
    }
    for lifted in recording.inputs.all:
        if id(lifted.real) in known:
            lifted.role, lifted.name = known[id(lifted.real)]
        elif lifted in wholes:
            outer, path = wholes[lifted]
            lifted.role, lifted.name = outer.role, outer.name + path
        elif lifted.ghost in owners:
            lifted.role, lifted.name = "closure", f"{owners[lifted.ghost].name}.grad"
        elif id(lifted.real) in declared.tensors:
            lifted.role, lifted.name = "state", _state_name(declared.tensors[id(lifted.real)], places)
        elif lifted.is_hidden:
            lifted.role, lifted.name = "base", f"base_{lifted.alias.object}"
        else:
            lifted.role, lifted.name = "closure", f"tensor_{lifted.alias.object}"


def _state_name(slot: Slot, places: dict[int, Location]) -> str:
    """`optimizer.state.fc.weight.exp_avg`: parameters that are keys go by their own names."""
    holder, key = slot.holder, slot.key
    if isinstance(key, torch.Tensor):
        key = places[id(key)].name if id(key) in places else "tensor"
    return f"{_state_name(holder.slot, places)}.{key}" if isinstance(holder, Container) else slot.name
