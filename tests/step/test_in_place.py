"""Ops in place: only where what they replace is dead, and all or nothing for ops on lists."""

import operator

import torch
from torch import fx, nn

import foregrad as fg
from foregrad.backends.eager import compile_graph
from foregrad.core.spec import Spec
from foregrad.passes.in_place import in_place

aten = torch.ops.aten


def graph_of(build, *inputs):
    """A graph whose nodes have specs, from a function of a graph and its placeholders."""
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in "abcd"[: len(inputs)]]
    graph.output(tuple(build(graph, *nodes)))
    values = dict(zip(nodes, (t.clone() for t in inputs), strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            values[node] = fx.Interpreter(fx.GraphModule({}, graph)).call_function(
                node.target, fx.map_arg(node.args, values.__getitem__), {}
            )
        value = values.get(node)
        node.meta["spec"] = Spec.of(value) if isinstance(value, torch.Tensor) else None
    return fx.GraphModule({}, graph)


def names(module):
    return [str(n.target).removeprefix("aten.") for n in module.graph.nodes if n.op == "call_function"]


def test_a_chain_runs_in_the_memory_of_its_input():
    def build(graph, a, b):
        scaled = graph.call_function(aten.mul.Tensor, (a, b))
        added = graph.call_function(aten.add.Tensor, (scaled, b))
        graph.call_function(aten.copy_.default, (a, added))
        return []

    module = graph_of(build, torch.ones(3), torch.full((3,), 2.0))
    assert names(in_place(module)) == ["mul_.Tensor", "add_.Tensor"]
    a = torch.ones(3)
    compile_graph(module, "forward")(a, torch.full((3,), 2.0))
    assert a.tolist() == [4.0] * 3


def test_old_contents_that_are_read_later_are_not_written_over():
    def build(graph, a, b):
        scaled = graph.call_function(aten.mul.Tensor, (a, b))
        late = graph.call_function(aten.sub.Tensor, (a, b))
        graph.call_function(aten.copy_.default, (a, scaled))
        return [late]

    module = graph_of(build, torch.ones(3), torch.full((3,), 2.0))
    assert names(in_place(module)) == ["mul.Tensor", "sub.Tensor", "copy_.default"]


def test_an_op_on_a_list_is_in_place_only_for_all():
    def build(graph, a, b):
        both = graph.call_function(aten._foreach_mul.Scalar, ([a, b], 3.0))
        first, second = (graph.call_function(torch.ops.aten.mul.Tensor, (a, 0.0)) for _ in range(2))
        items = [graph.call_function(operator.getitem, (both, i)) for i in (0, 1)]
        graph.call_function(aten.copy_.default, (b, items[1]))
        return [items[0], first, second]

    module = graph_of(build, torch.ones(3), torch.ones(3))
    a, b = torch.ones(3), torch.ones(3)
    tripled, *_ = compile_graph(module, "forward")(a, b)
    assert (a.tolist(), b.tolist(), tripled.tolist()) == ([1.0] * 3, [3.0] * 3, [3.0] * 3)


def test_a_parameter_that_is_read_after_the_optimizer_keeps_its_value_until_then():
    """The result of a fused optimizer is read by nothing, but its old weights are: one of them is in the way of all."""
    outcomes = []
    for is_step in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)

        def train(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            before = model.weight.detach().clone()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return (model.weight.detach() - before).norm(), loss.detach()

        run = fg.step(model, optimizer, backend="eager")(train) if is_step else train
        outcomes.append([run(torch.ones(4, 3)) for _ in range(4)])
    for expected, found in zip(*outcomes, strict=True):
        assert all(map(torch.equal, expected, found))
