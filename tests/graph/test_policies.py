"""Saved-tensor policies: gradients, sharing, errors, threads, and what the reports say. Bitwise unless said."""

import gc
import os
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from tests.graph.leaves import is_freed, leaf


class Elsewhere(fg.graph.Policy):
    """As `save_on_cpu` treats another device: everything is copied, whole."""

    prefetch = 1

    def store(self, elements):
        return elements.clone(), elements.nbytes

    def load(self, copy):
        return copy.data.clone()

    def load_ahead(self, copy):
        return SimpleNamespace(result=lambda: self.load(copy))


def policies(folder):
    return {
        "elsewhere": Elsewhere(),
        "disk": fg.graph.save_on_disk(folder),
        "cpu": fg.graph.save_on_cpu(),
        "pinned": fg.graph.save_on_cpu(pin_memory=True),
        "float64": fg.graph.save_as(torch.float64),  # nothing is wider: all is left alone
        "user": fg.graph.save_with(lambda t: t.tolist(), lambda v: torch.tensor(v)),
    }


EXACT = pytest.mark.parametrize("name", ["elsewhere", "disk", "cpu", "pinned", "float64", "user"])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Unflatten(1, (3, 8)), Mix(), nn.LayerNorm(8))


class Mix(nn.Module):
    """Views of one storage, permuted and expanded."""

    def forward(self, x):
        q, k, v = x.unbind(1)
        return (q * k).sin() @ v.t() @ x.transpose(0, 1)[0].exp() + v.expand(2, *v.shape).prod(0)


def gradients(net, x, loss=lambda y: y.square().sum()):
    return torch.autograd.grad(loss(net(x)), [*net.parameters(), x])


@EXACT
def test_gradients_are_those_of_no_policy(name, tmp_path):
    net, x = network(), torch.randn(5, 8, requires_grad=True)
    expected = gradients(net, x)
    with policies(tmp_path)[name] as policy:
        loss = net(x).square().sum()
    found = torch.autograd.grad(loss, [*net.parameters(), x], retain_graph=True)
    again = torch.autograd.grad(loss, [*net.parameters(), x])
    for e, f, a in zip(expected, found, again, strict=True):
        assert torch.equal(e, f)
        assert torch.equal(e, a)
    assert policy.report.tensors > 10
    assert policy.report.saved > 0


@EXACT
def test_second_derivatives_are_those_of_no_policy(name, tmp_path):
    x = torch.randn(4, 4, dtype=torch.float32, requires_grad=True)

    def second(context):
        with context:
            (first,) = torch.autograd.grad((x.sin() * x.t().exp()).sum(), x, create_graph=True)
            return torch.autograd.grad(first.square().sum(), x)[0]

    assert torch.equal(second(policies(tmp_path)[name]), second(torch.enable_grad()))


def test_one_storage_is_kept_once():
    x = torch.randn(6, 9, requires_grad=True) * 1
    with Elsewhere() as policy:
        q, k, v = x.chunk(3, dim=1)
        y = (q * k).sum() + (k * v).sum() + (x.t() * x.t()).sum() + x.exp().sum() * 0
        report = policy.report
    # x once, for its views and transposes, and the result of exp
    assert report.kept == 2 * x.nbytes
    assert report.saved > 4 * x.nbytes
    y.backward()
    del y, q, k, v
    assert policy.report.kept == 0


def test_a_small_view_does_not_keep_the_whole():
    x = torch.randn(1000, requires_grad=True) * 1
    with Elsewhere() as policy:
        y = x[10:20].exp() * x[10:20]
    assert policy.report.kept == 2 * 10 * 4
    assert torch.equal(*torch.autograd.grad(y.sum(), x), *torch.autograd.grad((x[10:20].exp() * x[10:20]).sum(), x))


def test_a_small_view_of_what_is_kept_is_kept_with_it():
    x = torch.randn(1000, requires_grad=True) * 1
    with Elsewhere() as policy:
        y = x.sin()[:5] * x[10:15]
    assert policy.report.kept == x.nbytes + 5 * 4  # the result of sin is not kept, but for five of its elements
    assert y.requires_grad


def test_a_storage_that_was_written_to_is_kept_again():
    x = leaf(4)
    y = x.clone()
    with Elsewhere():
        a = y.pow(2)  # saves y as it is
        y.mul_(10)
        b = y.pow(2)
    (g,) = torch.autograd.grad((a + b).sum(), x)
    assert torch.equal(g, 2 * x.detach() + 200 * x.detach())


def test_statistics_that_a_batch_norm_wrote_are_kept_again():
    """It gives them no new version: without a policy, the first gradient is that of the new statistics."""

    def run(policy):
        torch.manual_seed(0)
        norm, x = nn.BatchNorm1d(3), torch.randn(5, 3, requires_grad=True)
        with policy:
            first = norm.eval()(x).square().sum()
            (expected,) = torch.autograd.grad(first, x, retain_graph=True)
            norm.train()(torch.randn(5, 3) * 100)
            second = norm.eval()(x).square().sum()
        return expected, *torch.autograd.grad(first, x), *torch.autograd.grad(second, x)

    ours, eager = run(Elsewhere()), run(torch.enable_grad())
    assert torch.equal(ours[0], eager[0])
    assert torch.equal(ours[1], ours[0])
    assert torch.equal(ours[2], eager[2])
    assert not torch.equal(eager[1], eager[0])


def test_a_storage_at_the_address_of_one_that_is_gone_is_another():
    with Elsewhere():
        outputs = []
        for i in range(20):  # the allocator gives the same memory again and again
            x = torch.full((64,), float(i), requires_grad=True)
            y = x * 1
            outputs.append((x, y * y))
            del y
    for i, (x, z) in enumerate(outputs):
        assert torch.autograd.grad(z.sum(), x)[0][0] == 2 * i


def test_parameters_are_left_alone():
    net = nn.Linear(64, 64)
    with Elsewhere() as policy:
        y = net(torch.randn(1, 64, requires_grad=True))
    assert y.requires_grad
    assert policy.report.kept == 64 * 4
    assert policy.report.left_alone == net.weight.nbytes


def test_small_tensors_are_left_alone():
    with Elsewhere(min_bytes=100) as policy:
        leaf(10).exp(), leaf(30).exp()
    assert (policy.report.left_alone, policy.report.kept) == (40, 0)  # nothing holds on to the results


@EXACT
def test_what_was_left_alone_may_not_be_written_to(name, tmp_path):
    """Torch checks no version where there are hooks: its save_on_cpu gives the gradient at the new value."""
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))

    def run(context):
        x = leaf(1, 2)
        with context:
            y = net(x)
        with torch.no_grad():
            net.weight.mul_(3)
        return torch.autograd.grad(y.sum(), x)[0]

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(policies(tmp_path)[name])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(torch.enable_grad())
    assert not torch.equal(run(torch.autograd.graph.save_on_cpu()), torch.full((1, 2), 9.0))  # wrong, silently


def test_save_on_cpu_frees_what_is_on_the_cpu():
    """GR-4; under torch's, a result that is saved owns itself and is never freed."""

    def result(policy):
        with policy:
            return leaf(3).exp()

    assert is_freed(lambda: result(fg.graph.save_on_cpu()))
    assert not is_freed(lambda: result(torch.autograd.graph.save_on_cpu()))


def test_save_on_cpu_leaves_the_cpu_alone():
    """GR-4."""
    x = leaf(3)
    with fg.graph.save_on_cpu(pin_memory=True) as policy:
        y = (x * x).exp()
    y.sum().backward()
    assert policy.report.moved == policy.report.kept == 0
    assert policy.report.left_alone == policy.report.saved == 3 * 12


def test_views_keep_their_strides(tmp_path):
    """Torch's pinned copies lose them."""

    def stride(policy):
        with policy:
            y = (torch.ones(4, 6, requires_grad=True) * 1).t()[1:].sin()
        return y.grad_fn._saved_self.stride()

    assert stride(fg.graph.save_on_disk(tmp_path)) == stride(fg.graph.save_on_cpu(pin_memory=True)) == (1, 6)
    assert stride(torch.autograd.graph.save_on_cpu(pin_memory=True)) == (4, 1)


def test_an_op_that_fills_what_it_saved_is_refused():
    """`rrelu` in training; torch's hooks would copy memory that nobody has written to yet."""
    x = torch.randn(8, requires_grad=True)
    with Elsewhere():
        y = F.rrelu(x, training=True)
    with pytest.raises(RuntimeError, match="RreluWithNoiseBackward0 saves a tensor that its op fills afterwards"):
        y.sum().backward()
    with fg.graph.save_on_cpu():  # it is left where it is
        y = F.rrelu(x, training=True)
    assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], (y / x).detach())


class Device:
    """Stands for `torch.cuda`, and writes down what it is asked to do: there is none here to run it on."""

    def __init__(self):
        self.log = []
        self.main, self.side = SimpleNamespace(), SimpleNamespace()
        self.main.wait_event = lambda event: self.log.append(f"main waits for {event}")
        self.side.wait_stream = lambda stream: self.log.append("side waits for main" if stream is self.main else "?")
        self.side.record_event = lambda: self.log.append("side has copied") or "copy"

    def is_available(self):
        return True

    def current_stream(self, device):
        return self.main

    def Stream(self, device):
        return self.side

    def stream(self, stream):
        return torch.enable_grad()


def test_save_on_cpu_fetches_ahead_on_another_stream(monkeypatch):
    device = Device()
    monkeypatch.setattr(torch, "get_device_module", lambda name: device)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: device.log.append("main uses it"))

    class Moves(fg.graph.save_on_cpu):
        def takes(self, tensor):
            return True

    x = leaf(3)
    with Moves(pin_memory=True, prefetch=1) as policy:
        y = x.exp().exp()
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, torch.autograd.grad(x.exp().exp().sum(), x)[0])
    assert device.log == ["side waits for main", "side has copied", "main waits for copy", "main uses it"]
    assert policy.report.moved == 4 * 12


def test_copies_are_fetched_ahead():
    started = []

    class Watched(Elsewhere):
        prefetch = 2

        def load_ahead(self, copy):
            started.append(copy.size)
            return super().load_ahead(copy)

    with Watched():
        y = leaf(3).exp()[:2].exp()[:1].exp()  # each a piece of its own: 3, 2 and 1 elements
    y.sum().backward()
    assert started == [2, 3]


def test_files_go_with_the_graph(tmp_path):
    policy = fg.graph.save_on_disk(tmp_path)
    with policy:
        y = leaf(100).exp().sin().exp()
    files = [os.path.getsize(os.path.join(root, f)) for root, _, names in os.walk(tmp_path) for f in names]
    assert files == [400, 400]
    assert policy.report.kept == 800
    y.sum().backward()
    assert [f for _, _, names in os.walk(tmp_path) for f in names] == []
    del policy, y
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_files_go_when_the_forward_fails(tmp_path):
    def fails():
        with fg.graph.save_on_disk(tmp_path):
            y = leaf(100).exp()
            raise ValueError(f"stop {y.shape}")

    with pytest.raises(ValueError, match="stop"):
        fails()
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert torch.autograd.grad(leaf(2).exp().sum(), leaf(2), allow_unused=True) == (None,)  # no policy is on


def test_a_file_that_was_cut_short_is_no_gradient(tmp_path):
    with fg.graph.save_on_disk(tmp_path, prefetch=0):
        y = leaf(100).exp()
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(b"short")
    with pytest.raises(RuntimeError, match="395 bytes less"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.float16])
def test_files_hold_any_dtype(dtype, tmp_path):
    x = torch.randn(7, dtype=torch.float64).to(dtype).requires_grad_()
    y = x.exp() * x.sin()
    with fg.graph.save_on_disk(tmp_path):
        z = x.exp() * x.sin()
    one = torch.ones_like(y)
    assert torch.equal(torch.autograd.grad(y, x, one)[0], torch.autograd.grad(z, x, one)[0])


def test_conjugates_and_masks_and_indices(tmp_path):
    x = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
    r = torch.randn(6, requires_grad=True)

    def run():
        return (x.conj() * x.imag).abs().sum() + r.where(r > 0, -r)[torch.tensor([1, 1, 3])].prod()

    with fg.graph.save_on_disk(tmp_path):
        loss = run()
    for a, b in zip(torch.autograd.grad(loss, (x, r)), torch.autograd.grad(run(), (x, r)), strict=True):
        assert torch.equal(a, b)


def test_sparse_tensors_are_left_as_they_are(tmp_path):
    a = torch.eye(3).to_sparse().requires_grad_()
    b = torch.randn(3, 2, requires_grad=True)
    with fg.graph.save_on_disk(tmp_path):
        y = torch.sparse.mm(a, b)
    (g,) = torch.autograd.grad(y.sum(), b)
    assert torch.equal(g, torch.ones(3, 2))


def test_save_as_halves_the_memory_and_keeps_the_digits_of_its_dtype():
    x = torch.randn(1000, requires_grad=True)
    (expected,) = torch.autograd.grad(x.exp().sum(), x)
    with fg.graph.save_as(torch.bfloat16) as policy:
        y = x.exp()
    assert policy.report.kept == y.nbytes // 2
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, expected.bfloat16().float())
    with pytest.raises(TypeError, match="floating-point dtype"):
        fg.graph.save_as(torch.int8)


def test_save_as_keeps_what_its_dtype_cannot_hold():
    x = torch.full((300,), 20.0, requires_grad=True)  # exp(20) is more than float16 has
    with fg.graph.save_as(torch.float16) as policy:
        y = x.exp()
    assert policy.report.kept == y.nbytes
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach())


def test_save_as_leaves_integers_and_narrow_dtypes_alone():
    with fg.graph.save_as(torch.bfloat16) as policy:
        y = leaf(300).half().exp()
        z = leaf(300)[torch.arange(300)]
    assert policy.report.kept == 0
    assert y.dtype == torch.float16
    assert z.requires_grad


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_save_quantized_is_off_by_half_a_step_at_most(bits):
    x = torch.randn(1000, requires_grad=True)
    with fg.graph.save_quantized(bits) as policy:
        y = x.exp()
    assert policy.report.kept == 1024 * bits // 8 + 8 * 8
    (found,) = torch.autograd.grad(y.sum(), x)
    for block, exact in zip(found.split(128), y.detach().split(128), strict=True):
        step = (exact.max() - exact.min()) / (2**bits - 1)
        assert (block - exact).abs().max() <= step / 2 * 1.001


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_a_relu_passes_the_gradients_that_it_would_pass(bits):
    x = torch.randn(1000, requires_grad=True)
    with fg.graph.save_quantized(bits):
        y = x.relu()
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, (x > 0).float())


def test_save_quantized_keeps_what_it_cannot_scale():
    values = torch.full((256,), 3.0)
    values[7] = float("inf")
    x = values.requires_grad_()
    with fg.graph.save_quantized(4):
        y, z = x * x, (x * 0).clamp(min=2) * x
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g, 2 * x.detach())
    assert z.requires_grad
    with pytest.raises(ValueError, match="1, 2, 4 or 8 bits"):
        fg.graph.save_quantized(3)


def test_equal_values_are_quantized_exactly():
    x = torch.full((300,), 0.1, requires_grad=True)
    with fg.graph.save_quantized(1):
        y = x * x
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((300,), 0.2))


def test_a_pair_of_functions_sees_each_piece_once():
    seen = []

    def pack(t):
        seen.append(tuple(t.shape))
        return t.numpy().tobytes()

    x = torch.randn(3, 4, requires_grad=True) * 1
    with fg.graph.save_with(pack, lambda b: torch.frombuffer(bytearray(b), dtype=torch.float32)) as policy:
        y = x * x.t().t() + x.view(-1).exp().view(3, 4) * 0
    assert seen == [(12,), (12,)]
    assert policy.report.kept == 96
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 2 * x.detach())


def test_a_pair_that_keeps_the_tensor_itself_keeps_its_contents():
    x = leaf(3)
    y = x.clone()
    with fg.graph.save_with(lambda t: t, lambda t: t):
        z = y * y
    with torch.no_grad():
        y.zero_()
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], 2 * x.detach())


def test_a_pair_that_gives_back_something_else_is_refused():
    with fg.graph.save_with(lambda t: t, lambda t: t.double()):
        y = leaf(3).exp()
    with pytest.raises(RuntimeError, match=r"unpacked as f64\[3\], but was packed from f32\[3\]"):
        y.sum().backward()


def test_the_innermost_policy_counts():
    """GR-3."""
    x = leaf(200)
    with Elsewhere() as outer:
        with fg.graph.save_as(torch.bfloat16) as inner:
            y = x.exp()
            with fg.graph.saved_tensors_hooks(lambda t: t.detach() * 2, lambda t: t):
                z = x.exp()
        w = x.exp()
    assert (outer.report.tensors, inner.report.tensors) == (1, 1)
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], 2 * z.detach())
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach().bfloat16().float())
    assert torch.equal(torch.autograd.grad(w.sum(), x)[0], w.detach())


def test_hooks_can_be_forbidden():
    """GR-5."""
    with fg.graph.disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"), fg.graph.save_on_cpu():
            pass
        with (
            fg.graph.disable_saved_tensors_hooks("nor here"),
            pytest.raises(RuntimeError, match="nor here"),
            Elsewhere(),
        ):
            pass
    with Elsewhere(), pytest.raises(RuntimeError, match="too late"), fg.graph.disable_saved_tensors_hooks("too late"):
        pass
    with Elsewhere():
        leaf(1).exp()


def test_a_policy_serves_several_threads(tmp_path):
    policy = fg.graph.save_on_disk(tmp_path)
    shared = torch.randn(500, requires_grad=True) * 1
    results = {}

    def work(number):
        x = torch.full((500,), float(number), requires_grad=True)
        for _ in range(5):
            with policy:
                y = (x * shared.detach()).sin() * x
            (results[number],) = torch.autograd.grad(y.sum(), x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, found in results.items():
        x = torch.full((500,), float(number), requires_grad=True)
        assert torch.equal(found, torch.autograd.grad(((x * shared.detach()).sin() * x).sum(), x)[0])
    assert policy.report.kept == 0
    assert len(results) == 4


def test_an_error_in_backward_leaves_the_policy_usable(tmp_path):
    x = leaf(3)
    with fg.graph.save_on_disk(tmp_path) as policy:
        y = x.exp()
        z = y * y
    handle = y.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        z.sum().backward(retain_graph=True)
    handle.remove()
    (g,) = torch.autograd.grad(z.sum(), x)
    assert torch.equal(g, (2 * y * y).detach())
    assert policy.report.kept == 0


def test_a_policy_goes_with_its_graphs():
    def graph():
        with Elsewhere() as policy:
            y = leaf(3).exp()
        return weakref.ref(policy), y

    reference, y = graph()
    assert reference() is not None
    y.sum().backward()
    del y
    gc.collect()
    assert reference() is None


def test_a_checkpoint_and_dropout_and_autocast_work_inside(tmp_path):
    net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.BatchNorm1d(16))

    def run():
        torch.manual_seed(0)
        x = torch.randn(8, 16, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
            y = F.gelu(net(y.float())).float()
        return y, x

    y, x = run()
    (expected,) = torch.autograd.grad(y.square().sum(), x)
    with fg.graph.save_on_disk(tmp_path):
        y, x = run()
    assert torch.equal(torch.autograd.grad(y.square().sum(), x)[0], expected)


def test_saved_says_what_a_policy_made_of_a_tensor(tmp_path):
    with fg.graph.save_on_disk(tmp_path):
        y = leaf(3, 4).exp()
    (one,) = fg.graph.saved(y.grad_fn)
    assert (one.name, str(one.spec), one.policy, one.place) == ("result", "f32[3, 4]", "save_on_disk", "disk")
    assert one.num_bytes == 48
