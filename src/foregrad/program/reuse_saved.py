"""Reuse what is saved: a later program of a recording, made to need only what the first forward keeps.

A backward along tangents of another layout, or from some results only, may want a value in another layout than the one
that is kept, or one that the first backward could do without. The former is copied, the latter computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from foregrad.core.errors import BackwardError, ProgramError
from foregrad.core.spec import Spec, contiguous_stride
from foregrad.program.program import Program
from foregrad.program.recompute_marks import copied
from foregrad.program.split import Halves, Saved

_LAYOUT = "layout"


def in_layout(key: Any, layout: torch.memory_format) -> Any:
    """The key of a copy in another layout of the value with this key."""
    return (_LAYOUT, key, str(layout))


def fitted(
    program: Program, kept: Mapping[Any, Spec], wanted: Callable[[Halves], Sequence[Saved]], phase: int
) -> Program:
    """The same program, with everything that it wants of the phases up to this one among what is kept."""
    missing = [one for one in wanted(program.halves) if not _is_kept(one, kept)]
    tried: set[frozenset[Any]] = set()
    while missing:
        now = frozenset(one.key for one in missing)
        if now in tried:
            raise _not_kept(missing, "To compute them takes the same ones again.")
        tried.add(now)
        copies = [(one, key) for one in missing if (key := _other_layout(one, kept)) is not None]
        if copies:
            program = program.with_graph(_with_copies(program, copies, kept, phase))
        else:
            program = _recomputing(program, missing)
        missing = [one for one in wanted(program.halves) if not _is_kept(one, kept)]
    return program


def _is_kept(one: Saved, kept: Mapping[Any, Spec]) -> bool:
    return one.key in kept and kept[one.key].stride == one.spec.stride


def _value(key: Any) -> Any:
    """The key of a value, whatever its layout."""
    return key[1] if isinstance(key, tuple) and key[0] == _LAYOUT else key


def _other_layout(one: Saved, kept: Mapping[Any, Spec]) -> Any:
    """The key under which a value is kept in another layout, if it is."""
    alike = [key for key in kept if _value(key) == _value(one.key)]
    return next((key for key in alike if _layout_of(kept[key]) and _layout_of(one.spec)), None)


def _layout_of(spec: Spec) -> torch.memory_format | None:
    if spec.stride == contiguous_stride(spec.shape):
        return torch.contiguous_format
    if len(spec.shape) != 4:
        return None
    _, channels, height, width = spec.shape
    last = (height * width * channels, 1, width * channels, channels)
    return torch.channels_last if spec.stride == last else None


def _with_copies(
    program: Program, copies: Sequence[tuple[Saved, Any]], kept: Mapping[Any, Spec], phase: int
) -> fx.GraphModule:
    """A graph whose later phases read a value from a copy of the one that is kept."""
    made = copied(program.graph)
    nodes = {node.name: node for node in made.graph.nodes}
    is_late = [output.role in ("grad", "write in backward") for output in program.signature.outputs]
    for one, key in copies:
        node = nodes[one.name]
        readers = [user for user in node.users if user.op != "output" and user.meta.get("phase", 0) > phase]
        with made.graph.inserting_after(node):
            found = _clone(made.graph, node, kept[key], key, phase)
        with made.graph.inserting_after(found):
            again = _clone(made.graph, found, one.spec, in_layout(one.key, torch.preserve_format), phase + 1)
        for reader in readers:
            reader.replace_input_with(node, again)
        output = made.graph.output_node()
        results: Any = output.args[0]
        given = [again if late and r is node else r for r, late in zip(results, is_late, strict=True)]
        output.args = (tuple(given),)
    return made


def _clone(graph: fx.Graph, value: fx.Node, spec: Spec, key: Any, phase: int) -> fx.Node:
    clone = graph.call_function(torch.ops.aten.clone.default, (value,), {"memory_format": _layout_of(spec)})
    clone.meta = {name: meta for name, meta in value.meta.items() if name != "recompute"}
    clone.meta |= {"spec": spec, "key": key, "phase": phase}
    return clone


def _recomputing(program: Program, missing: Sequence[Saved]) -> Program:
    inputs = [str(one.spec) for one in missing if one.source == "input"]
    if inputs:
        raise BackwardError(
            f"this backward reads {len(inputs)} tensors that the call did not use: {', '.join(inputs)}.\n"
            "Its Python, as that of a checkpoint or a custom Function, runs when a backward of this kind is first "
            "asked for. Ask for it once before what it reads is replaced, or run this part without foregrad."
        )
    try:
        return program.recompute([one.name for one in missing])
    except ProgramError as error:
        raise _not_kept(missing, str(error)) from error


def _not_kept(missing: Sequence[Saved], why: str) -> BackwardError:
    names = ", ".join(one.name for one in missing)
    return BackwardError(
        f"this backward needs {len(missing)} values of the forward that were not kept, {names}, and cannot be computed "
        f"again.\n{why}\nRun this part without foregrad."
    )
