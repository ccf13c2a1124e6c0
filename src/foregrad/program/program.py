"""Program: what was recorded, as a pure graph, with a name and a role for every value that enters or leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import fx

from foregrad.errors import GuardError
from foregrad.functionalize.effects import Effects
from foregrad.program.checks import Checks
from foregrad.program.printer import listing
from foregrad.program.split import Halves, split
from foregrad.program.verify import broken_rules, refuse
from foregrad.record.declared import Store
from foregrad.record.inputs import Lifted
from foregrad.record.numbers import Expression
from foregrad.record.trace import Alias
from foregrad.substrate import TreeSpec
from foregrad.words.signature import Signature
from foregrad.words.size import Formula, Size


@dataclass(frozen=True, eq=False)
class Calling:
    """How the values of a program hang together with the tensors of a call; not part of the listing."""

    inputs: tuple[
        Lifted | Expression | Size | Formula | None, ...
    ]  # for each input of the graph; None for tangents and kept values
    outputs: tuple[int | None, ...]  # for each output of the graph: the object that it is, or writes to
    gradients: tuple[Lifted, ...]  # inputs for which there is an output of role "grad", in that order
    tangents: tuple[int, ...]  # objects that the tangents belong to, in order
    aliases: dict[Alias, int]  # values that effects need: their place among the outputs
    effects: Effects
    results: tuple[Any, ...]  # leaves of the result: `Ref` to an object, or a plain value
    structure: TreeSpec
    leaves_grad_mode: bool
    live: tuple[int, ...]  # inputs of role "live": the object that each is
    backward_error: Exception | None
    offset_sensitive: frozenset[int]  # objects whose storage offset the graph relies on
    checks: Checks
    stored: tuple[Store, ...]  # what to put into modules and declared state; `Ref`s for tensors
    grads: tuple[tuple[int, int | None], ...]  # the .grad to assign: to which object, which object
    replaced_grads: dict[int, int]  # objects whose .grad is replaced and read by nobody, and what it is on entry
    retained: tuple[int, ...]  # objects, no leaves, that are to keep their gradient
    homes: dict[str, tuple[int, Alias]]  # values that lie in the memory of an object once the call is over


@dataclass(frozen=True, eq=False)
class Program:
    """A captured function: `graph` takes the inputs and tangents, and gives outputs, writes and gradients.

    `str(program)` is the listing. Passes are functions from program to program; `with_graph` makes the new one.
    """

    name: str
    graph: fx.GraphModule
    signature: Signature
    calling: Calling
    first_phase: int = 0

    @cached_property
    def halves(self) -> Halves:
        """Forward and backward, and what is saved between them."""
        return split(self.graph, self.signature, self.first_phase)

    @property
    def forward(self) -> fx.GraphModule:
        """The forward half: `(inputs) -> (outputs, writes, saved)`."""
        return self.halves.forward

    @property
    def backward(self) -> fx.GraphModule:
        """The backward half: `(saved, tangents) -> (gradients)`."""
        return self.halves.backward

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the whole graph on inputs and tangents, in the order of the signature; nothing is written or replayed."""
        mismatches = self.signature.mismatches(values)
        if mismatches:
            raise GuardError(
                f"{self.name} is called with inputs that it was not captured for:\n  "
                + "\n  ".join(mismatches)
                + "\nPass tensors as they were captured, or capture again with these."
            )
        return tuple(self.graph(*values))

    def with_graph(self, graph: fx.GraphModule) -> Program:
        """The same program with another graph of the same signature."""
        graph.graph.lint()
        graph.recompile()
        return replace(self, graph=graph)

    def apply(self, passes: tuple[Callable[[Program], Program], ...]) -> Program:
        """The program after each pass in turn, checked after each: a pass breaks no rule that held before."""
        program, before = self, self._broken() if passes else []
        for one in passes:
            program = one(program)
            refuse(self.name, [rule for rule in program._broken() if rule not in before])
        return program

    def verify(self) -> None:
        """Check every rule of a well-formed program; raises `ProgramError` with all that are broken."""
        refuse(self.name, self._broken())

    def _broken(self) -> list[str]:
        return broken_rules(self.graph.graph, self.signature, self.first_phase)

    def __str__(self) -> str:
        return self.listing({})

    def listing(self, notes: Mapping[str, str]) -> str:
        """The program as text, with notes above the ops that they name."""
        return listing(self.name, self.graph.graph, self.signature, notes)

    def __repr__(self) -> str:
        inputs, outputs = len(self.signature.inputs), len(self.signature.outputs)
        return f"<Program {self.name}: {inputs} inputs, {len(self.graph.graph.nodes)} nodes, {outputs} outputs>"
