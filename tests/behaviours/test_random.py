"""Random numbers: a captured function draws what eager draws after the same seed, call after call."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from tests.compare import also_compiled, assert_same, compiled, grads_of, leaf, same_as_eager

aten = torch.ops.aten

#: Functions that draw, each twice or more from the same arguments: nothing may be merged (W2).
DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3) + F.dropout(x, 0.3),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True) + F.feature_alpha_dropout(x[None], 0.3, True)[0],
    "rand": lambda x: x * torch.rand(6) + torch.rand(6) + torch.rand_like(x) * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(6) + torch.randn(6) + torch.randn_like(x) * torch.randn_like(x),
    "randint": lambda x: x * torch.randint(9, (6,)) + torch.randint(9, (6,)) + torch.randint_like(x, 9),
    "randperm": lambda x: x * torch.randperm(6) + torch.randperm(6),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((6,), 0.4)) + torch.empty(6).bernoulli_(0.4),
    "multinomial": lambda x: x * torch.multinomial(torch.ones(8), 6) + torch.multinomial(torch.ones(8), 6),
    "normal": lambda x: x * torch.normal(0.0, torch.ones(6)) + torch.empty(6).normal_() + torch.empty(6).normal_(),
    "uniform": lambda x: x * torch.empty(6).uniform_() + torch.empty(6).uniform_(),
    "exponential": lambda x: x * torch.empty(6).exponential_() + torch.empty(6).exponential_(),
    "cauchy": lambda x: x * torch.empty(6).cauchy_() + torch.empty(6).log_normal_() + torch.empty(6).geometric_(0.5),
    "random": lambda x: x * torch.empty(6).random_(9) + torch.empty(6).random_(2, 9) + torch.empty(6).random_(9),
    "poisson": lambda x: x * torch.poisson(torch.full((6,), 3.0)) + torch.poisson(torch.full((6,), 3.0)),
    "binomial": lambda x: x * torch.binomial(torch.full((6,), 9.0), torch.full((6,), 0.5)),
    "gamma": lambda x: torch.distributions.Gamma(x.exp(), 1.0, validate_args=False).rsample(),
    "rrelu": lambda x: F.rrelu(x, training=True) + F.rrelu(x, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x) + F.gumbel_softmax(x),
    "unused": lambda x: (torch.rand(3), x * torch.rand(6))[1],
    "written": lambda x: x.clone()[::2].uniform_() + x.clone()[::2].normal_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_w2_every_random_op_draws_what_eager_draws(name):
    """W2, RNG-1: `assert_same` compares the generator too, after each of three calls."""
    assert_same(DRAWS[name], lambda: (leaf(6),), calls=3)


@also_compiled
def test_draws_are_in_order_with_every_backend():
    def f(x):
        torch.rand(5)  # nobody uses it
        a, b = torch.randn_like(x), torch.randn_like(x)
        return F.dropout(x * b, 0.5) + a + torch.empty(6).exponential_() * torch.empty(6).exponential_()

    assert_same(f, lambda: (leaf(6),), calls=2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.drop = nn.Linear(8, 24), nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        return self.drop(F.scaled_dot_product_attention(q, k, v, dropout_p=0.3))


@pytest.mark.parametrize("make", [Attention, lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)])
def test_attention_drops_out_as_in_eager(make):
    assert_same(make(), lambda: (leaf(2, 5, 8),), calls=3)


@same_as_eager
def test_fifty_steps_with_dropout_have_the_losses_of_eager(wrap):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), Attention2d(), nn.Linear(16, 2))
    call, optimizer, losses = wrap(model), torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(50):
        optimizer.zero_grad()
        loss = call(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class Attention2d(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1)[0]


@torch.library.custom_op("random_tests::noise", mutates_args=(), tags=torch.Tag.nondeterministic_seeded)
def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


noise.register_fake(torch.empty_like)


def test_a_custom_op_with_the_tag_draws_at_each_call():
    assert_same(lambda x: (noise(x), x * noise(x) + noise(x))[1], lambda: (leaf(3),), calls=2, backward=False)


# Capture


def test_rng_1_capture_moves_no_generator():
    given, closed_over, model = torch.Generator(), torch.Generator(), Noisy(torch.Generator())

    def f(x, generator):
        x = model(x) * torch.rand(3) + torch.empty(3).exponential_(generator=generator)
        return F.dropout(x, 0.5) + torch.randperm(3, generator=closed_over)

    x, everyone = leaf(3), [torch.default_generator, given, closed_over, model.generator]
    states = [generator.get_state() for generator in everyone]
    fg.capture(f, x, given)
    with pytest.raises(ZeroDivisionError):
        fg.capture(lambda x, g: f(x, g) / (1 // 0), x, given)
    assert all(torch.equal(g.get_state(), state) for g, state in zip(everyone, states, strict=True))


def test_noise_that_an_op_writes_is_not_its_result():
    """A program may write over memory that is free: that of the noise is, and the result lies beside it."""

    def f(x):
        result = torch.rrelu(x, training=True)
        x.clamp_(-0.5, 0.5)
        return result

    assert_same(f, lambda: (torch.full((3,), -0.7),), calls=2)


def test_rng_1_captures_of_several_threads():
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda p: fg.capture(lambda x: F.dropout(x, p), torch.ones(3)), [0.1] * 12))
    assert len({str(program) for program in made}) == 1
    assert torch.equal(torch.get_rng_state(), state)


class Noisy(nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def forward(self, x):
        return x + torch.randn(x.shape, generator=self.generator)


# Generators of the user's


def draws_globally(x):
    return x * torch.rand(3, generator=GLOBAL)


GLOBAL = torch.Generator()


@same_as_eager
def test_a_generator_that_another_function_reaches(wrap):
    GLOBAL.manual_seed(1)
    f = wrap(lambda x: draws_globally(x))
    return f(torch.ones(3)), f(torch.ones(3)), GLOBAL.get_state()


def draws_from_many(x, g):
    noise = torch.rand(6, generator=g) + torch.empty(6).normal_(generator=g) + torch.randperm(6, generator=g)
    noise = noise * torch.bernoulli(torch.full((6,), 0.5), generator=g) + torch.rand(6)
    return x * noise + torch.multinomial(torch.ones(8), 6, generator=g) + torch.empty(6).exponential_(generator=g)


@also_compiled
@same_as_eager
def test_a_generator_among_the_arguments(wrap):
    """One that is another object at the next call is drawn from then."""
    f, x, told = wrap(draws_from_many), leaf(6), []
    for seed in (1, 1, 2):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            result = f(x, generator)
            result.sum().backward()
            told.append((result.detach(), generator.get_state()))
    return told, grads_of(x)


@same_as_eager
def test_a_generator_in_a_variable_or_a_module_is_read_at_each_call(wrap):
    generator, model, x = torch.Generator().manual_seed(1), Noisy(torch.Generator().manual_seed(2)), torch.ones(3)
    functions = [wrap(lambda x: torch.rand(3, generator=generator) * x), wrap(model), wrap(lambda x: model(x))]
    told = [f(x) for f in functions * 2]
    generator, model.generator = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    return told + [f(x) for f in functions * 2], generator.get_state(), model.generator.get_state()


@same_as_eager
def test_a_generator_that_a_partial_function_brings(wrap):
    generator = torch.Generator().manual_seed(1)
    f = wrap(functools.partial(draws_from_many, g=generator))
    return f(torch.ones(6)), f(torch.ones(6)), generator.get_state()


@same_as_eager
def test_the_default_generator_by_its_name(wrap):
    return wrap(lambda x: x * torch.rand(3, generator=torch.default_generator))(torch.ones(3)), torch.rand(2)


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, generator):
        ctx.generator = generator
        return x * torch.rand(3, generator=generator)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(3, generator=ctx.generator) + torch.rand(3), None


@same_as_eager
def test_draws_in_backward(wrap):
    generator, x = torch.Generator().manual_seed(1), leaf(3)
    f = wrap(lambda x: DrawsInBackward.apply(x, generator).sin())
    results = [f(x), f(x)]
    for result in results:
        result.sum().backward(retain_graph=True)
    results[0].sum().backward()
    return results, grads_of(x), generator.get_state(), torch.rand(1)


# What would draw other numbers


def test_a_generator_made_inside_is_refused():
    with pytest.raises(fg.CaptureError, match="makes itself") as caught:
        compiled(lambda x: x * torch.rand(3, generator=torch.Generator().manual_seed(0)))(torch.ones(3))
    assert "test_random.py" in str(caught.value)


def forks(x):
    with torch.random.fork_rng(devices=[]):
        return x * torch.rand(3)


def seeds_last(x):
    noise = torch.rand(3)
    torch.manual_seed(1)
    return x * noise


@pytest.mark.parametrize("function", [forks, seeds_last])
def test_setting_the_state_of_the_generator_is_refused(function):
    state = torch.get_rng_state()
    with pytest.raises(fg.CaptureError, match="sets its state"):
        compiled(function)(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_state_that_the_function_has_read_may_be_set_again():
    def restores(x):
        state = torch.get_rng_state()
        first = torch.rand(3)
        torch.set_rng_state(state)
        return x * first, x * torch.rand(3)

    results = []
    for function in (restores, compiled(restores)):
        torch.manual_seed(3)
        for _ in range(2):
            results.append((*function(torch.ones(3)), torch.get_rng_state()))
    for ours, theirs in zip(results[2:], results[:2], strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_seeding_a_given_generator_is_refused():
    generator = torch.Generator().manual_seed(4)
    state = generator.get_state()
    with pytest.raises(fg.CaptureError, match="seeds g"):
        compiled(lambda x, g: x * torch.rand(3, generator=g.manual_seed(7)))(torch.ones(3), generator)
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("keeps", [True, False])
@same_as_eager
def test_a_checkpoint_repeats_its_draws_or_draws_anew(wrap, keeps):
    def f(x):
        inner = lambda y: F.dropout(y.sin(), 0.5).cos()  # noqa: E731
        return checkpoint(inner, x, use_reentrant=False, preserve_rng_state=keeps) + torch.rand(3)

    x = leaf(3)
    wrap(f)(x).sum().backward()
    return grads_of(x), torch.rand(1)


# In the program


def noisy(x, generator):
    return F.dropout(x, 0.5) * torch.rand(3) + torch.rand(3, generator=generator)


def test_a_program_takes_and_gives_the_state_of_each_generator():
    program = fg.capture(noisy, leaf(3), torch.Generator())
    assert [i.name for i in program.signature.inputs_of("rng")] == ["cpu", "generator"]
    assert [o.name for o in program.signature.outputs_of("rng")] == ["cpu", "generator"]
    assert "rng_cpu_2 = after(rng_cpu_1, rand)" in str(program)
    assert "generator=generator)" in str(program).replace(", device=device(type='cpu'), pin_memory=False", "")
    program.verify()
    torch.manual_seed(0)
    tokens = program(torch.ones(3), torch.ones(3))[2:]
    assert list(tokens) == [None, None]


def test_draws_in_backward_are_a_chain_of_their_own():
    program = fg.capture(lambda x: DrawsInBackward.apply(x, None), leaf(3))
    assert [str(i) for i in program.signature.inputs_of("rng", "rng in backward")] == [
        "rng cpu: token",
        "rng in backward cpu: token",
    ]


def test_attention_without_dropout_draws_nothing():
    program = fg.capture(lambda q: F.scaled_dot_product_attention(q, q, q), leaf(1, 2, 3, 4))
    assert not program.signature.inputs_of("rng")


def test_no_dead_code_elimination_drops_a_draw():
    program = fg.capture(lambda x: (torch.rand(3), x * 2)[1], torch.ones(3))
    program.graph.graph.eliminate_dead_code()
    assert "aten.rand(" in str(program)
    assert "after" not in program.forward.code  # backends see the ops alone


def test_a_pass_that_merges_moves_or_adds_draws_is_refused():
    def draws(program):
        return [n for n in program.graph.graph.nodes if n.target is aten.rand.default]

    def merges(program):
        first, second = draws(program)
        second.replace_all_uses_with(first)
        return program.with_graph(program.graph)

    def moves(program):
        first, second = draws(program)
        first.prepend(second)
        return program.with_graph(program.graph)

    def adds(program):
        with program.graph.graph.inserting_after(draws(program)[-1]):
            program.graph.graph.call_function(aten.rand.default, ([3],))
        return program.with_graph(program.graph)

    def delays(program):
        draws(program)[-1].meta["phase"] = 1
        return program.with_graph(program.graph)

    for change, said in ((merges, "merged"), (moves, "runs after"), (adds, "relinked"), (delays, "in backward")):
        with pytest.raises(fg.ProgramError, match=said):
            compiled(lambda x: torch.rand(3) * x + torch.rand(3), passes=[change])(torch.ones(3))


def test_a_pass_may_add_draws_to_a_program_that_has_none():
    def adds(program):
        graph = program.graph.graph
        (mul,) = [n for n in graph.nodes if n.target is aten.mul.Tensor]
        with graph.inserting_after(mul):
            noise = graph.call_function(aten.rand_like.default, (mul,))
        noise.meta.update(mul.meta)
        mul.replace_all_uses_with(noise, delete_user_cb=lambda user: user is not noise)
        return program.with_graph(program.graph).relinked()

    f = compiled(lambda x: x * 2, passes=[adds, lambda program: program.relinked()])
    torch.manual_seed(0)
    drawn = f(torch.ones(3)), f(torch.ones(3))
    torch.manual_seed(0)
    assert torch.equal(torch.cat(drawn), torch.cat([torch.rand(3), torch.rand(3)]))


def test_a_comparison_moves_no_generator():
    generator, f, x = torch.Generator(), compiled(noisy), leaf(3)
    states = [torch.get_rng_state(), generator.get_state()]
    assert f.verify(x, generator).is_equal
    assert all(map(torch.equal, states, [torch.get_rng_state(), generator.get_state()]))


def test_a_pass_that_lets_one_generator_draw_for_another_is_refused():
    def f(x, g, h):
        return x * torch.rand(3, generator=g) + torch.rand(3, generator=h) + torch.rand(3, generator=h)

    def moves(program):
        last = [n for n in program.graph.graph.nodes if "aten.rand.generator" in str(n.target)][-1]
        last.kwargs = {**last.kwargs, "generator": next(n for n in program.graph.graph.nodes if n.name == "g")}
        return program.with_graph(program.graph)

    with pytest.raises(fg.ProgramError, match="several chains"):
        compiled(f, passes=[moves])(torch.ones(3), torch.Generator(), torch.Generator())


_OWN = torch.Generator()


def test_a_generator_that_only_a_function_inside_the_function_uses():
    def function(x):
        draw = lambda: torch.rand(3, generator=_OWN)  # noqa: E731  a function inside the function
        return x * draw()

    drawn = []
    for each in (function, compiled(function)):
        _OWN.manual_seed(5)
        drawn.append([each(torch.ones(3)) for _ in range(2)])
    assert all(map(torch.equal, *drawn))
