"""Kernels of a graph in one file: each keeps its name, its includes and its arguments."""

import os

import pytest
import torch

from foregrad.backends import toolchain
from foregrad.backends.kernels.build import build_kernels, in_one_file, shared_out
from foregrad.torch_private.inductor_text import Kernel

ADD = """
#include <cmath>
static float more() { return 1.0f; }
extern "C"  void  kernel(const float* a, float* out) { out[0] = a[0] + more(); }
"""
SCALE = """
#include <cmath>
#include <stdexcept>
static float more() { return 2.0f; }
extern "C"  void  kernel(const float* a, int64_t n, float by, float* out) {
    if (n < 0) throw std::runtime_error("fewer than none");
    for (int64_t i = 0; i < n; i++) out[i] = a[i] * by * more();
}
"""


def test_every_kernel_has_a_namespace_and_each_header_comes_once():
    source = in_one_file([Kernel.of(ADD), Kernel.of(SCALE)])
    assert source.count("#include <cmath>") == 1
    assert source.index("#include <stdexcept>") < source.index("namespace kernel_0")
    assert 'extern "C"' not in source


def test_short_kernels_share_a_file_and_long_ones_are_shared_out():
    assert shared_out([100] * 5, 8) == [[0, 1, 2, 3, 4]]
    assert shared_out([100_000], 2) == [[0]]
    long = [30_000, 10_000, 20_000, 10_000]
    assert shared_out(long, 2) == [[0, 3], [2, 1]]
    assert sorted(place for places in shared_out(long, 64) for place in places) == [0, 1, 2, 3]


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
def test_kernels_take_tensors_and_numbers_and_raise():
    toolchain.prepare()
    made = build_kernels({"add": Kernel.of(ADD), "scale": Kernel.of(SCALE)}, "")()
    add, scale = made["add"], made["scale"]
    a, out = torch.tensor([1.5, 2.5]), torch.zeros(2)
    add(a, out)
    assert out.tolist() == [2.5, 0.0]
    scale(a, 2, 0.5, out)
    assert out.tolist() == [1.5, 2.5]
    with pytest.raises(RuntimeError, match="fewer than none"):
        scale(a, -1, 0.5, out)
    with pytest.raises(RuntimeError, match="another number of arguments"):
        add(a)
    with pytest.raises(TypeError):
        scale(a, "2", 0.5, out)
    assert out.tolist() == [1.5, 2.5]


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
def test_a_kernel_may_take_more_arguments_than_templates_may_be_deep():
    toolchain.prepare()
    names = [f"a{place}" for place in range(1200)]
    arguments, total = ", ".join(f"const float* {n}" for n in names), " + ".join(f"{n}[0]" for n in names)
    source = f'#include <cmath>\nextern "C" void kernel({arguments}, float* out) {{ out[0] = {total}; }}'
    (add,) = build_kernels({"add": Kernel.of(source)}, "")().values()
    out = torch.zeros(1)
    add(*[torch.ones(1)] * 1200, out)
    assert out.item() == 1200


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
def test_kernels_are_built_where_one_thing_runs_at_a_time(monkeypatch):
    from torch._inductor import codecache, config

    toolchain.prepare()
    monkeypatch.setattr(codecache, "LOCK_TIMEOUT", 5)  # a build that waits for itself does so for ten minutes
    name = f"only_{os.urandom(8).hex()}"  # never built before
    with config.patch(compile_threads=1):  # as on a machine with one core
        (made,) = build_kernels({name: Kernel.of(ADD.replace("more", name))}, "")().values()
    out = torch.zeros(1)
    made(torch.ones(1), out)
    assert out.item() == 2


def test_no_kernels_at_all():
    assert build_kernels({}, "")() == {}
