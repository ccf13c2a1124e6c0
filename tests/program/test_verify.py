"""The rules of a program: each catches a program that breaks it."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

import foregrad as fg
from foregrad.program.verify import RULES
from tests.compare import leaf

aten = torch.ops.aten


def wave(x, w):
    return torch.sin(x) * w, w * 2


def node(program, name):
    return next(n for n in program.graph.graph.nodes if n.name == name)


def calls_python(program):
    node(program, "sin").target = torch.sin


def writes_in_place(program):
    node(program, "sin").target = aten.sin_.default


def writes_past_its_schema(program):
    graph, x = program.graph.graph, node(program, "x")
    with graph.inserting_before(graph.output_node()):
        graph.call_function(aten.native_batch_norm.default, (x, None, None, x, x, True, 0.1, 1e-5))


def forgets_an_input(program):
    return replace(program, signature=replace(program.signature, inputs=program.signature.inputs[1:]))


def forgets_an_output(program):
    return replace(program, signature=replace(program.signature, outputs=program.signature.outputs[1:]))


def has_an_input_of_no_role(program):
    first, *others = program.signature.inputs
    return replace(program, signature=replace(program.signature, inputs=(replace(first, role="primal"), *others)))


def has_an_output_of_no_role(program):
    first, *others = program.signature.outputs
    return replace(program, signature=replace(program.signature, outputs=(replace(first, role="result"), *others)))


def returns_an_input(program):
    node(program, "mul").replace_all_uses_with(node(program, "x"))


def returns_a_view_of_an_input(program):
    node(program, "sin").target = aten.alias.default
    node(program, "mul").replace_all_uses_with(node(program, "sin"))


def returns_one_value_twice(program):
    node(program, "mul").replace_all_uses_with(node(program, "mul_1"))


def needs_a_tangent_in_forward(program):
    sin, tangent = node(program, "sin"), node(program, "tangent_0")
    sin.args = (tangent,)


def draws_where_no_chain_says_so(program):
    node(program, "sin").target = aten.rand_like.default


def recomputes_what_cannot_be(program):
    sin, x = node(program, "sin"), node(program, "x")
    sin.meta["recompute"], x.meta["is_written"] = CheckpointPolicy.MUST_RECOMPUTE, True


def has_an_unknown_mark(program):
    node(program, "sin").meta["recompute"] = "please"


BROKEN = {
    calls_python: "only ops are called",
    writes_in_place: "nothing is written in place",
    writes_past_its_schema: "nothing is written in place",
    forgets_an_input: "every input has a role and a name",
    forgets_an_output: "every output has a role and a name",
    has_an_input_of_no_role: "roles are known",
    has_an_output_of_no_role: "roles are known",
    returns_an_input: "results share no memory",
    returns_a_view_of_an_input: "results share no memory",
    returns_one_value_twice: "results share no memory",
    draws_where_no_chain_says_so: "draws and effects are in order",
    needs_a_tangent_in_forward: "forward does not wait for backward",
    recomputes_what_cannot_be: "what is marked can be recomputed",
    has_an_unknown_mark: "what is marked can be recomputed",
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_rule_is_named(damage):
    program = fg.capture(wave, leaf(3), leaf(3))
    program.verify()
    program = damage(program) or program
    with pytest.raises(fg.ProgramError, match=f"  {BROKEN[damage]}: "):
        program.verify()


def test_every_rule_has_a_program_that_breaks_it():
    assert set(BROKEN.values()) == set(RULES)


def test_all_broken_rules_are_told_at_once():
    program = fg.capture(wave, leaf(3), leaf(3))
    calls_python(program)
    with pytest.raises(fg.ProgramError) as caught:
        has_an_input_of_no_role(program).verify()
    assert "only ops are called" in str(caught.value)
    assert "roles are known" in str(caught.value)
