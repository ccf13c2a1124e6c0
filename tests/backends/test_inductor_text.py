"""What foregrad expects of the text that the installed torch's Inductor writes: which of it is no longer so."""

import ast

import pytest
import torch

import foregrad as fg
from foregrad.backends import inductor, toolchain
from foregrad.backends.kernels import build
from foregrad.torch_private.inductor_text import Assigned, Called, Empty, Kernel, OnlyPython, View, steps_in

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")


def written_for(monkeypatch, function, *inputs):
    """The module that Inductor writes for a function, and its kernels."""
    found = []

    def noted(kernels, text, **options):
        found.append((text, kernels))
        return build.build_kernels(kernels, text, **options)

    monkeypatch.setattr(inductor, "build_kernels", noted)
    monkeypatch.setattr(inductor, "_is_light", lambda region: False)
    fg.compile(function, backend="inductor", cache=False, progress=False, regions="off")(*inputs)
    assert found, "Inductor no longer builds its kernels by AsyncCompile.cpp_pybinding and AsyncCompile.wait"
    return found[0]


def read(text):
    try:
        return steps_in(text)
    except OnlyPython:
        pytest.fail(f"Inductor writes something else than it did, so that no region is C++ any more:\n{text}")


def product_of_tanhs(x, w):
    return torch.tanh(x) @ torch.tanh(w).t()


def test_the_call_is_read_as_it_is_written(monkeypatch):
    text, kernels = written_for(monkeypatch, product_of_tanhs, torch.randn(4, 8), torch.randn(3, 8))
    call = read(text)
    assert len(call.taken) == 2, "the call no longer takes its inputs by `arg0_1, arg1_1 = args`"
    made = [one.value for one in call.steps if isinstance(one, Assigned)]
    assert all(isinstance(one, Empty) for one in made), (
        "memory is no longer made by `empty_strided_cpu(shape, stride, dtype)`"
    )
    called = [one for one in call.steps if isinstance(one, Called)]
    ours = [one for one in called if one.function in kernels]
    assert ours, "kernels are no longer called by the names of their variables in the module"
    (product,) = [one for one in called if one not in ours]
    assert product.function == "extern_kernels.mm", "a product is no longer `extern_kernels.mm(a, b, out=c)`"
    assert isinstance(product.out, str), "a product is no longer `extern_kernels.mm(a, b, out=c)`"
    views = [one for one in product.arguments if isinstance(one, View)]
    assert views == [View(views[0].of, (8, 3), (1, 8), 0)], (
        "a view is no longer `reinterpret_tensor(buf, shape, stride, offset)`"
    )
    assert call.returned == (product.out,), "the call no longer ends with `return (buf1, )`"


def test_an_added_product_says_how_it_is_scaled(monkeypatch):
    inputs = torch.randn(8), torch.randn(4, 8), torch.randn(8, 8)
    text, _ = written_for(monkeypatch, lambda b, x, w: torch.addmm(b, x, w), *inputs)
    (product,) = [one for one in read(text).steps if isinstance(one, Called)]
    assert product.function == "extern_kernels.addmm", "a product is no longer `extern_kernels.addmm(b, x, w, ...)`"
    assert len(product.arguments) == 3
    assert product.scales == (1, 1), "an added product is no longer called with `alpha=1, beta=1`"


def test_a_kernel_is_one_function_in_a_file_with_headers(monkeypatch):
    _, kernels = written_for(monkeypatch, torch.tanh, torch.randn(4, 8))
    for kernel in kernels.values():
        assert kernel.headers, "a file of a kernel no longer begins with `#include`"
        assert "#include" not in kernel.body, "a header of a kernel is no longer at the beginning of a line"
        assert 'extern "C"' not in kernel.body, 'a kernel no longer begins with `extern "C"` at the beginning of a line'
        assert kernel.body.count(" kernel(") == 1, "the function of a kernel is no longer called `kernel`"


def test_headers_and_the_name_in_c_are_taken_off():
    source = '#include <cmath>\nstatic int more();\nextern "C"  void  kernel(float* out)\n{\n}\n'
    assert Kernel.of(source) == Kernel(("#include <cmath>",), "static int more();\n  void  kernel(float* out)\n{\n}")


def test_convolutions_are_called_by_the_names_that_we_replace(monkeypatch):
    def gradient(x, w):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.conv2d(x, w, padding=1).square().sum(), x)[0]

    text, _ = written_for(monkeypatch, gradient, torch.randn(2, 32, 8, 8), torch.randn(32, 32, 3, 3))
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
    for name in ("extern_kernels.convolution", "torch.ops.aten.convolution_backward.default"):
        assert name in called, f"Inductor no longer calls {name}"


def test_the_call_needs_nothing_of_its_object(monkeypatch):
    text, _ = written_for(monkeypatch, lambda x: torch.sort(torch.tanh(x)).values, torch.randn(4, 8))
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    assert len(calls) == 1, "a module of Inductor's no longer defines one function `call`"
    names = {node.id for node in ast.walk(calls[0]) if isinstance(node, ast.Name)}
    assert "self" not in names, "the function `call` needs something of the object that it is a method of"
