"""Nodes and edges: what they are, their order, where to find them, and which of them run."""

import re
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.counting import num_calls
from tests.graph.leaves import leaf


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mask = torch.ones(2)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_nodes_of_cpp_and_of_python_are_nodes():
    """GR-1."""
    x = leaf(2)
    for y in (x * 2, Double.apply(x), x.clone()[1:].mul_(2), torch.stack([x, x])):
        node = y.grad_fn
        assert isinstance(node, fg.graph.Node)
        assert isinstance(node, torch.autograd.graph.Node)
        assert node.name().endswith(("Backward0", "Backward", "CopySlices"))
        node.metadata["mine"] = 1
        assert y.grad_fn.metadata == {"mine": 1}
        assert node._sequence_nr() >= 0
        assert tuple(node._input_metadata[0].shape) == tuple(y.shape)
    assert not isinstance(x, fg.graph.Node)
    assert not isinstance("MulBackward0", fg.graph.Node)


def test_a_node_of_cpp_without_a_python_name_is_a_node():
    """GR-1; torch says that it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(_scripted)
    x = leaf(2)
    for _ in range(4):  # the first calls only look at what is passed
        y = scripted(x)
    assert isinstance(y.grad_fn, fg.graph.Node)
    assert not isinstance(y.grad_fn, torch.autograd.graph.Node)
    assert y.grad_fn in fg.graph.walk(y)


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def test_hooks_on_a_node_see_and_replace_gradients():
    """GR-1."""
    x = leaf(2)
    y = x.clone()
    handle = y.grad_fn.register_prehook(lambda grads: (grads[0] * 5,))
    y.sum().backward()
    assert x.grad.tolist() == [5, 5]
    handle.remove()
    seen = []
    y.grad_fn.register_hook(lambda inputs, outputs: (seen.append((inputs, outputs)), (inputs[0] * 3,))[1])
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == [3, 3]
    assert seen[0][1][0].tolist() == [1, 1]


def test_a_gradient_edge_stands_for_a_tensor():
    """GR-2."""
    x = leaf(2)
    y = Double.apply(x)
    edge = fg.graph.get_gradient_edge(y)
    assert isinstance(edge, fg.graph.GradientEdge)
    assert fg.graph.get_gradient_edge(x).node.name() == "torch::autograd::AccumulateGrad"
    assert torch.autograd.grad(y.sum(), edge)[0].tolist() == [1, 1]
    del y
    assert torch.autograd.grad(edge, x, torch.ones(2))[0].tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="does not require gradients"):
        fg.graph.get_gradient_edge(torch.ones(1))


def test_walk_gives_each_node_before_those_it_leads_to():
    x, w = leaf(3), leaf(3)
    y = (x * w).sin()
    outputs = {"loss": (y + x).sum(), "others": [y.exp(), torch.ones(1), None]}
    order = fg.graph.walk(outputs)
    place = {node: i for i, node in enumerate(order)}
    assert len(place) == len(order)
    assert all(place[node] < place[following] for node in order for following, _ in node.next_functions if following)
    assert [n.name() for n in order].count("torch::autograd::AccumulateGrad") == 2


def test_walk_gives_the_order_of_the_engine():
    x = leaf(3)
    a, b = x.sin() * x, x.exp()
    loss = (a + b.cos() + torch.stack([a, b]).sum(0)).sum()
    order, ran = fg.graph.walk(loss), []
    for node in order:
        node.register_prehook(lambda grads, name=node: ran.append(name))
    loss.backward()
    assert ran == order


def test_walk_needs_no_recursion():
    x = leaf(1)
    y = x
    for _ in range(100_000):
        y = y + 1
    assert len(fg.graph.walk(y)) == 100_001


def test_the_work_of_a_walk_grows_with_the_graph_and_no_faster():
    def work(length):
        y = leaf(1)
        for _ in range(length):
            y = y + y.detach() * y
        return num_calls(lambda: fg.graph.walk(y))

    assert work(2000) < 4.4 * work(500)


def test_walk_says_when_there_is_no_graph():
    with pytest.raises(ValueError, match="none of these requires grad"):
        fg.graph.walk(torch.ones(2))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)))


def test_find_by_name():
    loss = model()(torch.ones(3, 4)).sum()
    names = [n.name() for n in fg.graph.find(loss, "Addmm*")]
    assert names == ["AddmmBackward0"] * 2
    assert fg.graph.find(loss, re.compile("Gelu|LayerNorm")) == fg.graph.find(loss, "[GN]*[mu]Backward0")
    assert fg.graph.find(loss, "Nothing") == []


def test_find_by_module():
    net = model()
    with fg.graph.track_modules(net):
        loss = net(torch.ones(3, 4)).sum()
    assert [n.name() for n in fg.graph.find(loss, module="1")] == ["GeluBackward0"]
    assert [n.name() for n in fg.graph.find(loss, "*Norm*", module="2")] == ["NativeLayerNormBackward0"]
    assert {n.name() for n in fg.graph.find(loss, module="*")} >= {"AddmmBackward0", "GeluBackward0"}
    with pytest.raises(ValueError, match="track_modules"):
        fg.graph.find(net(torch.ones(3, 4)), module="1")


def test_modules_are_tracked_in_each_thread_and_after_an_error():
    class Breaks(nn.Module):
        def forward(self, x):
            if x is None:
                raise ValueError("no")
            return x.sin()

    net = nn.Sequential(Breaks(), nn.Tanh())
    with fg.graph.track_modules(net):
        with pytest.raises(ValueError, match="no"):
            net(None)
        y = net(leaf(2))
    assert [n.name() for n in fg.graph.find(y, module="0")] == ["SinBackward0"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_an_error_before_a_module_is_entered_is_the_users():
    net = nn.Sequential(nn.Tanh(), nn.Sigmoid())
    net[1].register_forward_pre_hook(lambda module, args: 1 / 0)
    with fg.graph.track_modules(net):
        with pytest.raises(ZeroDivisionError):
            net(leaf(2))
        y = net[0](leaf(2))
    assert [n.name() for n in fg.graph.find(y, module="0")] == ["TanhBackward0"]


def test_saved_tensors_by_name_and_size():
    x, w = leaf(3), leaf(3)
    by_name = {s.name: s for s in fg.graph.saved((x * w).grad_fn)}
    assert {name: str(s.spec) for name, s in by_name.items()} == {"self": "f32[3]", "other": "f32[3]"}
    assert by_name["self"].num_bytes == 12
    assert [str(s) for s in fg.graph.saved(Double.apply(x[:2]).grad_fn)] == ["tensors[0] f32[2]", "ctx.mask f32[2]"]
    for y in (x * w, Double.apply(x * 1), x[torch.tensor([0, 1])]):
        y.sum().backward()
        assert [one.name for one in fg.graph.saved(y.grad_fn)] in ([], ["ctx.mask"])


def test_will_run_names_the_nodes_of_a_backward():
    x, w = leaf(3), leaf(3)
    y = x * 2
    loss = (y.sin() * w.exp()).sum()
    for inputs, only_capture in ((None, False), ([x], False), ([w], False), ([y], False), ([y], True), ([x, y], True)):
        expected = fg.graph.will_run(loss, inputs, only_capture=only_capture)
        ran: list[object] = []
        handles = [node.register_hook(partial(note, ran, node)) for node in fg.graph.walk(loss)]
        if only_capture:
            torch.autograd.grad(loss, inputs, retain_graph=True)
        else:
            loss.backward(inputs=inputs, retain_graph=True)
        for handle in handles:
            handle.remove()
        assert ran == expected, (inputs, only_capture)
    assert "SinBackward0" not in [n.name() for n in fg.graph.will_run(loss, [w])]


def note(ran: list[object], node: object, *gradients: object) -> None:
    ran.append(node)


def test_programs_have_nodes_too():
    program = fg.capture(model(), torch.ones(3, 4))
    assert fg.graph.walk(program) == list(program.graph.graph.nodes)
    assert [n.name for n in fg.graph.find(program, "aten.addmm")] == ["addmm", "addmm_1"]
    assert {n.name for n in fg.graph.find(program, module="1")} == {"gelu", "gelu_backward"}
