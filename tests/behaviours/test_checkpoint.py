"""torch.utils.checkpoint inside a function: what it computes again draws the numbers that eager draws there."""

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import foregrad as fg
from tests.compare import BACKEND, also_compiled, compiled, grads_of, leaf, refused, same_as_eager

SMALL, LARGE = 4, 2048  # whose mask takes less room than the state of a generator, and more


def block(x):
    return functional.dropout(x.sin()).exp()


def again(function, x, **options):
    return checkpoint(function, x, use_reentrant=False, **options)


def nested(x):
    def inner(x):
        return functional.dropout(x.cos(), 0.3).exp()

    def outer(x):
        return functional.dropout(again(inner, functional.dropout(x.sin())).sin(), 0.4)

    return again(lambda x: again(outer, x) * functional.dropout(x, 0.2), x)


def in_a_loop(x):
    for _ in range(3):
        x = again(block, x) * 0.3
    return x


def drawn_anew(x):
    """Without the state of the generator, eager draws other numbers the second time."""
    return again(block, x, preserve_rng_state=False)


def drawn_anew_inside(x):
    return again(lambda x: functional.dropout(again(block, x, preserve_rng_state=False) * 0.1), x)


def drawn_anew_around(x):
    return again(lambda x: functional.dropout(again(block, x) * 0.1), x, preserve_rng_state=False)


def without_early_stop(x):
    with set_checkpoint_early_stop(False):
        return again(block, x)


def called_twice(x):
    return again(block, x) * again(block, x.cos())


def depends_on_values(x):
    return again(lambda x: (torch.bernoulli(x.sigmoid()) * torch.normal(x, 0.5)).sin().exp() * x.exp(), x)


def beside_others(x):
    return functional.dropout(again(block, functional.dropout(x, 0.1)), 0.2).sin()


def forked(x):
    """Both masks are the same, and the generator moves by one of them."""
    with torch.random.fork_rng():
        first = functional.dropout(x.sin())
    return first * functional.dropout(x.cos())


FUNCTIONS = (
    *(block, nested, in_a_loop, drawn_anew, drawn_anew_inside, drawn_anew_around, without_early_stop, called_twice),
    *(depends_on_values, beside_others, forked),
)


CASES = [(function, size) for function in FUNCTIONS for size in (SMALL, LARGE)]


@pytest.mark.parametrize(("function", "size"), CASES)
@same_as_eager
def test_rng_3_a_checkpoint_draws_as_in_eager(wrap, function, size):
    f, x = wrap(function), leaf(size)
    first, second = f(x), f(x)
    states = [torch.get_rng_state()]
    second.sum().backward(retain_graph=True)
    states.append(torch.get_rng_state())
    first.sum().backward()
    second.sum().backward()
    return first, second, grads_of(x), states, torch.get_rng_state()


@also_compiled
@same_as_eager
def test_rng_3_a_checkpoint_that_draws_from_a_state_again(wrap):
    x = leaf(LARGE)
    out = wrap(lambda x: again(block, x))(x)
    out.backward(torch.ones(LARGE))
    return out, grads_of(x), torch.get_rng_state()


@same_as_eager
def test_a_generator_of_the_users_is_not_put_back_by_a_checkpoint(wrap):
    generator = torch.Generator().manual_seed(3)

    def f(x):
        return again(lambda x: (x * torch.rand(4, generator=generator)).exp() * functional.dropout(x), x)

    x = leaf(4)
    out = wrap(f)(x)
    after_forward = generator.get_state()
    out.sum().backward()
    return out, grads_of(x), after_forward, generator.get_state(), torch.get_rng_state()


# --- selective checkpoints ----------------------------------------------------------------------------------


def noisy(x):
    x = (x.sin() * torch.rand_like(x)).exp()
    return (x.sin() * torch.rand_like(x)).exp()


def saves(*names, every=1):
    """A policy: of the ops with these names, every so manieth must be saved."""

    def contexts():
        met = []

        def policy(ctx, op, *args, **kwargs):
            if any(name in str(op) for name in names):
                met.append(op)
                if len(met) % every == 0:
                    return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.MUST_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return contexts


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("context_fn", [saves(), saves("exp"), saves("rand"), saves("sin", "exp", "mul")])
@same_as_eager
def test_a_selective_checkpoint_saves_what_it_must(wrap, context_fn, size):
    f, x = wrap(lambda x: again(noisy, x, context_fn=context_fn)), leaf(size)
    outs = []
    for _ in range(2):
        outs.append(f(x))
        outs[-1].sum().backward()
    return outs, grads_of(x), torch.get_rng_state()


@same_as_eager
def test_of_two_draws_one_is_saved(wrap):
    """Eager draws the first one's numbers for the second then: what is saved does not move the generator."""
    x = leaf(LARGE)
    out = wrap(lambda x: again(noisy, x, context_fn=saves("rand", every=2)))(x)
    out.sum().backward()
    return out, grads_of(x), torch.get_rng_state()


def test_what_a_selective_checkpoint_saves_is_not_computed_again():
    def ops_of(context_fn):
        program = fg.capture(lambda x: again(noisy, x, context_fn=context_fn), leaf(LARGE))
        return [n.name.rstrip("_0123456789") for n in program.backward.graph.nodes if n.op == "call_function"]

    assert ops_of(saves()).count("exp") == 2
    assert ops_of(saves("exp")).count("exp") == 0
    assert ops_of(saves()).count("replay_rand_like") == 2
    assert ops_of(saves("rand")).count("replay_rand_like") == 0


# --- what is kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "kept"), [(SMALL, "bernoulli"), (LARGE, "rng_state")])
def test_a_checkpoint_keeps_the_state_or_the_mask_whichever_is_smaller(size, kept):
    program = fg.capture(lambda x: again(block, x), leaf(size))
    assert [saved.name for saved in program.halves.saved] == ["x", kept]


# --- refused ------------------------------------------------------------------------------------------------


def test_a_generator_that_is_left_at_another_place_is_refused():
    def f(x):
        with torch.random.fork_rng():
            return functional.dropout(x)

    with refused(f, "def f"):
        compiled(f)(leaf(4))


def test_a_selective_checkpoint_that_draws_after_what_it_saves_is_refused():
    """Eager's gradient is that of another mask than the forward's."""

    def f(x):
        return again(lambda x: functional.dropout(x * torch.rand_like(x)).sin(), x, context_fn=saves("rand_like"))

    out = compiled(f)(leaf(LARGE))
    with pytest.raises(fg.CaptureError, match="save all of them or none"):
        out.sum().backward()


def test_a_checkpoint_that_draws_anew_and_reaches_no_input_is_refused():
    """In eager its second run moves the generator, though no gradient comes of it."""

    def f(x, generator):
        with torch.no_grad():
            view = x[:2]
        return again(lambda view: view.sin() * torch.rand(2, generator=generator), view)

    out = compiled(f)(leaf(4).clone(), torch.Generator())
    with pytest.raises(fg.CaptureError, match="reaches no input"):
        out.sum().backward()


def test_a_generator_that_is_seeded_inside_is_refused():
    def f(x, generator):
        generator.manual_seed(3)
        return x * torch.rand(4, generator=generator)

    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    with refused(f, "torch.rand"):
        compiled(f)(leaf(4), generator)
    assert torch.equal(before, generator.get_state())


def test_a_state_of_the_same_seed_is_noticed():
    state = torch.get_rng_state()
    torch.rand(3)

    def f(x):
        torch.set_rng_state(state)
        return functional.dropout(x)

    x, before = leaf(4), torch.get_rng_state()
    with refused(f, "functional.dropout"):
        compiled(f)(x)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(BACKEND != "eager", reason="nothing of a backend")
def test_another_op_at_the_same_place_is_refused():
    def f(x):
        with torch.random.fork_rng():
            first = torch.rand(4)
        return x * first + torch.rand(5).sum()

    with refused(f, "torch.rand(5)"):
        compiled(f)(leaf(4))


def test_draws_after_one_that_goes_by_other_data_when_it_runs_again_are_refused():
    """How many numbers `poisson` draws depends on its data: what came after it was taken for what it was before."""

    def inner(x):
        x = x * torch.poisson(x.detach().abs() * 3)
        return (x * torch.zeros_like(x).bernoulli_(0.5)).cos()

    def outer(x):
        x = x[torch.randperm(4)]  # drawn anew when it runs again
        return checkpoint(inner, x, use_reentrant=False)

    def f(x):
        return checkpoint(outer, x, use_reentrant=False, preserve_rng_state=False)

    with pytest.raises(fg.CaptureError, match="what comes after it draws other numbers"):
        fg.compile(f, backend="eager", cache=False)(leaf(4, 4)).sum().backward()
