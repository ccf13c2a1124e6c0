"""Modules and parameters that someone else works on in C++: replicas, hooks of the engine, TorchScript."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import foregrad as fg


@pytest.mark.slow
def test_replicas_of_a_compiled_model_train_as_eager_and_other_ways_are_refused(tmp_path):
    """`DistributedDataParallel(fg.compile(model))`, and foregrad around the replicas, in two processes."""
    command = [sys.executable, Path(__file__).with_name("replicated.py")]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [*command, str(rank), tmp_path / "meet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=surroundings,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=300)[0].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(told)


def test_a_hook_on_the_node_that_accumulates_a_gradient_is_refused_in_a_step():
    """Libraries that average gradients register theirs there; the parameter itself does not know of it."""
    weight = nn.Parameter(torch.ones(3))
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    optimizer = torch.optim.SGD([weight], 0.1)

    @fg.step(weight, optimizer, backend="eager")
    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    node.register_hook(lambda *_: None)
    with pytest.raises(fg.CaptureError, match="hooks on its accumulator"):
        step(torch.ones(3))
    assert weight.grad is None


def test_a_live_graph_over_the_parameters_is_no_hook():
    """A result that is still held keeps the accumulators of its parameters, which have no hooks for that."""
    weight = nn.Parameter(torch.ones(3))
    held = (weight * 2).sum()
    optimizer = torch.optim.SGD([weight], 0.5)

    @fg.step(weight, optimizer, backend="eager")
    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    step(torch.ones(3))
    step(torch.ones(3))
    assert torch.equal(weight, torch.zeros(3))
    assert held.requires_grad


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, 3))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torch_jit_module_is_refused_in_one_sentence(make):
    script = make(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    with pytest.raises(fg.CaptureError, match=r"is a torch\.jit module"):
        fg.compile(script, backend="eager")
    with pytest.raises(fg.CaptureError, match=r"is a torch\.jit module"):
        fg.compile(nn.Sequential(nn.Linear(3, 3), script), backend="eager")(torch.ones(2, 3))
    with pytest.raises(fg.CaptureError, match=r"is a torch\.jit module"):
        fg.compile(lambda x: script(x), backend="eager")(torch.ones(2, 3))
    with pytest.raises(fg.CaptureError, match=r"is a torch\.jit module"):
        fg.capture(script, torch.ones(2, 3))


def test_a_step_found_in_a_cache_is_not_used_where_a_gradient_has_hidden_hooks(tmp_path):
    def train(hooked):
        weight = nn.Parameter(torch.ones(3))
        node = weight.expand_as(weight).grad_fn.next_functions[0][0]
        optimizer = torch.optim.SGD([weight], 0.1)
        if hooked:
            node.register_hook(lambda *_: None)

        @fg.step(weight, optimizer, backend="eager", cache=tmp_path)
        def step(x):
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()

        step(torch.ones(3))
        return step.origin.how

    assert [train(False), train(False)] == ["captured", "found without tracing"]
    with pytest.raises(fg.CaptureError, match="hooks on its accumulator"):
        train(True)


def test_looking_for_hidden_hooks_calls_no_hook_of_a_parameter(tmp_path):
    """A hook that runs after a gradient was accumulated would see a gradient that never was."""
    weight, seen = nn.Parameter(torch.ones(3)), []
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad))
    held = (weight * 2).sum()  # keeps the node that accumulates
    optimizer = torch.optim.SGD([weight], 0.1)

    @fg.step(weight, optimizer, backend="eager", cache=tmp_path / "programs")
    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    with pytest.raises(fg.CaptureError, match="puts a tensor into seen"):
        step(torch.ones(3))
    assert seen == []
    assert held.requires_grad


def test_hidden_hooks_are_found_beside_hooks_that_a_parameter_knows():
    weight = nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda parameter: None)
    node = (weight * 2).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: None)

    def f(x):
        (weight * x).sum().backward()

    with pytest.raises(fg.CaptureError, match="hooks on its accumulator"):
        fg.compile(f, backend="eager")(torch.ones(3))
    assert len(weight._post_accumulate_grad_hooks) == 1


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_of_a_quantized_layer_are_refused():
    """They are in C++, so that nobody would notice when the layer is loaded anew."""
    layer = torch.ao.nn.quantized.dynamic.Linear(3, 3)
    with pytest.raises(
        fg.CaptureError, match=r"linear_dynamic\.default takes a ScriptObject of C\+\+, such as packed weights"
    ):
        fg.compile(nn.Sequential(layer), backend="eager")(torch.ones(2, 3))
