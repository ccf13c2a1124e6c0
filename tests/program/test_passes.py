"""Programs are graphs that users run and transform."""

import pytest
import torch
from torch import fx, nn

import foregrad as fg
from tests.compare import compiled, leaf

aten = torch.ops.aten


def wave(x, w):
    return torch.sin(x) * w


def replacing(old, new):
    """A pass that calls another op."""

    def apply(program):
        for node in program.graph.graph.nodes:
            if node.target is old:
                node.target = new
        return program.with_graph(program.graph)

    return apply


def test_a_pass_changes_what_runs():
    f = compiled(wave, passes=[replacing(aten.sin.default, aten.exp.default)])
    x, w = leaf(3), leaf(3)
    assert torch.equal(f(x, w), torch.exp(x) * w)


def test_a_pass_sees_the_backward_too():
    """The derivative of sin is cos of the input; with exp in its place it is that of exp."""
    passes = [replacing(aten.sin.default, aten.exp.default), replacing(aten.cos.default, aten.exp.default)]
    x, w = leaf(3), leaf(3)
    compiled(wave, passes=passes)(x, w).sum().backward()
    assert torch.equal(x.grad, w.detach() * x.detach().exp())
    assert torch.equal(w.grad, x.detach().exp())


def test_passes_run_in_their_order():
    first, second = replacing(aten.sin.default, aten.cos.default), replacing(aten.cos.default, aten.neg.default)
    x = torch.randn(3)
    assert torch.equal(compiled(torch.sin, passes=[first, second])(x), -x)
    assert torch.equal(compiled(torch.sin, passes=[second, first])(x), torch.cos(x))


def test_passes_apply_to_modules():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(2, 3)
    with torch.no_grad():
        assert torch.equal(compiled(model, passes=[replacing(aten.relu.default, aten.neg.default)])(x), -model[0](x))


def test_a_pass_sees_each_new_capture():
    seen = []

    def look(program):
        seen.append(program.signature.inputs[0].spec.shape)
        return program

    f = compiled(wave, passes=[look], dynamic=False)
    for size in (2, 3, 2):
        f(torch.randn(size), torch.randn(size))
    assert seen == [(2,), (3,)]


def test_a_pass_that_breaks_a_rule_is_refused():
    f = compiled(wave, passes=[replacing(aten.sin.default, aten.sin_.default)])
    x = leaf(3)
    with pytest.raises(fg.ProgramError, match="nothing is written in place"):
        f(x, leaf(3))
    assert x._version == 0


def test_the_joint_graph_runs_as_a_plain_module():
    x, w, tangent = leaf(3), leaf(3), torch.randn(3)
    program = fg.capture(wave, x, w)
    assert isinstance(program.graph, fx.GraphModule)
    with torch.no_grad():
        results = program.graph(x, w, tangent)
    expected = wave(x, w)
    found = dict(zip([(o.role, o.name) for o in program.signature.outputs], results, strict=True))
    gradients = torch.autograd.grad(expected, (x, w), tangent)
    assert torch.equal(found["output", "0"], expected)
    assert torch.equal(found["grad", "x"], gradients[0])
    assert torch.equal(found["grad", "w"], gradients[1])


def test_forward_and_backward_run_as_plain_modules():
    """What backward takes is found by name among what forward takes and gives."""
    x, w, tangent = leaf(3), leaf(3), torch.randn(3)
    program = fg.capture(wave, x, w)
    forward, backward = program.forward, program.backward
    with torch.no_grad():
        results = forward(x, w)
        names = [n.name for n in forward.graph.output_node().args[0]]
        values = dict(zip(names, results, strict=True)) | {"x": x, "w": w, "tangent_0": tangent}
        gradients = backward(*[values[n.name] for n in backward.graph.nodes if n.op == "placeholder"])
    expected = wave(x, w)
    assert torch.equal(results[0], expected)
    for found, wanted in zip(gradients, torch.autograd.grad(expected, (x, w), tangent), strict=True):
        assert torch.equal(found, wanted)


def test_the_graph_of_a_module_takes_its_state_in_the_order_of_the_signature():
    model, x = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.randn(4, 3)
    program = fg.capture(model, x)
    state = {**dict(model.named_parameters()), **{name: b.clone() for name, b in model.named_buffers()}, "input": x}
    inputs = [state.get(i.name, torch.ones(4, 2)) for i in program.signature.inputs]
    with torch.no_grad():
        results = dict(zip([(o.role, o.name) for o in program.signature.outputs], program.graph(*inputs), strict=True))
    expected = model(x)
    expected.backward(torch.ones(4, 2))
    assert torch.equal(results["output", "0"], expected)
    assert torch.equal(results["write", "1.running_mean"], model[1].running_mean)
    assert torch.equal(results["grad", "0.weight"], model[0].weight.grad)


def test_a_pass_that_changes_a_program_in_its_place_is_checked_too():
    def writes(program):
        for node in program.graph.graph.nodes:
            if node.target is aten.mul.Tensor:
                node.target = aten.mul_.Tensor
        return program

    with pytest.raises(fg.ProgramError, match="nothing is written in place"):
        compiled(wave, passes=[writes])(leaf(3), leaf(3))


def test_a_pass_is_not_blamed_for_what_was_so_before():
    """Inputs of two dtypes in one memory: what is written to one is a view of what is written to the other."""

    def f(p, q):
        p.mul_(2)
        return p.sum()

    p = torch.randn(4)
    expected = p * 2
    compiled(f, passes=[lambda program: program])(p, p.view(torch.int32))
    assert torch.equal(p, expected)
