"""The `.grad` of inputs, and `backward()` inside the function: the ground for capturing whole training steps."""

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import (
    Gradients,
    also_compiled,
    assert_refused,
    assert_same,
    compiled,
    grads_of,
    leaf,
    refused,
    same_as_eager,
)


def with_grad(*shape):
    x = leaf(*shape)
    x.grad = torch.randn(shape)
    return x


# -- reading, writing and assigning -------------------------------------------------------------------------


def read(x):
    return x.grad * 2


def read_if_there(x):
    return x * 2 if x.grad is None else x.grad * 2


def write(x):
    x.grad.add_(1)
    x.grad[1:].mul_(0.5)
    return x * x.grad


def assign(x):
    x.grad = torch.full_like(x, 4.0)
    return x * 2


def assign_a_view(x):
    flat = torch.zeros(6)
    x.grad = flat[2:5]
    flat.add_(1)
    return flat


def assign_the_input_itself(x):
    x.grad = x.detach()
    return x * 2


def forget(x):
    x.grad = None
    return x * 2


def forget_then_assign_again(x):
    before = x.grad
    x.grad = None
    y = x * 2
    x.grad = before
    return y


def assign_to_a_result(x):
    y = x.detach() * 2
    y.grad = torch.ones(3)
    return y


CHANGES = [
    read,
    read_if_there,
    write,
    assign,
    assign_a_view,
    assign_the_input_itself,
    forget,
    forget_then_assign_again,
    assign_to_a_result,
]


@pytest.mark.parametrize("make", [leaf, with_grad, torch.randn])
@pytest.mark.parametrize("change", CHANGES)
def test_the_grad_of_an_input_is_as_in_eager(change, make):
    @same_as_eager
    def story(wrap):
        f = wrap(change)
        seen = []
        for _ in range(2):
            x = make(3)
            before = x.grad
            out = f(x)
            seen.append((out, x, before, x.grad, out.grad if out.is_leaf else None, f(x), x.grad))
        return seen

    story()


@same_as_eager
def test_a_grad_that_is_an_argument_too_is_one_tensor(wrap):
    def f(x, g):
        x.grad.add_(1)
        return g * 2

    x = with_grad(3)
    g = wrap(f)
    return g(x, x.grad), x.grad, g(x, torch.ones(3)), x.grad


@same_as_eager
def test_two_inputs_may_share_a_grad(wrap):
    def f(x, y):
        x.grad = y.grad
        x.grad.mul_(2)
        return x * y

    x, y = leaf(3), with_grad(3)
    g = wrap(f)
    return g(x, y), x.grad, y.grad, g(x, y), x.grad, y.grad


@same_as_eager
def test_a_grad_has_a_grad(wrap):
    def f(x):
        x.grad.grad.add_(1)
        return x * 2

    x = with_grad(3)
    x.grad.grad = torch.ones(3)
    return wrap(f)(x), x.grad, x.grad.grad


def test_a_grad_comes_and_goes_between_calls():
    f = compiled(read_if_there)
    x = leaf(3)
    for grad in (None, torch.ones(3), None, torch.zeros(3), torch.zeros(3)):
        x.grad = grad
        assert torch.equal(f(x), read_if_there(x))
    assert [c.reason for c in fg.explain(f).captures] == [
        "first call",
        "x.grad was None, is f32[3] of type Tensor",
    ]


@pytest.mark.parametrize("change", [assign, forget])
def test_an_assigned_grad_asks_for_no_capture_of_its_own(change):
    f = compiled(change)
    f(leaf(3)), f(with_grad(3))
    assert len(fg.explain(f).captures) == 1


def test_a_grad_that_nobody_looks_at_may_be_sparse():
    embedding = nn.Embedding(4, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    assert_same(lambda x: (embedding.weight.detach() * x).sum(), lambda: (leaf(3),))


# -- backward() inside --------------------------------------------------------------------------------------


def plain(model, x):
    loss = model(x).square().mean()
    loss.backward()
    return loss


def zero_to_none(model, x):
    model.zero_grad()
    return plain(model, x).detach()


def zero_in_place(model, x):
    model.zero_grad(set_to_none=False)
    return plain(model, x).detach()


def accumulate_twice(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    model(x * 2).sum().backward()


def clip_one_by_one(model, x):
    zero_to_none(model, x)
    return nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)


def clip_together(model, x):
    zero_in_place(model, x)
    return nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)


def descend(model, x):
    loss = zero_to_none(model, x)
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
    return loss


def descend_in_data(model, x):
    loss = zero_in_place(model, x)
    for p in model.parameters():
        if p.grad is not None:
            p.data.add_(p.grad, alpha=-0.1)
    return loss


def retain_in_the_middle(model, x):
    hidden = model[0](x)
    hidden.retain_grad()
    model[2](hidden.tanh()).sum().backward()
    return hidden, hidden.grad


def to_some_parameters(model, x):
    model(x).square().mean().backward(inputs=[model[0].bias])
    torch.autograd.backward([model(x).sum()], inputs=list(model[2].parameters()))


def penalize(model, x):
    model.zero_grad()
    model(x).square().mean().backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    penalty.backward()
    return penalty.detach()


STEPS = [
    plain,
    zero_to_none,
    zero_in_place,
    accumulate_twice,
    clip_one_by_one,
    clip_together,
    descend,
    descend_in_data,
    retain_in_the_middle,
    to_some_parameters,
    penalize,
]


def frozen():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    return model


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


MODELS = [lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), frozen, tied]


@pytest.mark.parametrize("make", MODELS, ids=["plain", "frozen", "tied"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_step_of_training_is_as_in_eager(step, make):
    @same_as_eager
    def story(wrap):
        model = make()
        f = wrap(lambda x: step(model, x))
        seen = []
        for number in range(3):
            out = f(torch.randn(5, 3))
            seen.append((out, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
            if number == 1:
                model.zero_grad()
        return seen, list(model.parameters()), grads_of(*model.parameters())

    story()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@same_as_eager
def test_a_grad_with_a_history(wrap):
    def f(x):
        x.pow(3).sum().backward(create_graph=True)
        return x.grad * 2

    x = leaf(3)
    out = wrap(f)(x)
    first = x.grad
    return out, Gradients([first]), Gradients(torch.autograd.grad((out * first).sum(), x))


@also_compiled
@same_as_eager
def test_a_grad_takes_the_layout_of_its_leaf(wrap):
    w = torch.randn(3, 4).t().requires_grad_()

    def f(x):
        (w * x).sum().backward()

    wrap(f)(torch.randn(4, 3))
    return w.grad.stride(), w.grad.clone()


@same_as_eager
def test_an_input_that_is_made_a_leaf_inside(wrap):
    def f(x):
        x.requires_grad_()
        x.square().sum().backward()
        return x.grad

    x = torch.randn(3)
    g = wrap(f)
    return g(x).clone(), g(x).clone(), grads_of(x)


@same_as_eager
def test_a_result_that_retains_its_grad(wrap):
    def f(x):
        y = x * 2
        y.retain_grad()
        return y

    x = leaf(3)
    y = wrap(f)(x)
    (y * 3).sum().backward()
    return y, grads_of(y, x)


@same_as_eager
def test_an_input_that_is_told_to_retain_its_grad(wrap):
    def f(x):
        x.retain_grad()
        return x.square().sum()

    w = leaf(3)
    x = w * 2
    wrap(f)(x).backward()
    return grads_of(x, w)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


@pytest.mark.parametrize("reads", [True, False])
def test_a_custom_function_that_takes_a_parameter_from_outside(reads):
    @same_as_eager
    def story(wrap):
        w = leaf(3, 3)

        def f(x):
            Product.apply(x, w).sum().backward()
            return w.grad * 2 if reads else x * 2

        g = wrap(f)
        return [(g(torch.randn(2, 3)), w.grad.clone()) for _ in range(3)]

    story()


def test_an_exception_after_backward_leaves_no_gradient():
    w = leaf(3, 3)

    def f(x):
        Product.apply(x, w).sum().backward()
        (x * w).sum().backward()
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        compiled(f)(torch.randn(3, 3))
    assert w.grad is None


# -- refused ------------------------------------------------------------------------------------------------


def test_a_result_that_retains_its_grad_beside_another_result_is_refused():
    def f(x):
        y = x * 2
        y.retain_grad()
        return y, (y * 3).sum()

    assert_refused(f, (leaf(3),), at="retain_grad()")


class ReadsGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g if ctx.x.grad is None else g + ctx.x.grad


def test_a_grad_that_backward_reads_is_refused_when_backward_runs():
    out = compiled(lambda x: ReadsGrad.apply(x))(leaf(3))
    with refused(ReadsGrad.backward, at="ctx.x.grad"):
        out.sum().backward()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


@same_as_eager
def test_a_custom_function_that_a_backward_inside_has_freed(wrap):
    def f(w):
        loss = Square.apply(w).sum()
        loss.backward()
        return loss

    w = torch.ones(3, requires_grad=True)
    loss = wrap(f)(w)
    first = w.grad.clone()
    loss.backward()
    return first


def test_a_tensor_with_a_history_from_outside_is_one_input():
    """While a function is recorded, torch's own way to attach a history is none of the user's Functions."""
    w = leaf(2).clone()
    program = fg.capture(lambda x: x.mul_(2) + w, torch.ones(2))
    assert len(program.signature.inputs_of("input", "closure", "param")) == 2
