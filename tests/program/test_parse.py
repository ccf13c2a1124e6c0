"""A listing can be parsed back, and a program can be written by hand."""

import pytest
import torch
from torch import fx

import foregrad as fg
from foregrad.core.signature import Input, Output, Signature
from foregrad.core.spec import Spec
from foregrad.program.parse import parse
from foregrad.program.program import Calling, Program
from tests.text.test_listings import PROGRAMS

aten = torch.ops.aten


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_listing_parses_to_a_program_that_prints_it(name):
    captured = fg.capture(*PROGRAMS[name]())
    parsed = parse(str(captured), constants_of(captured))
    assert str(parsed) == str(captured)
    assert targets(parsed) == targets(captured)
    parsed.verify()


def targets(program):
    return [node.target for node in program.graph.graph.nodes if node.op == "call_function"]


def overloads(x, y):
    return (
        (x * 2 + y * x).clamp(None, y),
        x.clamp_min(0.5),
        torch.bernoulli(x.sigmoid()),
        torch.zeros(0, 3),
        x.mul(3 + 1j),
    )


def test_overloads_that_a_listing_leaves_out_are_found_by_the_arguments():
    captured = fg.capture(overloads, torch.randn(3), torch.randn(3))
    assert targets(parse(str(captured))) == targets(captured)


def test_a_parsed_program_computes_what_the_captured_one_does():
    x, w, tangent = torch.randn(3, requires_grad=True), torch.randn(3), torch.randn(3)
    captured = fg.capture(lambda x, w: (x * w).sin().cumsum(0), x, w)
    parsed = parse(str(captured))
    for expected, found in zip(captured(x.detach(), w, tangent), parsed(x.detach(), w, tangent), strict=True):
        assert torch.equal(expected, found)


def dropped(x):
    return torch.nn.functional.dropout(x, 0.25)


def test_random_ops_and_their_tokens_are_parsed():
    captured = fg.capture(dropped, torch.randn(3, requires_grad=True))
    parsed = parse(str(captured))
    assert str(parsed) == str(captured)
    parsed.verify()


def test_marks_are_parsed():
    captured = fg.capture(dropped, torch.randn(3, requires_grad=True)).recompute(lambda node: node.name == "mul")
    assert "(recompute)" in str(captured)
    assert str(parse(str(captured))) == str(captured)


def test_a_program_can_be_written_by_hand():
    graph, vector = fx.Graph(), Spec((3,), (1,), torch.float32)
    x = graph.placeholder("x")
    x.meta.update(spec=vector, phase=0)
    doubled = graph.call_function(aten.mul.Tensor, (x, 2))
    doubled.meta.update(spec=vector, phase=0)
    graph.output((doubled,))
    signature = Signature((Input("input", "x", vector),), (Output("output", "0", vector),))
    program = Program("double", fx.GraphModule({}, graph), signature, Calling.of_graph(signature))
    program.verify()
    assert torch.equal(program(torch.ones(3))[0], torch.full((3,), 2.0))
    assert str(parse(str(program))) == str(program)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step", "line 1 of the listing: a listing begins with `program` and a name"),
        ("program f\n  inputs\n    input  x  f32[n]", "line 3 .* is no type of a tensor with plain sizes"),
        ("program f\n  forward\n    y = aten.sin(x)", "line 3 .* there is no value x before this line"),
        (
            "program f\n  inputs\n    input  x  f32[2]\n  forward\n    y = aten.sinus(x)  f32[2]",
            "line 5 .* no op aten.sinus",
        ),
        ("program f\n  forward\n    c = constant  f32[2]", "line 3 .* give it in constants="),
    ],
)
def test_what_cannot_be_parsed_is_said_with_its_line(text, message):
    with pytest.raises(fg.ForegradError, match=message):
        parse(text)


def constants_of(program):
    return {
        str(n.target): getattr(program.graph, str(n.target)) for n in program.graph.graph.nodes if n.op == "get_attr"
    }
