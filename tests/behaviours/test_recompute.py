"""Values that are computed again in backward; RNG-3 and W1: a random op draws the numbers of the forward again."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from tests.compare import BACKEND, HigherGradients, _check, _tell, also_compiled, compiled, grads_of, leaf

EVERYTHING = (lambda program: program.recompute(lambda node: True, prefer=True),)


def only(*names):
    return (lambda program: program.recompute(names),)


def same_when_recomputed(*marks):
    """A test of a story that is told eagerly, and compiled with each of these passes."""

    def decorate(story):
        def test():
            expected = _tell(lambda: story(lambda target: target))
            for passes in marks or (EVERYTHING,):
                wrap = functools.partial(compiled, passes=passes)
                _check(expected, _tell(functools.partial(story, wrap)), "the story")

        test.__doc__, test.pytestmark = story.__doc__, getattr(story, "pytestmark", [])
        return test

    return decorate


def dropped(x, w):
    hidden = functional.dropout((x @ w).sin(), 0.5)
    return functional.dropout(hidden.exp(), 0.3).cos() * w.sum()


MASK_1, MASK_2 = ("empty_like", "bernoulli", "div"), ("empty_like_1", "bernoulli_1", "div_1")


def trained(wrap):
    x, w = leaf(4, 4), leaf(4, 4)
    out = wrap(dropped)(x, w)
    after_forward = torch.get_rng_state()
    out.backward(torch.ones(4, 4))
    return out, grads_of(x, w), after_forward, torch.get_rng_state()


@also_compiled
@same_when_recomputed()
def test_w1_a_recomputed_mask_is_the_mask_of_the_forward(wrap):
    return trained(wrap)


@same_when_recomputed(only(*MASK_1), only(*MASK_2), only("sin", "exp"))
def test_w1_of_two_masks_one_alone_is_recomputed(wrap):
    return trained(wrap)


@same_when_recomputed()
def test_rng_3_two_forwards_before_two_backwards(wrap):
    f, x, w = wrap(dropped), leaf(4, 4), leaf(4, 4)
    first, second = f(x, w), f(x, w)
    torch.rand(3)
    second.sum().backward()
    torch.rand(3)
    first.sum().backward()
    return first, second, grads_of(x, w), torch.get_rng_state()


@same_when_recomputed()
def test_rng_3_a_backward_that_is_run_twice(wrap):
    x, w = leaf(4, 4), leaf(4, 4)
    out = wrap(dropped)(x, w).sum()
    out.backward(retain_graph=True)
    torch.rand(3)
    out.backward()
    return out, grads_of(x, w), torch.get_rng_state()


@same_when_recomputed(EVERYTHING, only(*MASK_1))
def test_rng_3_second_derivatives(wrap):
    x, w = leaf(4, 4), leaf(4, 4)
    first = torch.autograd.grad(wrap(dropped)(x, w).sum(), (x, w), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))
    return HigherGradients(first), HigherGradients(second), torch.get_rng_state()


@same_when_recomputed()
def test_rng_3_second_derivatives_of_a_checkpoint(wrap):
    x = leaf(4)
    f = wrap(lambda x: checkpoint(lambda x: x.tanh() * torch.rand_like(x), x, use_reentrant=False))
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return first.detach(), HigherGradients(torch.autograd.grad(first.sum(), x))


@same_when_recomputed()
def test_rng_3_a_backward_from_some_results(wrap):
    def f(x):
        return functional.dropout(x.sin()).exp(), functional.dropout(x.cos()).exp()

    x = leaf(4)
    outs = wrap(f)(x)
    return [torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for out in reversed(outs)]


@same_when_recomputed()
def test_rng_3_a_generator_of_the_users(wrap):
    generator = torch.Generator().manual_seed(3)

    def f(x):
        noise = torch.rand(4, generator=generator) * x.exp()
        return (noise * torch.bernoulli(x.sigmoid(), generator=generator)).sin()

    f, x = wrap(f), leaf(4)
    outs = [f(x), f(x)]
    state = generator.get_state()
    sum(out.sum() for out in outs).backward()
    return outs, grads_of(x), state, generator.get_state(), torch.get_rng_state()


@same_when_recomputed()
def test_rng_3_every_way_to_draw(wrap):
    def f(x):
        y = x.exp() * torch.rand(4, 4) + torch.randn_like(x) * x.sin()
        y = y.sin() * torch.empty(4, 4).normal_(1.0, 2.0) + y[torch.randperm(4)].cos()
        y = y * torch.bernoulli(x.sigmoid()) + torch.randint(0, 9, (4, 4)) * y.sin()
        y = y * torch.empty_like(y).t().uniform_().exp() + functional.rrelu(y, training=True)
        return (y * x.softmax(1).multinomial(4).float()).sin() * torch.normal(x.exp(), 0.5)

    x = leaf(4, 4, dtype=torch.float64)  # the sines of large numbers would show the rounding of short ones
    out = wrap(f)(x)
    out.sum().backward()
    return out, grads_of(x), torch.get_rng_state()


@same_when_recomputed()
def test_an_op_that_takes_no_generator(wrap):
    def f(x):
        out, mask = torch.native_dropout(x.exp(), 0.5, True)
        return out.sin() * mask

    x = leaf(40)
    out = wrap(f)(x)
    torch.rand(3)
    out.sum().backward()
    return out, grads_of(x), torch.get_rng_state()


def test_rng_3_threads_do_not_disturb_each_other():
    """Eight threads, each with a generator of its own: what a backward draws again moves nobody else's."""

    def f(x, generator):
        return (x.exp() * torch.rand(64, generator=generator)).sin().sum()

    def tell(function, number):
        generator, x = torch.Generator().manual_seed(number), torch.full((64,), 0.1 * number, requires_grad=True)
        for _ in range(20):
            function(x, generator).backward()
        return x.grad, generator.get_state()

    def run(make):
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(tell, [make() for _ in range(8)], range(8)))

    before = torch.get_rng_state()
    found = run(lambda: fg.compile(f, backend="eager", passes=EVERYTHING))
    assert torch.equal(before, torch.get_rng_state())
    for one, other in zip(run(lambda: f), found, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_rng_3_a_backward_that_draws_again_during_the_capture_of_another_thread():
    """It needs the default generator in a state of its own, and puts it back; the capture does not notice."""
    x = leaf(40)
    out = fg.compile(lambda x: torch.native_dropout(x.exp(), 0.5, True)[0].sin(), backend="eager", passes=EVERYTHING)(x)
    backward = threading.Thread(target=lambda: out.sum().backward())

    def f(x):
        backward.start()
        backward.join()
        return functional.dropout(x)

    state = torch.get_rng_state()
    fg.capture(f, x.detach())
    assert x.grad is not None
    assert torch.equal(state, torch.get_rng_state())


@same_when_recomputed()
def test_a_backward_inside_autocast(wrap):
    """What is computed again has its casts in the program; what backward computes first is cast as in eager."""

    def f(x, w):
        return (x @ w).sin().exp()

    x, w = leaf(4, 4), leaf(4, 4)
    out = wrap(f)(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        out.sum().backward()
    return out, grads_of(x, w)


# --- what cannot be computed again --------------------------------------------------------------------------


def test_what_the_call_writes_to_is_not_computed_from_again():
    def f(x):
        y = x.exp()
        x.add_(1)
        return y.sin()

    with pytest.raises(
        fg.ProgramError, match="exp cannot be recomputed: it is computed from x, which the call writes to"
    ):
        compiled(f, passes=only("exp"))(torch.ones(3, requires_grad=True) * 1)
    saved = compiled(f, passes=EVERYTHING)
    x, base = leaf(3), []
    saved(base.append(x * 1) or base[0]).sum().backward()
    torch.testing.assert_close(x.grad, (x.exp().cos() * x.exp()).detach())
    assert "prefer recompute, but saved: it is computed from x" in str(saved.captures[0].program)


def test_an_input_that_is_written_meanwhile_is_noticed():
    """Eager keeps the result of exp and would not mind; what is computed again from x cannot be."""
    x = leaf(3)
    out = compiled(lambda x: x.exp().sin(), passes=EVERYTHING)(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_name_that_is_not_there():
    with pytest.raises(fg.ProgramError, match="the forward computes no sine"):
        fg.capture(torch.sin, leaf(3)).recompute(["sine"])


def test_what_must_be_saved_is_not_recomputed():
    program = fg.capture(lambda x: x.exp().sin(), leaf(3))
    kept = program.save("exp").recompute(lambda node: True, prefer=True)
    assert [saved.name for saved in kept.halves.saved] == ["exp"]
    assert [saved.name for saved in program.save("exp", prefer=True).recompute("exp").halves.saved] == ["x"]
    with pytest.raises(fg.ProgramError, match="exp is marked to save and to recompute"):
        program.save("exp").recompute("exp")
    assert [saved.name for saved in program.halves.saved] == ["exp"]


# --- other backends, caches ---------------------------------------------------------------------------------


@pytest.mark.skipif(BACKEND != "inductor", reason="fast random numbers are those of Inductor")
def test_fast_random_numbers_are_not_replayed_by_others():
    x = leaf(64)
    f = fg.compile(lambda x: functional.dropout(x.exp()).sin(), backend="inductor", rng="fast", passes=EVERYTHING)
    out = f(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad != 0, out != 0)
