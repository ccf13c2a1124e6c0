"""Devices other than the CPU: what is recorded, and what runs on `meta`, where eager can be the reference here.

`cuda` is captured from fake tensors; there need be no such device. In torch builds without it the autograd engine
cannot run on such tensors at all, so the reference is the program that the same function has on the CPU.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from foregrad.torch_private.fake_tensors import FakeTensor, FakeTensorMode

CUDA = torch.device("cuda", 0)
FAKES = FakeTensorMode()


def fake(*size, requires_grad=False, dtype=torch.float32):
    with FAKES:
        return torch.empty(size, device="cuda", dtype=dtype).requires_grad_(requires_grad)


def fake_module(module):
    """The module with parameters and buffers on a device that is not there."""
    for inner in module.modules():
        for name, tensor in inner._parameters.items():
            if tensor is not None:
                inner._parameters[name] = nn.Parameter(fake(*tensor.shape, dtype=tensor.dtype))
        for name, tensor in inner._buffers.items():
            if tensor is not None:
                inner._buffers[name] = fake(*tensor.shape, dtype=tensor.dtype)
    return module


def ops(program):
    return [str(node.target) for node in program.graph.graph.nodes if node.op == "call_function"]


def specs(program):
    """What the tensors of a program look like, and the states of generators; a state on cuda has two parts."""
    found = [node.meta["spec"] for node in program.graph.graph.nodes if node.meta.get("spec") is not None]
    return [spec for spec in found if str(spec) != "seed"]


def assert_on(program, device, reference):
    """The program is the reference, on another device."""
    assert ops(program) == ops(reference)
    assert {spec.device for spec in specs(program)} == {device}
    assert [(s.shape, s.stride, s.dtype) for s in specs(program)] == [
        (s.shape, s.stride, s.dtype) for s in specs(reference)
    ]


# -- meta runs, so eager is the reference -------------------------------------------------------------------


def look(value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad, value._version, value.is_leaf


def same_as_eager_on_meta(function, *make):
    """Results, gradients and written arguments look as in eager, at the first call and at the next."""
    compiled = fg.compile(function, backend="eager")
    for _ in range(2):
        seen = []
        for call in (function, compiled):
            args = [one() for one in make]
            results = call(*args)
            results = results if isinstance(results, tuple) else (results,)
            sources = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            if sources:
                torch.autograd.backward(sources)
            gradients = [a.grad if a.is_leaf else None for a in args]
            seen.append([look(v) for v in (*results, *args, *gradients)])
        assert seen[0] == seen[1]
    assert len(compiled.captures) == 1


def meta(*size, **options):
    return lambda: torch.empty(*size, device="meta", **options)


def writes_through_views(x, w):
    y = x @ w
    v = y.t()
    v.mul_(2)
    v.t_()
    v.add_(1)
    return v, y[1:], y.sum()


def makes_tensors(x):
    zeros = torch.zeros(3, device=x.device) + torch.arange(3, device=x.device) + x.new_zeros(3)
    return x * zeros + torch.tensor([1.0, 2.0, 3.0], device=x.device) + x.new_tensor([1, 2, 3])


def assigns(x, w):
    y = x @ w
    y[0] = 3.0
    y[1:2] = x[0]
    y[[0, 1]] = 1.0
    return y.sum(), y[[0, 2]]


META_CASES = {
    "arithmetic": (lambda x, w: torch.tanh(x @ w).sum(), meta(4, 3), meta(3, 3, requires_grad=True)),
    "writes through views": (writes_through_views, meta(4, 3), meta(3, 3, requires_grad=True)),
    "factories": (makes_tensors, meta(4, 3, requires_grad=True)),
    "a written argument": (lambda x: (x.add_(1), x[1:])[1], meta(4, 3)),
    "resized": (lambda x: torch.add(x, 1, out=torch.empty(0, device="meta")), meta(4, 3)),
    "assignments": (assigns, meta(4, 3), meta(3, 3, requires_grad=True)),
    "random": (lambda x: F.dropout(x) + torch.rand_like(x), meta(4, 3, requires_grad=True)),
    "a number on the CPU": (lambda x, s: x * s, meta(4, 3, requires_grad=True), lambda: torch.tensor(2.0)),
    "on the CPU until it is made": (lambda x: (x + 1, torch.zeros(3, device="meta") * 2), lambda: torch.ones(3)),
}


@pytest.mark.parametrize("name", META_CASES)
def test_a_compiled_call_runs_on_meta(name):
    same_as_eager_on_meta(*META_CASES[name])


def test_arguments_that_share_memory_without_data():
    base = torch.empty(4, device="meta")
    shifted = fg.compile(lambda x, y: (x.add_(1), y + 1)[1], backend="eager")
    shifted(base[:2], base[2:])
    shifted(base[:3], base[1:])
    apart = fg.capture(lambda x, y: (x.add_(1), y + 1)[1], base[:2], base[2:])
    shared = fg.capture(lambda x, y: (x.add_(1), y + 1)[1], base[:3], base[1:])
    assert "base" not in {i.role for i in apart.signature.inputs}
    assert "base" in {i.role for i in shared.signature.inputs}
    assert len(shifted.captures) == 2


def test_a_device_is_guarded():
    double = fg.compile(lambda x: x * 2, backend="eager")
    for _ in range(2):
        assert double(torch.ones(3)).device.type == "cpu"
        assert double(torch.ones(3, device="meta")).device.type == "meta"
    text = str(fg.explain(double))
    assert "2 captured programs" in text
    assert "is f32[3] meta" in text


def test_eager_refuses_to_copy_out_of_meta_and_so_does_capture():
    with pytest.raises(fg.CaptureError, match="no data"):
        fg.capture(lambda x: x.to("cpu"), torch.empty(3, device="meta"))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 16, width // 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, width, depth, words):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, ids):
        return F.cross_entropy(self.head(self.blocks(self.embed(ids))).flatten(0, 1), ids.flatten())


def test_a_model_larger_than_memory_is_captured_on_meta():
    with torch.device("meta"):
        model, ids = Stack(32768, 24, 50000), torch.zeros(64, 4096, dtype=torch.int64)
    assert sum(p.numel() * p.itemsize for p in model.parameters()) > 1e12
    program = fg.capture(model, ids)
    assert len(program.signature.outputs_of("grad")) == len(list(model.parameters()))


def test_a_model_on_meta_has_the_program_that_it_has_on_the_cpu():
    model, ids = Stack(32, 2, 50), torch.zeros(2, 8, dtype=torch.int64)
    shape = fg.capture(model.to("meta"), ids.to("meta"))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        reference = fg.capture(Stack(32, 2, 50), ids)
    assert [str(o) for o in shape.signature.outputs] == [
        str(o).replace("]", "] meta") for o in reference.signature.outputs
    ]


# -- cuda, from fake tensors --------------------------------------------------------------------------------

CUDA_CASES = {
    "arithmetic": lambda x, w: torch.tanh(x @ w).sum(),
    "writes through views": writes_through_views,
    "in a view that is transposed in place": lambda x, w: (x @ w)[1:].t_().add_(1).mul_(x[1:].t()).sum(),
    "random": lambda x, w: (torch.rand_like(x @ w) * torch.bernoulli(x)).sum(),
    "second derivative": lambda x, w: torch.autograd.grad((x @ w).square().sum(), w, create_graph=True)[0].sum(),
    "an out= that grows": lambda x, w: torch.add(x, 1, out=x.new_empty(0)),
}


@pytest.mark.parametrize("name", CUDA_CASES)
def test_a_program_on_cuda_is_the_one_of_the_cpu(name):
    function = CUDA_CASES[name]
    program = fg.capture(function, fake(4, 3), fake(3, 3, requires_grad=True))
    assert_on(program, CUDA, fg.capture(function, torch.ones(4, 3), torch.ones(3, 3, requires_grad=True)))


def test_a_tensor_that_is_there_already_is_not_moved():
    x, w = fake(4, 3), fake(3, 3, requires_grad=True)
    moved = fg.capture(lambda x, w: (x.to("cuda") @ w.cuda()).to(device="cuda:0").to(x).sum(), x, w)
    assert ops(moved) == ops(fg.capture(lambda x, w: (x @ w).sum(), x, w))
    written = fg.capture(lambda x: x.cuda().add_(1), x)
    assert [o.role for o in written.signature.outputs] == ["write"]


MODULES = {
    "BatchNorm2d": (nn.BatchNorm2d(3), (2, 3, 8, 8)),
    "Conv2d": (nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "MultiheadAttention": (nn.MultiheadAttention(8, 2), (5, 2, 8)),
    "TransformerEncoderLayer": (nn.TransformerEncoderLayer(8, 2, dropout=0.0), (5, 2, 8)),
    "LSTM": (nn.LSTM(8, 4), (5, 2, 8)),
    "Dropout": (nn.Dropout(), (4, 3)),
}


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("name", MODULES)
def test_modules_on_cuda(name):
    module, size = MODULES[name]
    args = [fake(*size)] * (3 if name == "MultiheadAttention" else 1)
    program = fg.capture(fake_module(module), *args)
    program.verify()
    assert {spec.device for spec in specs(program)} == {CUDA}
    assert len(program.signature.outputs_of("grad")) == len(list(module.parameters()))
    assert "meta" not in str(program)


def test_an_embedding_on_cuda():
    program = fg.capture(fake_module(nn.Embedding(10, 4)), fake(2, 3, dtype=torch.int64))
    assert "f32[10, 4] cuda:0" in str(program)
    assert {spec.device for spec in specs(program)} == {CUDA}


def test_tensors_that_the_function_makes_are_on_its_device():
    program = fg.capture(makes_tensors, fake(4, 3))
    made = {str(n.target): n for n in program.graph.graph.nodes if n.op == "call_function"}
    assert made["aten.zeros.default"].kwargs["device"] == CUDA
    assert made["aten.arange.default"].kwargs["device"] == CUDA
    assert made["aten.new_zeros.default"].meta["spec"].device == CUDA
    constants = [n for n in program.graph.graph.nodes if n.op == "get_attr"]
    values = [getattr(program.graph, str(n.target)).tolist() for n in constants]
    assert values == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    assert [str(next(iter(n.users)).target) for n in constants] == ["aten._to_copy.default"] * 2


def test_a_device_as_a_context():
    def inside(x):
        with torch.device(x.device):
            return x + torch.zeros(3) + torch.tensor([1.0, 2.0, 3.0]) + torch.zeros(3, device="cpu").to("cuda")

    for program in (fg.capture(inside, fake(4, 3)), fg.capture(inside, fake(4, 3))):
        made = [n for n in program.graph.graph.nodes if n.op == "call_function" and "device" in n.kwargs]
        assert [n.kwargs["device"].type for n in made] == ["cuda", "cuda", "cpu", "cuda"]
    with torch.device("cuda"):
        outside = fg.capture(lambda x: x + torch.zeros(3) + torch.tensor([1.0, 2.0, 3.0]), fake(4, 3))
    assert ops(outside) == ["aten.zeros.default", "aten.add.Tensor", "aten._to_copy.default", "aten.add.Tensor"]


def test_capture_inside_a_device_as_a_context():
    def shifts(x):
        y = x * 1
        y[1:].copy_(y[:-1].clone())
        y[::2].add_(torch.ones(2))
        return y

    plain = fg.capture(shifts, torch.ones(4))
    with torch.device("meta"):
        assert ops(fg.capture(shifts, torch.ones(4))) == ops(plain)
    with torch.device("cpu"):
        assert ops(fg.capture(shifts, torch.ones(4))) == ops(plain)


def test_lists_of_numbers_keep_their_numbers():
    program = fg.capture(assigns, fake(4, 3), fake(3, 3, requires_grad=True))
    constants = [n for n in program.graph.graph.nodes if n.op == "get_attr"]
    assert [getattr(program.graph, str(n.target)).tolist() for n in constants] == [[0, 1], [0, 2]]


def test_python_sees_the_device():
    def asks(x, w):
        y = x @ w
        return x.device, y.is_cuda, y.is_cpu, y.is_meta, y.get_device(), y.type(), y.cpu().device

    program = fg.capture(asks, fake(4, 3), fake(3, 3))
    assert program.calling.results == (CUDA, True, False, False, 0, "torch.cuda.FloatTensor", torch.device("cpu"))


def test_a_transfer_to_the_cpu_and_back_in_backward():
    program = fg.capture(lambda x, w: (x @ w).to("cpu").sum(), fake(4, 3), fake(3, 3, requires_grad=True))
    forth, back = [n for n in program.graph.graph.nodes if n.target is torch.ops.aten._to_copy.default]
    assert (forth.kwargs["device"].type, back.kwargs["device"]) == ("cpu", CUDA)
    assert str(program.signature.outputs[0]) == "output 0: f32[]"
    assert str(program.signature.outputs[1]) == "grad w: f32[3, 3] cuda:0"


def test_a_number_on_the_cpu_among_tensors_on_cuda():
    program = fg.capture(lambda x, s: x * s, fake(4, 3), torch.tensor(2.0, requires_grad=True))
    assert str(program.signature.outputs[0]) == "output 0: f32[4, 3] cuda:0"
    assert str(program.signature.outputs[1]) == "grad s: f32[]"


def test_two_devices_in_one_op_raise_what_eager_raises():
    with pytest.raises(RuntimeError, match=r"same device.*cuda:0 and cpu") as caught:
        fg.capture(lambda x, y: x + y, fake(4, 3), torch.ones(4, 3))
    assert "test_devices.py" in str(caught.value)


def test_a_shape_that_does_not_fit_raises():
    with pytest.raises(RuntimeError, match="must have same reduction dim"):
        fg.capture(lambda x: x @ x, fake(4, 3))


def test_integers_that_depend_on_no_input_are_known():
    program = fg.capture(lambda x: x * torch.arange(3, device=x.device).sum().item(), fake(3))
    assert 3 in [a for n in program.graph.graph.nodes for a in n.args]
    with pytest.raises(fg.CaptureError, match="is needed in Python"):
        fg.capture(lambda x: x * torch.linspace(0, 1, 5, device=x.device).sum().item(), fake(3))


REFUSED = {
    "shape depends on data": lambda x: x[x > 0],
    "cuda:0 and on cuda:1": lambda x: x.to("cuda:1"),
    "cuda:0 and on meta": lambda x: torch.zeros(3, device="meta"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    with pytest.raises(fg.CaptureError, match=words):
        fg.capture(REFUSED[words], fake(4, 3))


def test_autocast_is_refused():
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with pytest.raises(fg.CaptureError, match="autocast on cuda"):
            fg.capture(lambda x: x @ x, fake(3, 3))
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_a_checkpoint_without_its_check():
    def runs(x, w, **options):
        return checkpoint(lambda x: (x @ w).tanh() @ w, x, use_reentrant=False, **options).sum()

    x, w = fake(4, 3), fake(3, 3, requires_grad=True)
    with pytest.raises(fg.CaptureError, match="determinism_check"):
        fg.capture(runs, x, w)
    assert ops(fg.capture(runs, x, w, determinism_check="none")).count("aten.tanh.default") == 2


def test_capture_inside_a_fake_mode():
    x, w = fake(4, 3), fake(3, 3, requires_grad=True)
    with FAKES:
        inside = fg.capture(makes_tensors, x), fg.capture(writes_through_views, x, w)
    assert ops(inside[0]) == ops(fg.capture(makes_tensors, x))
    assert ops(inside[1]) == ops(fg.capture(writes_through_views, x, w))


def test_a_fake_tensor_on_the_cpu():
    with FAKES:
        x = torch.empty(4, 3, requires_grad=True)
    assert isinstance(x, FakeTensor)
    assert_on(
        fg.capture(lambda x: x.sin().sum(), x),
        torch.device("cpu"),
        fg.capture(lambda x: x.sin().sum(), torch.ones(4, 3, requires_grad=True)),
    )
