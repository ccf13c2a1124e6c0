"""Control flow: torch.cond, while_loop, scan and map, recorded as the Python that they stand for.

torch.cond(p, f, g, (x,))    is recorded as    f(x) if p else g(x)

Whether `p` holds is a question to the data, so there is a program for each answer. As with torch's own ops, each tensor
that one of the functions reads has a gradient: zeros, if the results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from foregrad.core.history import gets_gradient
from foregrad.torch_private.control_flow import cond_op, flex_attention_op, map_impl, scan_op, sdpa_dense, while_loop_op
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.fake_tensors import FakeTensorMode
from foregrad.torch_private.pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

Ghost = Callable[[torch.Tensor], torch.Tensor | None]

#: What an op gives, and the functions that it has not run, with arguments for them.
Outcome = tuple[Any, list[tuple[Callable[..., Any], tuple[Any, ...]]]]


def run_control_flow(op: Any, args: Any, kwargs: Any, recording: AbstractContextManager[Any], ghost_of: Ghost) -> Any:
    """Run the functions that an op is given. `ghost_of` gives the ghosts of tensors that were there before."""
    run = _RUN[op]
    if not torch.is_grad_enabled() or run is sdpa_dense:
        with recording:
            result = run(*args, **kwargs)
        return result if run is sdpa_dense else result[0]
    found: dict[int, torch.Tensor] = {}
    with _Reads(ghost_of, found), recording:  # the recording comes first, so that all are ghosts
        result, others = run(*args, **kwargs)
    for function, given in others:
        with no_dispatch_modes(), FakeTensorMode(), _ReadsAside(ghost_of, found):
            function(*given)
    return _give_zeros(result, found.values())


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Outcome:
    chosen, other = (true_fn, false_fn) if pred else (false_fn, true_fn)
    return chosen(*operands), [(other, tuple(operands))]


def _while_loop(cond_fn: Any, body_fn: Any, carried: Any, additional: Any, **_: Any) -> Outcome:
    is_first = True
    start = carried
    while cond_fn(*carried, *additional):
        carried, is_first = body_fn(*carried, *additional), False
    if is_first:
        carried = tree_map_only(torch.Tensor, torch.clone, tuple(carried))
    return carried, [(body_fn, (*start, *additional))] if is_first else []


def _scan(combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Outcome:
    carry, rows = init, []
    for place in range(xs[0].shape[0]):
        carry, row = combine_fn(*tree_leaves(carry), *[x[place] for x in xs], *additional_inputs)
        rows.append(row)
    return (carry, _stacked(rows)), []


def _map(function: Any, xs: Any, pos_args: Any) -> Outcome:
    return _stacked([function(*[x[place] for x in xs], *pos_args) for place in range(xs[0].shape[0])]), []


def _stacked(rows: list[Any]) -> Any:
    """A tree of tensors from one for each row."""
    structure = tree_flatten(rows[0])[1]
    columns = zip(*map(tree_leaves, rows), strict=True)
    return tree_unflatten([None if column[0] is None else torch.stack(column) for column in columns], structure)


_RUN: dict[Any, Callable[..., Any]] = {
    cond_op: _cond,
    while_loop_op: _while_loop,
    scan_op: _scan,
    map_impl: _map,
    flex_attention_op: sdpa_dense,
}
#: The ops that are recorded as Python.
CONTROL_FLOW = frozenset(_RUN)


class _Reads(TorchFunctionMode):
    """Finds the tensors from outside that functions read, as ghosts."""

    def __init__(self, ghost_of: Ghost, found: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._ghost_of, self._found = ghost_of, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self._read, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        ghost = self._ghost_of(tensor)
        if ghost is not None:
            self._found[id(ghost)] = ghost
        return tensor if ghost is None else self._stand_in(ghost)

    def _stand_in(self, ghost: torch.Tensor) -> torch.Tensor:
        return ghost


class _ReadsAside(_Reads):
    """The same for a function to which the call does not come: it runs on fake tensors, and nothing comes of it."""

    def __init__(self, ghost_of: Ghost, found: dict[int, torch.Tensor]) -> None:
        super().__init__(ghost_of, found)
        self._fakes: dict[int, torch.Tensor] = {}

    def _stand_in(self, ghost: torch.Tensor) -> torch.Tensor:
        if id(ghost) not in self._fakes:
            fake = torch.empty_strided(ghost.size(), ghost.stride(), dtype=ghost.dtype, device=ghost.device)
            self._fakes[id(ghost)] = fake.requires_grad_(ghost.requires_grad)
        return self._fakes[id(ghost)]


def _give_zeros(result: Any, reads: Iterable[torch.Tensor]) -> Any:
    """The results of an op, on which each of these tensors has an influence, if only none."""
    leaves, structure = tree_flatten(result)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    reached = set(_nodes_behind([leaves[place] for place in places]))
    others = [read for read in reads if gets_gradient(read) and get_gradient_edge(read).node not in reached]
    if others and places:
        joined = _Joined.apply(len(places), *[leaves[place] for place in places], *others)  # type: ignore[no-untyped-call]
        for place, leaf in zip(places, joined, strict=True):
            leaves[place] = leaf
    return tree_unflatten(leaves, structure)


def _nodes_behind(results: Iterable[torch.Tensor]) -> Iterator[Node]:
    stack = [get_gradient_edge(result).node for result in results if gets_gradient(result)]
    found = set(stack)
    while stack:
        node = stack.pop()
        yield node
        new = {following for following, _ in node.next_functions if following is not None} - found
        found |= new
        stack += new


class _Joined(torch.autograd.Function):
    """Results as they are, whose gradients are zeros for some other tensors."""

    @staticmethod
    def forward(ctx: Any, num_results: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.others = [(t.size(), t.dtype, t.device) for t in tensors[num_results:]]
        return tuple([result.detach() for result in tensors[:num_results]])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        zeros = [torch.zeros(size, dtype=dtype, device=device) for size, dtype, device in ctx.others]
        return None, *gradients, *zeros
