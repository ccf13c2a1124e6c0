"""The Python around Inductor's kernels as C++, and small matrix products in it."""

import copy
import ctypes
import platform
import random
import subprocess
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.backends.cpp_wrapper import CallPlan, Result, ScratchMemory, native
from foregrad.backends.kernels import build as kernels
from foregrad.backends.kernels.buffer_layout import arranged, arranged_in_order
from foregrad.backends.kernels.products import PRODUCTS, Matrix, product_call

needs_compiler = pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")

MODULE = """
cpp_fused_0 = async_compile.cpp_pybinding([], '''source''')

class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        buf0 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
        cpp_fused_0(arg0_1, buf0)
        buf1 = empty_strided_cpu((4, 3), (3, 1), torch.float32)
        # a comment
        extern_kernels.mm(buf0, reinterpret_tensor(arg1_1, (8, 3), (1, 8), 0), out=buf1)
        del arg1_1
        {more}
        return (reinterpret_tensor(buf1, (3, 2), (2, 1), 6), None, arg0_1, )
"""
INPUTS = [torch.empty(4, 8), torch.empty(3, 8)]


def test_calls_of_kernels_and_products_become_one_function():
    made = native(MODULE.format(more="del buf0"), ["cpp_fused_0"], INPUTS)
    assert made is not None
    assert made.plan == CallPlan(
        made=(ScratchMemory("empty_strided_cpu((4, 3), (3, 1), torch.float32)", 48),),
        num_bytes=128,
        passed=(0, 1, 2, 3),
        results=(Result(2, (3, 2), (2, 1), 6, 4, False), None, Result(0, (4, 8), (8, 1), 0, 4, True)),
    )
    assert "    char* scratch = data[3];\n" in made.cpp
    assert "    kernel_0::kernel(Data{arg0_1 + 0}, Data{scratch + 0 + 0});\n" in made.cpp
    assert "Data{arg1_1 + 0}, nullptr, Data{buf1 + 0});\n" in made.cpp


def test_memory_is_made_as_the_only_tensor_that_is_returned_of_it():
    whole = MODULE.replace("(3, 2), (2, 1), 6", "(2, 6), (6, 1), 0")
    made = native(whole.format(more="del buf0"), ["cpp_fused_0"], INPUTS)
    assert made is not None
    assert made.plan.made == (ScratchMemory("empty_strided_cpu((2, 6), (6, 1), torch.float32)", 48),)
    assert made.plan.results[0] == Result(2, (2, 6), (6, 1), 0, 4, True)

    twice = native(whole.replace("None, arg0_1", "buf1").format(more="del buf0"), ["cpp_fused_0"], INPUTS)
    assert twice is not None
    assert twice.plan.made == (ScratchMemory("empty_strided_cpu((4, 3), (3, 1), torch.float32)", 48),)
    assert [r.is_whole for r in twice.plan.results] == [False, True]


def test_a_weight_is_sent_for_while_the_kernel_before_its_product_runs():
    made = native(MODULE.format(more="del buf0"), ["cpp_fused_0"], INPUTS)
    assert made is not None
    fetch, kernel, product = made.cpp.splitlines()[-4:-1]
    assert fetch == "    fetch_panel<8, 1, 8>(Data{arg1_1 + 0});"
    assert "kernel_0::kernel" in kernel
    assert "product<4, 3, 8," in product


@pytest.mark.parametrize(
    "more",
    [
        "buf2 = torch.ops.aten.sort.default(buf0)",
        "extern_kernels.bmm(buf0, buf0, out=buf1)",
        "extern_kernels.addmm(arg0_1, buf0, buf0, alpha=1, beta=0, out=buf1)",
        "extern_kernels.addmm(reinterpret_tensor(buf0, (4, 8), (1, 4), 0), buf0, buf0, alpha=1, beta=1, out=buf0)",
        "buf2 = empty_strided_cpu((s0, 8), (8, 1), torch.float32)",
        "buf2 = empty_strided_cpu((4000, 8000), (8000, 1), torch.float32)",
        "buf2 = _tensor_constant0",
        "cpp_fused_7(buf0)",
        "cpp_fused_0(arg0_1, 7)",
        "if buf0 is None: pass",
    ],
)
def test_what_only_python_can_do_stays_python(more):
    assert native(MODULE.format(more=more), ["cpp_fused_0"], INPUTS) is None


def test_products_that_a_library_does_as_well_are_left_to_it():
    def of(a, b, out):
        return product_call(Matrix(*a), Matrix(*b), Matrix(*out))

    assert of(((4, 8), (8, 1)), ((8, 3), (3, 1)), ((4, 3), (3, 1))) == "product<4, 3, 8, 8, 1, 3, 1, 3, -1>"
    assert of(((512, 512), (512, 1)), ((512, 512), (512, 1)), ((512, 512), (512, 1))) is None
    assert of(((1, 512), (512, 1)), ((512, 512), (512, 1)), ((1, 512), (512, 1))) is None  # each element is used once
    assert of(((1, 512), (512, 1)), ((512, 512), (1, 512)), ((1, 512), (512, 1))) is not None
    assert of(((4, 8), (8, 1)), ((8, 3), (6, 2)), ((4, 3), (3, 1))) is None  # no row and no column is dense
    assert of(((4, 8), (8, 1)), ((8, 3), (3, 1)), ((4, 3), (1, 4))) is None
    assert of(((4, 0), (1, 1)), ((0, 3), (3, 1)), ((4, 3), (3, 1))) is None


@pytest.mark.parametrize(("threads", "rows", "is_ours"), [(1, 16, True), (1, 128, False), (2, 16, False)])
def test_larger_products_of_few_rows_are_ours_where_a_library_has_no_threads(threads, rows, is_ours, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    a, b, out = Matrix((rows, 512), (512, 1)), Matrix((512, 2048), (1, 512)), Matrix((rows, 2048), (2048, 1))
    assert (product_call(a, b, out) is not None) == is_ours


@pytest.mark.parametrize("arrange", [arranged, arranged_in_order])
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.lists(st.integers(0, 12), min_size=1, max_size=3)), max_size=12))
def test_memory_that_is_used_in_the_same_time_lies_apart(arrange, drawn):
    roots = [_Root(num_bytes, sorted(uses)) for num_bytes, uses in drawn]
    places, length = arrange(roots)
    for one in roots:
        assert places[one] % 64 == 0
        assert places[one] + one.num_bytes <= length
        for other in roots:
            is_meanwhile = one.uses[0] <= other.uses[-1] and other.uses[0] <= one.uses[-1]
            if one is not other and is_meanwhile and one.num_bytes and other.num_bytes:
                first, second = sorted((one, other), key=places.__getitem__)
                assert places[first] + first.num_bytes <= places[second]


class _Root(SimpleNamespace):
    def __init__(self, num_bytes, uses):
        super().__init__(num_bytes=num_bytes, uses=uses)

    __hash__ = object.__hash__


@needs_compiler
@pytest.mark.parametrize("vectors", ["-march=native", "-march=native -mno-avx512f", ""])
def test_products_are_right_for_all_layouts_and_write_nothing_else(vectors, tmp_path):
    if "avx" in vectors and platform.machine() != "x86_64":
        pytest.skip("these are vectors of another processor")
    chance = random.Random(0)
    sizes = [
        (32, 128, 16),
        (1, 1, 1),
        (7, 33, 9),
        (13, 16, 8),
        (17, 512, 300),
        (5, 43, 264),
        (20, 10, 64),
        (1, 16, 520),
        (16, 70, 256),
        (33, 64, 48),
    ]
    sizes += [tuple(chance.randint(1, 40) for _ in range(3)) for _ in range(4)]
    cases = []
    for rows, columns, inner in sizes:
        a = Matrix((rows, inner), chance.choice([(1, rows), (inner, 1), (inner + 3, 1), (0, 1)]))
        for stride in ((1, inner), (columns, 1)):
            b, out = Matrix((inner, columns), stride), Matrix((rows, columns), (columns + 5, 1))
            biases = [None, *(Matrix(out.shape, (row, 1)) for row in (0, columns, columns + 2))]
            cases.append((a, b, out, chance.choice(biases)))
    calls = [product_call(*case) for case in cases]
    head = "(const float* a, const float* b, const float* bias, float* c)"
    functions = [f'extern "C" void f{i}{head} {{ {call}(a, b, bias, c); }}\n' for i, call in enumerate(calls)]
    source, made = tmp_path / "products.cpp", tmp_path / "products.so"
    source.write_text(PRODUCTS + "".join(functions))
    flags = ["-std=c++17", "-O2", *vectors.split(), "-fPIC", "-shared"]
    subprocess.run([toolchain.compiler(), *flags, str(source), "-o", str(made)], check=True)
    library = ctypes.CDLL(str(made))
    for place, (a, b, out, added) in enumerate(cases):
        left, right = (torch.randn(1 << 18).as_strided(m.shape, m.stride) for m in (a, b))
        bias = None if added is None else torch.randn(1 << 18).as_strided(added.shape, added.stride)
        result = torch.full((out.shape[0] + 1, out.stride[0]), 7.0)
        getattr(library, f"f{place}")(
            *(ctypes.c_void_p(None if t is None else t.data_ptr()) for t in (left, right, bias, result))
        )
        wanted = left.double() @ right.double() + (0 if bias is None else bias.double())
        torch.testing.assert_close(result[:-1, : out.shape[1]], wanted.float(), rtol=1e-4, atol=1e-4)
        assert (result[-1] == 7).all()
        assert (result[:, out.shape[1] :] == 7).all()


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU()) for _ in range(3))
        self.last = nn.Linear(24, 5)

    def forward(self, x, y):
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.last(x), y)


@needs_compiler
def test_a_small_model_is_a_few_functions_of_cpp(monkeypatch):
    found = []

    def noted(*args):
        found.append(native(*args))
        return found[-1]

    monkeypatch.setattr(kernels, "native", noted)
    torch.manual_seed(0)
    model = Blocks()
    theirs, x, y = copy.deepcopy(model), torch.randn(8, 24, requires_grad=True), torch.randint(5, (8,))
    ours = fg.compile(model, backend="inductor", cache=False, progress=False)
    for _ in range(2):
        ours(x, y).backward()
        mine, x.grad = x.grad, None
        theirs(x, y).backward()
        torch.testing.assert_close(mine, x.grad)
        x.grad = None
    for one, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert found
    assert all(one is not None for one in found)
