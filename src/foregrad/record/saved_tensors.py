"""Saved: what the nodes of the recorded autograd graph keep for their backward, and where they lead.

A node of eager's refuses to run if a tensor that it saved was written since, whether its formula needs that tensor or
not. And it runs only if it leads to a tensor whose gradient is asked for; `backward()` asks for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from foregrad.core.errors import CaptureError
from foregrad.record.ghosts.table import kind_of
from foregrad.record.recorder import Recorder
from foregrad.record.recording import Recording
from foregrad.record.trace import DeadEnd, Survey
from foregrad.torch_private.autograd import SavedByNode, saved_by


def survey(recording: Recording, sources: Sequence[torch.Tensor], slots: Sequence[Any]) -> Survey:
    """Walk from the sources to the slots, running nothing but hooks that unpack what dead ends have saved."""
    targets = [(get_gradient_edge(s) if isinstance(s, torch.Tensor) else s).node for s in slots]
    starts = [source.grad_fn for source in sources]
    order = _in_order(starts)
    leads = set(targets)
    for node in order:
        if node not in leads and any(following in leads for following in _following(node)):
            leads.add(node)
    passed = [node for node in order if node in leads and node not in targets]
    saved = _objects(recording.recorder, [one for node in passed for one in saved_by(node)])
    seen = set(order)
    ends = tuple(_dead_end(recording, start, leads) if seen - leads else None for start in starts)
    return Survey(tuple(node in seen for node in targets), saved, ends)


def _dead_end(recording: Recording, start: Any, leads: set[Any]) -> DeadEnd | None:
    nodes = [node for node in _in_order([start]) if node not in leads]
    kept = [one for node in nodes for one in saved_by(node)]
    if not kept:
        return None
    saved = _objects(recording.recorder, kept)
    error = recording.error_of(lambda: _unpack(recording, kept))
    return DeadEnd(saved, error) if saved or error is not None else None


def _unpack(recording: Recording, kept: Sequence[SavedByNode]) -> None:
    """Run the hooks of what dead ends have saved, as eager does; what a checkpoint draws there is in no program."""
    ops = recording.recorder.ops
    start = len(ops)
    for one in kept:
        one.unpack()
    for op in ops[start:]:
        if kind_of(op.func).is_random and op.redraws is None:
            raise CaptureError(
                "backward() draws random numbers for a checkpoint whose gradient reaches no input, as that of a view "
                f"which was made under no_grad.\n  at {op.origin}\nMake the view outside of no_grad, or detach() it."
            )


def _objects(recorder: Recorder, kept: Sequence[SavedByNode]) -> frozenset[int]:
    tensors = [one.tensor for one in kept if one.tensor is not None]
    return frozenset(recorder.alias(tensor).object for tensor in tensors if recorder.owns(tensor))


def _following(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _in_order(starts: Sequence[Any]) -> list[Any]:
    """Every node behind some nodes, each after all those that it leads to."""
    order: dict[Any, None] = {}
    entered: set[Any] = set()
    stack = [(node, False) for node in starts if node is not None]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            order[node] = None
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            stack += [(following, False) for following in _following(node)]
    return list(order)
