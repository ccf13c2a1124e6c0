"""Naming: a role and a name for every input of a program, as the user knows it."""

from __future__ import annotations

import torch

from foregrad.record.declared import Container, Declared, Slot
from foregrad.record.recording import Recording
from foregrad.runtime.locate import Location


def give_names(recording: Recording, places: dict[int, Location], declared: Declared) -> None:
    """A role and a name for every input."""
    arguments = recording.inputs.names
    for outer in recording.inputs.outer:
        place = places.get(id(outer.real))
        if id(outer.real) in arguments:
            outer.role, outer.name = "input", arguments[id(outer.real)]
        elif place is not None:
            outer.role, outer.name = place.role, place.name
    wholes = {
        part: (outer, path)
        for outer in recording.inputs.outer
        for part, path in zip(outer.parts, outer.paths, strict=True)
    }
    owners = {grad: lifted for lifted, grad in recording.grads.on_entry.items() if isinstance(grad, torch.Tensor)}
    for lifted in recording.inputs.all:
        place = places.get(id(lifted.real))
        if id(lifted.real) in arguments:
            lifted.role, lifted.name = "input", arguments[id(lifted.real)]
        elif place is not None:
            lifted.role, lifted.name = place.role, place.name
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
