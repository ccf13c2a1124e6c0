"""Program: what was recorded, as a pure graph, with a name and a role for every value that enters or leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from foregrad.core.errors import GuardError
from foregrad.core.signature import Signature
from foregrad.functionalize.effects import Effects
from foregrad.functionalize.graph_inputs import Given
from foregrad.program.effect_chains import Ends, link, unlinked
from foregrad.program.printer import listing
from foregrad.program.recompute_marks import Which, has_marks, marked, marked_alike
from foregrad.program.split import Halves, split
from foregrad.program.verify import broken_rules, refuse
from foregrad.program.version_checks import Checks
from foregrad.record.ops import Alias
from foregrad.record.python.python_calls import PythonCall
from foregrad.record.questions import Question
from foregrad.record.trace import AnyInput, Wrapping
from foregrad.torch_private.pytree import TreeSpec, tree_flatten


@dataclass(frozen=True, eq=False)
class Calling:
    """How the values of a program hang together with the tensors of a call; not part of the listing."""

    inputs: tuple[Given, ...]  # for each input of the graph
    outputs: tuple[int | None, ...]  # for each output of the graph: the object that it is, or writes to
    gradients: tuple[AnyInput, ...]  # inputs for which there is an output of role "grad", in that order
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
    stored: tuple[tuple[str, Any], ...]  # what to put into modules and declared state, by name; `Ref`s for tensors
    grads: tuple[tuple[Any, Any], ...]  # the .grad to assign: to which tensor, which tensor or None; `Ref`s
    replaced_grads: dict[int, int]  # objects whose .grad is replaced and read by nobody, and what it is on entry
    retained: tuple[int, ...]  # objects, no leaves, that are to keep their gradient
    wrapping: Wrapping  # tensors that wrap others, at the edges
    questions: tuple[Question, ...]  # that Python has asked; their values are the outputs of role "answer", in order
    python_calls: tuple[PythonCall, ...]  # to make after it has run, on the outputs of role "python", in order
    homes: dict[str, tuple[int, Alias]]  # values that lie in the memory of an object once the call is over

    @staticmethod
    def of_graph(signature: Signature) -> Calling:
        """For a graph that is called by itself: on values, which are nobody's tensors."""
        return Calling(
            inputs=(None,) * len(signature.inputs),
            outputs=(None,) * len(signature.outputs),
            gradients=(),
            tangents=(),
            aliases={},
            effects=Effects(),
            results=(),
            structure=tree_flatten(())[1],
            leaves_grad_mode=True,
            live=(),
            backward_error=None,
            offset_sensitive=frozenset(),
            checks=Checks(),
            stored=(),
            grads=(),
            replaced_grads={},
            retained=(),
            wrapping=Wrapping(),
            questions=(),
            python_calls=(),
            homes={},
        )

    def with_ends(self, ends: Ends) -> Calling:
        """The same with the inputs and outputs that chains add."""
        inputs, outputs = (*self.inputs, *[None for _ in ends.inputs]), (*self.outputs, *[None for _ in ends.outputs])
        return replace(self, inputs=inputs, outputs=outputs)

    def without_ends(self, signature: Signature) -> Calling:
        """The same for a signature without chains, whose inputs and outputs come last."""
        inputs, outputs = self.inputs[: len(signature.inputs)], self.outputs[: len(signature.outputs)]
        return replace(self, inputs=inputs, outputs=outputs)


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
        return split(*unlinked(self.graph, self.signature), self.first_phase)

    @property
    def forward(self) -> fx.GraphModule:
        """The forward half: `(inputs) -> (outputs, writes, saved)`."""
        return self.halves.forward

    @property
    def backward(self) -> fx.GraphModule:
        """The backward half: `(saved, tangents) -> (gradients)`."""
        return self.halves.backward

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the whole graph on inputs and tangents, in the order of the signature; nothing is written or replayed.

        Tokens hold no data: they may be left out.
        """
        values = tuple(self.signature.filled(values))
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

    def recompute(self, which: Which, *, prefer: bool = False) -> Program:
        """The same program with these values marked: backward computes them again, from what their ops take.

        `which` are names from the listing, or a function of a node. What cannot be computed again is refused, or saved
        if it is only preferred. A random op draws the forward's numbers again.
        """
        return self._marked(which, CheckpointPolicy.PREFER_RECOMPUTE if prefer else CheckpointPolicy.MUST_RECOMPUTE)

    def save(self, which: Which, *, prefer: bool = False) -> Program:
        """The same program with these values marked: they are saved if backward needs them."""
        return self._marked(which, CheckpointPolicy.PREFER_SAVE if prefer else CheckpointPolicy.MUST_SAVE)

    def _marked(self, which: Which, policy: CheckpointPolicy) -> Program:
        before = self._broken()
        program = self.with_graph(marked(self.graph, which, policy, self.first_phase))
        refuse(self.name, [rule for rule in program._broken() if rule not in before])
        return program

    def marked_like(self, first: Program) -> Program:
        """A later program of the same recording with the marks of the first one, on which it depends what is kept."""
        if not has_marks(self.graph.graph) and not has_marks(first.graph.graph):
            return self
        return self.with_graph(marked_alike(self.graph, first.graph.graph, first.first_phase))

    def relinked(self) -> Program:
        """The program with chains that follow the order of its graph, for a pass that adds or moves random ops or
        effects on purpose."""
        graph, signature = unlinked(self.graph, self.signature)
        calling, ends = self.calling.without_ends(signature), link(graph.graph)
        signature = Signature((*signature.inputs, *ends.inputs), (*signature.outputs, *ends.outputs))
        return replace(self, graph=graph, signature=signature, calling=calling.with_ends(ends))

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
