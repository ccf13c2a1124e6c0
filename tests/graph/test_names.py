"""Code moves over by changing the import: the names, the signatures and the documented examples of torch.

The examples are those of torch's pages, in other words; each runs with both modules.
"""

import inspect
import io
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
import torch

import foregrad as fg
from tests.graph.leaves import leaf
from tests.house.source import ROOT

BOTH = pytest.mark.parametrize("graph", [fg.graph, torch.autograd.graph], ids=["foregrad", "torch"])


def test_every_public_name_of_torch_is_there():
    assert set(torch.autograd.graph.__all__) <= set(fg.graph.__all__)
    assert all(getattr(fg.graph, name).__doc__ for name in fg.graph.__all__)


def test_the_page_shows_every_function_and_policy():
    page = (ROOT / "docs" / "graph.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    absent = [name for name in fg.graph.__all__ if name[0].islower() and f"fg.graph.{name}" not in code]
    assert absent == []


@pytest.mark.parametrize("name", torch.autograd.graph.__all__)
def test_signatures_are_those_of_torch(name):
    """What foregrad adds is named, and comes after."""
    ours, theirs = getattr(fg.graph, name), getattr(torch.autograd.graph, name)
    mine, given = (list(inspect.signature(one).parameters.values()) for one in (ours, theirs))
    assert [(p.name, p.kind, p.default) for p in mine[: len(given)]] == [(p.name, p.kind, p.default) for p in given]
    assert all(p.kind is p.KEYWORD_ONLY for p in mine[len(given) :])


def test_it_is_imported_when_it_is_used():
    code = "import sys, foregrad; assert 'foregrad.graph' not in sys.modules; foregrad.graph.walk"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'graphs'"):
        fg.graphs


@BOTH
def test_example_node(graph):
    a = torch.zeros(3, requires_grad=True)
    b = a.clone()
    assert isinstance(b.grad_fn, graph.Node)
    assert b.grad_fn.name() == "CloneBackward0"
    handle = b.grad_fn.register_hook(lambda inputs, outputs: (outputs[0] * 2,))
    b.sum().backward(retain_graph=True)
    assert a.grad.tolist() == [2, 2, 2]
    handle.remove()
    a.grad = None
    handle = b.grad_fn.register_prehook(lambda outputs: (outputs[0] * 4,))
    b.sum().backward(retain_graph=True)
    assert a.grad.tolist() == [4, 4, 4]


@BOTH
def test_example_gradient_edge(graph):
    a = leaf(2)
    b = a * 3
    loss = (b * b).sum()
    (by_tensor,) = torch.autograd.grad(loss, b, retain_graph=True)
    (by_edge,) = torch.autograd.grad(loss, graph.get_gradient_edge(b))
    assert torch.equal(by_tensor, by_edge)


@BOTH
def test_example_saved_tensors_hooks(graph):
    def pack(x):
        print("packing", x.tolist())
        return x.detach()

    def unpack(x):
        print("unpacking", x.tolist())
        return x

    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True) * 2
    with redirect_stdout(io.StringIO()) as printed:
        with graph.saved_tensors_hooks(pack, unpack):
            y = a * b
        y.sum().backward()
    assert sorted(printed.getvalue().splitlines()) == [
        "packing [1.0, 1.0]",
        "packing [2.0, 2.0]",
        "unpacking [1.0, 1.0]",
        "unpacking [2.0, 2.0]",
    ]


@BOTH
def test_example_save_on_cpu(graph):
    a, b, c = leaf(5), leaf(5), leaf(5)
    first = a * b
    with graph.save_on_cpu(pin_memory=False):
        second = first * c
    y = second * a
    y.sum().backward()
    assert torch.equal(a.grad, (2 * a * b * c).detach())


@BOTH
def test_example_disable_saved_tensors_hooks(graph):
    with (
        graph.disable_saved_tensors_hooks("saved tensor hooks are off"),
        pytest.raises(RuntimeError, match="saved tensor hooks are off"),
        graph.save_on_cpu(),
    ):
        pass


@BOTH
def test_example_register_multi_grad_hook(graph):
    a, b = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)
    c, d = a * b, a * b
    calls = []
    graph.register_multi_grad_hook((a, b, c, d), lambda grads: calls.append([g is not None for g in grads]))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    assert calls == [[True, True, True, False], [True, False, True, False]]


@BOTH
def test_example_allow_mutation_on_saved_tensors(graph):
    with graph.allow_mutation_on_saved_tensors():
        a = torch.ones(2, 3, requires_grad=True)
        b = a.clone()
        out = (b**2).sum()
        b.sin_()
        out.backward()
    assert torch.equal(a.grad, torch.full((2, 3), 2.0))


@BOTH
def test_increment_version(graph):
    """GR-8."""
    v, w = torch.ones(1), torch.ones(1)
    graph.increment_version(v)
    graph.increment_version([v, w])
    assert (v._version, w._version) == (2, 1)
    with torch.inference_mode():
        graph.increment_version(torch.ones(1))


@BOTH
def test_a_memory_budget_is_for_compiled_code(graph):
    """GR-9."""
    with pytest.raises(RuntimeError, match="compile region"):
        graph.region_activation_memory_budget(0.5)
    with pytest.raises(TypeError):
        graph.region_activation_memory_budget(True)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        graph.region_activation_memory_budget(1.5)


@BOTH
def test_switches_of_the_process(graph):
    """GR-10."""
    for switch in (graph.set_warn_on_accumulate_grad_stream_mismatch, graph.set_override_stale_capture_stream):
        assert switch(False) is None
    graph.set_warn_on_accumulate_grad_stream_mismatch(True)
