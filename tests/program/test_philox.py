"""Generators of GPUs are a seed and an offset: what a program shows of them, on a device that need not be there."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._prims.rng_prims import philox_rand_offset
from torch._subclasses.fake_tensor import FakeTensorMode

import foregrad as fg
from foregrad.core.spec import Spec
from foregrad.core.tokens import TOKEN_ROLES
from foregrad.program.philox import Gpu, offsets


def on_cuda(*shape):
    with FakeTensorMode():
        return torch.empty(shape, device="cuda", requires_grad=True)


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


def noisy(x):
    return F.dropout(DrawsInBackward.apply(x), 0.5) * torch.multinomial(torch.ones(8, device="cuda"), 8)


def test_rng_2_seed_and_offset_are_inputs_and_the_offset_is_an_output():
    """RNG-2: forward and backward have streams of their own."""
    program = fg.capture(noisy, on_cuda(1000, 8))
    program.verify()
    assert [str(i) for i in program.signature.inputs_of(*TOKEN_ROLES)] == [
        "rng cuda:0 seed: seed",
        "rng cuda:0 offset: offset",
        "rng in backward cuda:0 seed: seed",
        "rng in backward cuda:0 offset: offset",
    ]
    assert [str(o) for o in program.signature.outputs_of(*TOKEN_ROLES)] == [
        "rng cuda:0 offset: offset",
        "rng in backward cuda:0 offset: offset",
    ]
    assert offsets(program.graph.graph, Gpu(108, 2048)) == {"bernoulli": 4, "multinomial": None, "rand_like": 4}


@pytest.mark.parametrize("shape", [(1,), (255,), (257,), (1000, 8), (4096, 4096), (3, 10_000_019)])
@pytest.mark.parametrize("gpu", [Gpu(108, 2048), Gpu(46, 1024), Gpu(1, 256)])
def test_offsets_are_those_that_torch_counts(shape, gpu, monkeypatch):
    properties = SimpleNamespace(
        multi_processor_count=gpu.multiprocessors, max_threads_per_multi_processor=gpu.threads_per_multiprocessor
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert gpu.offset_of(Spec(shape, (), torch.float32)) == int(philox_rand_offset(torch.Size(shape)))


def test_nothing_is_drawn_for_an_empty_tensor():
    assert Gpu(108, 2048).offset_of(Spec((0, 3), (), torch.float32)) == 0
