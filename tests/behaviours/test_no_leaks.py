"""Capture leaves no trace: no generator moves, no real tensor changes, nothing recorded stays behind."""

import gc
import random
import weakref

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import also_compiled, compiled, leaf


class Stop(Exception):
    pass


class Everything(nn.Module):
    """Writes buffers, draws numbers, keeps what it sees, and may fail at the end."""

    def __init__(self, fails=False):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.register_buffer("n", torch.zeros(()))
        self.fails = fails

    def forward(self, x):
        self.n.add_(1)
        y = self.drop(self.norm(self.linear(x))) + torch.randn(3) + torch.rand_like(x)
        with torch.no_grad():
            self.linear.bias.mul_(2)
        if self.fails:
            raise Stop
        return y.sum()


def capture(model, x):
    if model.fails:
        with pytest.raises(Stop):
            fg.capture(model, x)
    else:
        fg.capture(model, x)


def grad_of(t):
    return t.grad if t.is_leaf else None


def state(tensors):
    return [(id(t), t._version, t.requires_grad, grad_of(t), t.detach().clone()) for t in tensors]


def assert_state(before, tensors):
    for (identity, version, requires_grad, grad, values), t in zip(before, tensors, strict=True):
        assert (id(t), t._version, t.requires_grad) == (identity, version, requires_grad)
        assert grad_of(t) is grad
        assert torch.equal(t, values)


FAILS = pytest.mark.parametrize("fails", [False, True], ids=["", "after an exception"])


@FAILS
def test_capture_moves_no_generator(fails):
    model, x = Everything(fails), leaf(4, 3)
    before, python = torch.get_rng_state(), random.getstate()
    capture(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python


@also_compiled
def test_the_first_call_draws_what_eager_draws():
    def f(x):
        return torch.dropout(x, 0.5, True) + torch.randn(8)

    torch.manual_seed(7)
    expected = [f(torch.ones(8)), f(torch.ones(8))]
    torch.manual_seed(7)
    g = compiled(f)
    assert all(torch.equal(g(torch.ones(8)), e) for e in expected)


@FAILS
def test_capture_leaves_values_versions_and_grads(fails):
    model, x = Everything(fails), leaf(4, 3)
    x.grad = torch.ones(4, 3)
    model.linear.weight.grad = torch.ones(3, 3)
    tensors = [x, *model.parameters(), *model.buffers()]
    before = state(tensors)
    capture(model, x)
    assert_state(before, [x, *model.parameters(), *model.buffers()])


def test_capture_leaves_a_written_argument_alone():
    def f(x, w):
        x.mul_(w)
        x.t_()
        return x

    x, w = leaf(2, 2).clone(), leaf(2, 2)
    before, geometry = state([x, w]), x.stride()
    fg.capture(f, x, w)
    assert_state(before, [x, w])
    assert x.stride() == geometry


@FAILS
def test_module_attributes_hold_no_recorded_tensors(fails):
    model = Everything(fails)
    parameters = dict(model.named_parameters())
    capture(model, leaf(4, 3))
    assert all(parameters[name] is p for name, p in model.named_parameters())
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    assert {type(b) for b in model.buffers()} == {torch.Tensor}
    model.fails = False
    model(torch.randn(4, 3)).backward()
    assert model.n == 1


@FAILS
def test_modes_and_hooks_are_restored(fails):
    x = leaf(4, 3)
    capture(Everything(fails), x)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
    assert not x._backward_hooks
    assert torch.ones(2).sum().item() == 2


@pytest.mark.parametrize("mode", [True, False])
def test_grad_mode_is_restored_after_a_function_that_changes_it_fails(mode):
    def f(x):
        torch.set_grad_enabled(not mode)
        raise Stop

    with torch.set_grad_enabled(mode):
        with pytest.raises(Stop):
            fg.capture(f, leaf(2))
        assert torch.is_grad_enabled() is mode


def numbers():
    """A counter that a capture does not see moving."""
    yield from range(100)


@FAILS
def test_the_body_runs_once_for_capture(fails):
    runs = numbers()

    class Counting(Everything):
        def forward(self, x):
            next(runs)
            return super().forward(x)

    next(runs)
    capture(Counting(fails), leaf(4, 3))
    assert next(runs) == 2


def test_the_body_runs_once_for_many_calls():
    runs = numbers()

    def f(x):
        next(runs)
        return x.sin()

    next(runs)
    g = compiled(f)
    for _ in range(3):
        g(leaf(3)).sum().backward()
    assert next(runs) == 2


def test_what_the_function_keeps_is_not_used_as_a_real_tensor_unnoticed():
    """A recorded tensor that escapes through a list must not pass for a result: it answers with an error."""
    kept = []

    def f(x):
        y = x * 2
        kept.append(y)
        return y

    try:
        compiled(f)(torch.ones(2))
        value = kept[0].tolist()
    except (fg.ForegradError, RuntimeError):
        return
    assert value == [2.0, 2.0]


class Holder:
    kept = None


def test_a_tensor_stored_in_an_object_is_refused():
    holder = Holder()

    def f(x):
        holder.kept = x * 2
        return x + 1

    with pytest.raises(fg.CaptureError, match="holder"):
        compiled(f)(torch.ones(2))


def test_a_tensor_stored_in_a_variable_is_refused_and_the_variable_is_as_before():
    kept = torch.zeros(1)

    def f(x):
        nonlocal kept
        kept = x * 2
        return x + 1

    before = kept
    with pytest.raises(fg.CaptureError, match="kept"):
        compiled(f)(torch.ones(2))
    assert kept is before


def test_capture_keeps_no_argument_alive():
    gc.collect()
    x = leaf(3)
    ref = weakref.ref(x)
    program = fg.capture(lambda x: x.sin(), x)
    del x
    gc.collect()
    assert ref() is None
    assert program is not None


FREES = pytest.mark.parametrize("f", [lambda x: x * 2, lambda x: x.sin(), lambda x: (x.t(), x.exp())])
GRAD = pytest.mark.parametrize("grad", [True, False])


def argument_after_call(f, grad):
    x = torch.ones(2, 2, requires_grad=grad)
    ref = weakref.ref(x)
    f(x)
    return ref


@FREES
@GRAD
def test_the_first_call_keeps_no_argument(f, grad):
    ref = argument_after_call(compiled(f), grad)
    gc.collect()
    assert ref() is None


@FREES
@GRAD
def test_later_calls_free_their_arguments_at_once(f, grad):
    g = compiled(f)
    argument_after_call(g, grad)
    gc.collect()
    gc.disable()
    try:
        assert argument_after_call(g, grad)() is None
    finally:
        gc.enable()


@also_compiled
def test_backward_frees_what_was_saved():
    f = compiled(lambda x: x.sin().exp())
    f(leaf(3)).sum().backward()
    argument = leaf(3) * 1
    ref = weakref.ref(argument)
    out = f(argument)
    del argument
    out.sum().backward()
    assert ref() is None


def test_a_compiled_function_is_freed_with_its_programs():
    w = torch.ones(3)
    ref = weakref.ref(w)
    f = compiled(lambda x, w=w: x * w)
    f(leaf(3)).sum().backward()
    if f.options.cache is not None:
        f.options.cache.wait()  # for a check of what was found, which holds on to it
    del f, w
    gc.collect()
    assert ref() is None


def test_the_original_module_is_left_as_it_was():
    model = Everything()
    keys = set(vars(model))
    twin = compiled(model)
    twin(leaf(4, 3)).backward()
    assert set(vars(model)) == keys
    assert type(model) is Everything
    assert "forward" not in vars(model)


def test_a_custom_function_that_closes_over_a_tensor_is_freed():
    def run():
        kept = torch.ones(3)

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * kept

            @staticmethod
            def backward(ctx, gradient):
                return gradient * kept

        function = fg.compile(lambda x: Scale.apply(x), backend="eager")
        function(leaf(3)).sum().backward()
        return weakref.ref(kept)

    found = run()
    gc.collect()
    assert found() is None
