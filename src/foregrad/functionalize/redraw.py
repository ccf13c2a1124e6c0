"""Redraw: a random op run again with the numbers that it drew before.

The forward keeps the state of the generator right before the op; backward runs the op on a generator of its own that is
put into this state, so that nobody else's generator moves.

rng_state = rng_state()
bernoulli = aten.bernoulli(x, 0.5)     in backward     bernoulli = replay(aten.bernoulli)(rng_state, x, 0.5)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from foregrad.core.default_generator import generator_as_it_was
from foregrad.core.spec import Spec
from foregrad.functionalize.pure_variants import Pure
from foregrad.record.ops import Op, aliases_in
from foregrad.torch_private.ops import OpOverload, schema_of


def rng_state(generator: torch.Generator | None = None) -> torch.Tensor:
    """The state of a generator, or of that which random ops on the CPU take by default."""
    return (torch.default_generator if generator is None else generator).get_state()


@dataclass(frozen=True)
class Redraw:
    """A random op that draws what it drew when the generator was in a state that it is given."""

    op: OpOverload | Pure

    @property
    def __name__(self) -> str:
        return f"replay_{self.op.__name__.partition('.')[0]}"

    def __call__(self, state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        op: Any = self.op if _place(_schema_op(self.op)) is not None else _with_generator(self.op)
        if op is None:
            return self._in_turn(state, args, kwargs)
        generator, place = torch.Generator(), _place(_schema_op(op))
        generator.set_state(state)
        if isinstance(place, int) and place < len(args):
            return op(*args[:place], generator, *args[place + 1 :], **kwargs)
        return op(*args, **{**kwargs, "generator": generator})

    def _in_turn(self, state: torch.Tensor, args: Any, kwargs: Any) -> Any:
        """An op that takes no generator draws from the default one, which is put back as it was."""
        with generator_as_it_was() as default:
            default.set_state(state)
            return self.op(*args, **kwargs)


def keeps_states(graph: fx.Graph) -> bool:
    """Whether what a graph draws is drawn again later."""
    return any(node.target is rng_state for node in graph.nodes)


def state_before(node: fx.Node) -> fx.Node:
    """A new node: the state of the generator right before a random op."""
    place = _place(_schema_op(node.target))
    positional = node.args[place] if isinstance(place, int) and place < len(node.args) else None
    generator = node.kwargs.get("generator", positional)
    with node.graph.inserting_before(node):
        state = node.graph.call_function(rng_state, () if generator is None else (generator,))
    state.meta = {key: node.meta[key] for key in ("phase", "origin") if key in node.meta}
    state.meta.update(spec=_state_spec(), key=("state", node.meta.get("key", node.name)))
    return state


def is_kept(op: Op) -> bool:
    """Whether the numbers of an op that a checkpoint repeats are kept: where they take no more room than a state, and
    are nothing but numbers. What is drawn elsewhere than on the CPU is kept in any case."""
    tensors, results = aliases_in([op.args, op.kwargs]), aliases_in(op.outputs)
    is_filled = op.func.namespace == "aten" and tensors == list(op.writes) and len(tensors) < 2
    is_small = sum(alias.spec.num_bytes for alias in results) <= _state_spec().num_bytes
    return (is_filled and is_small) or any(alias.storage.device.type != "cpu" for alias in results)


@cache
def _state_spec() -> Spec:
    return Spec.of(torch.default_generator.get_state())


def _schema_op(target: Any) -> Any:
    return target.op if isinstance(target, Pure) else target


@cache
def _place(op: OpOverload) -> int | str | None:
    """Where an op takes a generator: a position, a name, or nowhere."""
    for position, argument in enumerate(schema_of(op).arguments):
        if "Generator" in str(argument.type):
            return argument.name if argument.kwarg_only else position
    return None


@cache
def _with_generator(op: OpOverload | Pure) -> OpOverload | None:
    """The overload that does the same and takes a generator, such as `rand.generator` for `rand`."""
    if isinstance(op, Pure):
        return None
    namespace, name = schema_of(op).name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    for overload in packet.overloads():
        found: OpOverload = getattr(packet, overload)
        without = [a for a in _arguments(found) if a[0] != "generator"]
        if without != _arguments(found) and without == _arguments(op) and not schema_of(found).is_mutable:
            return found
    return None


def _arguments(op: OpOverload) -> list[tuple[str, str, bool]]:
    return [(a.name, str(a.type), a.kwarg_only) for a in schema_of(op).arguments]
