"""Sizes that vary: one program for all of them (DYN-1), under conditions that each call checks (DYN-2)."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from tests.compare import leaf, location, only_with_eager

pytestmark = only_with_eager("it names its backend itself; `test_dynamic_compiled.py` has those that compile")

SIZES = ((3, 6), (5, 8), (4, 4), (7, 2))


def compiled(function, dynamic=True, **options):
    return fg.compile(function, backend="eager", dynamic=dynamic, **options)


def num_captures(function):
    return len(fg.explain(function).captures)


def leaves(result):
    return torch.utils._pytree.tree_leaves(result)


def assert_equal(found, expected):
    assert type(found) is type(expected)
    if not isinstance(expected, torch.Tensor):
        assert found == expected
        return
    assert torch.equal(found.detach(), expected.detach())
    assert (found.stride(), found.requires_grad) == (expected.stride(), expected.requires_grad)


def gradients(outputs, x, weights):
    """Of all outputs, and of the gradients again."""
    wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    tangents = [torch.linspace(-1, 1, o.numel()).reshape(o.shape).requires_grad_() for o in wanted]
    first = torch.autograd.grad(wanted, [x, *weights], tangents, create_graph=True, allow_unused=True)
    again = [g.sin().sum() for g in first if g is not None and g.requires_grad]
    second = torch.autograd.grad(again, [x, *weights, *tangents], allow_unused=True) if again else ()
    return [g.detach() if g is not None else None for g in first], list(second)


def assert_serves(function, num_programs=1, weights=(), sizes=SIZES, dynamic=None):
    """One compiled function does what eager does for all sizes, and needs this many programs for it."""
    subject = compiled(function, {"x": (0, 1)} if dynamic is None else dynamic)
    for size in sizes:
        x = leaf(*size, 4)
        results = []
        for call in (function, subject):
            torch.manual_seed(0)
            outputs = leaves(call(x))
            results.append((outputs, gradients(outputs, x, weights)))
        (expected, (first, second)), (found, (our_first, our_second)) = results
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
        for one, other in zip(our_first, first, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
        for one, other in zip(our_second, second, strict=True):
            zero = torch.zeros(())
            torch.testing.assert_close(
                zero if one is None else one,
                (zero if one is None else torch.zeros_like(one)) if other is None else other,
                check_device=False,
            ) if one is not None or (other is not None and other.any()) else None
    assert num_captures(subject) == num_programs, fg.explain(subject)
    return subject


W = leaf(4, 4)
POSITIONS = leaf(64, 4)


def attends(x):
    batch, length, width = x.shape
    heads = (x @ W).view(batch, -1, 2, width // 2).transpose(1, 2)
    causal = torch.arange(length)[None, :] <= torch.arange(length)[:, None]
    scores = (heads @ heads.transpose(-1, -2)) / math.sqrt(width // 2)
    scores = scores.masked_fill(~causal, float("-inf"))
    return (scores.softmax(-1) @ heads).transpose(1, 2).reshape(batch, length, width)


def writes_to_views(x):
    y = x * 1
    y[:, ::2] = 0
    y[:, : y.shape[1] // 2].mul_(3)
    return y


ONE_PROGRAM = {
    "a size in arithmetic": lambda x: x * x.shape[0] + x.size(1),
    "a float from sizes": lambda x: x * x.shape[1] ** -0.5 + math.sqrt(x.shape[0]) / x.shape[1],
    "arange": lambda x: x + torch.arange(x.shape[1])[None, :, None],
    "view": lambda x: x.view(x.shape[0], -1).sin(),
    "numel": lambda x: x.sum() / x.numel(),
    "expand": lambda x: W.sum(0).expand(x.shape[0], x.shape[1], 4) * x,
    "positions": lambda x: x + POSITIONS[: x.shape[1]],
    "padding": lambda x: F.pad(x, (0, 0, 1, 2)).cos(),
    "cat": lambda x: torch.cat([x, x.flip(1)], 1).sin(),
    "attention with a mask": attends,
    "masked": lambda x: x.masked_fill(x > 0, 1.5) + torch.where(x > 0, x, x.square()),
    "norm": lambda x: F.layer_norm(x @ W, (4,)),
    "var": lambda x: x.var((0, 1)) + x.std(1),
    "a view is returned": lambda x: (x * 2).transpose(0, 1),
    "a view of the input": lambda x: x.transpose(1, 2),
    "writes": lambda x: x.clone().mul_(2).add_(1),
    "dropout": lambda x: F.dropout(x, 0.5) * torch.rand(x.shape[0], 1, 1),
    "numbers and shapes are returned": lambda x: (x * 2, x.shape[0], x.shape[1] * 3, x.shape, x.shape[1] / 2),
    "it says that it is an int": lambda x: x * 2 if isinstance(x.shape[0], int) else x * 3,
}


@pytest.mark.parametrize("function", ONE_PROGRAM.values(), ids=ONE_PROGRAM)
def test_dyn1_one_program_serves_all_sizes(function):
    assert_serves(function, weights=(W, POSITIONS))


@pytest.mark.parametrize("function", [writes_to_views, lambda x: x[:, : x.shape[1] // 2] * 2])
def test_dyn1_half_of_a_size(function):
    """A length of 2 or 3 leaves one element, which has a program of its own."""
    assert_serves(function, num_programs=2)


def test_dyn1_sizes_are_saved_for_backward_as_ints():
    f = compiled(lambda x: (x * 2).sum(1) * x.shape[0])
    for length in (4, 6):
        y = leaf(length, 3)
        f(y).sum().backward()
        assert y.grad.unique().tolist() == [2.0 * length]
    out = f(leaf(5, 3))
    assert out.grad_fn.saved_tensors == ()
    assert "number   x.0" in str(f.captures[0])


def test_dyn1_an_input_is_written():
    f = compiled(lambda x: x.mul_(x.shape[0]))
    for length in (4, 6):
        x = torch.ones(length, 3)
        assert f(x) is x
        assert x.unique().tolist() == [float(length)]
    assert num_captures(f) == 1


def test_dyn1_parameters_are_static():
    module = nn.Linear(3, 3)
    f = compiled(module)
    for length in (4, 6):
        x = torch.randn(length, 3)
        assert torch.equal(f(x), module(x))
    assert [str(i.spec) for i in f.captures[0].program.signature.inputs_of("param")] == ["f32[3, 3]", "f32[3]"]


def test_dyn1_the_listing_names_dimensions():
    f = compiled(lambda tokens: tokens.view(-1).sin(), {"tokens": (1,)})
    f(leaf(2, 5))
    text = str(f.captures[0])
    assert "input    tokens     f32[2, tokens.1]" in text
    assert "f32[2*tokens.1]" in text


def branches(x):
    return x * 2 if x.shape[0] > 3 else x * 5  # a condition


def test_dyn2_control_flow_is_checked_at_each_call():
    f = compiled(branches)
    f(torch.ones(4))
    assert f(torch.ones(2)).tolist() == [5.0, 5.0]
    assert f(torch.ones(9)).tolist() == [2.0] * 9
    assert num_captures(f) == 2


def test_dyn2_the_reason_names_the_value_and_the_line():
    f = compiled(branches)
    f(torch.ones(4))
    f(torch.ones(2))
    reason = fg.explain(f).captures[1].reason
    assert reason.startswith("x.shape[0] > 3 does not hold: x.shape[0] is 2")
    assert (
        location(branches, "a condition").replace(r"(:|\"?, line )", ":").removesuffix(r"\b").replace("\\", "")
        in reason
    )
    assert "x.shape[0] may vary" in str(fg.explain(f))


def test_dyn2_zero_and_one_have_programs_of_their_own():
    def function(x):
        return (x + torch.ones(1, 3)).squeeze(0).sum(0), x * 2

    f = compiled(function)
    for length in (4, 1, 0, 7):
        x = torch.randn(length, 3)
        for found, expected in zip(f(x), function(x), strict=True):
            assert torch.equal(found, expected)
    assert num_captures(f) == 3


def test_dyn2_equal_sizes_are_assumed_only_where_they_must_be():
    f = compiled(lambda x, y: (x.sum(0) + y.sum(0), x.T @ y if x.shape == y.shape else x))
    f(torch.ones(3, 4), torch.ones(3, 4))
    f(torch.ones(5, 4), torch.ones(5, 4))
    assert num_captures(f) == 1
    f(torch.ones(5, 4), torch.ones(6, 4))
    assert num_captures(f) == 2
    g = compiled(lambda x, y: x.sum(0) + y.sum(0))
    g(torch.ones(3, 4), torch.ones(3, 4))
    g(torch.ones(5, 4), torch.ones(6, 4))
    assert num_captures(g) == 1


def test_dyn2_a_number_that_python_needs_is_a_condition():
    f = compiled(lambda x: sum(x[i] for i in range(x.shape[0])))
    for length in (3, 4, 3):
        x = torch.randn(length, 2)
        assert torch.equal(f(x), sum(x[i] for i in range(length)))
    assert num_captures(f) == 2


def test_dyn2_an_empty_part_has_a_program_of_its_own():
    f = compiled(lambda x: (x[2:] * 2, x[2:].sum()))
    for length in (5, 2, 3, 7):
        x = torch.randn(length, 3)
        found, total = f(x)
        assert torch.equal(found, x[2:] * 2)
        assert torch.equal(total, x[2:].sum())


def test_dyn2_whether_arguments_share_memory_is_checked_with_their_sizes():
    def function(x, y):
        x.mul_(2)
        return x.sum() + y.sum()

    f = compiled(function)
    memory = torch.ones(20)
    for start in (8, 8, 4, 10):
        ours, theirs = (torch.ones(20) for _ in range(2))
        found = f(ours[:start], ours[8:])
        assert torch.equal(found, function(theirs[:start], theirs[8:]))
        assert torch.equal(ours, theirs)
    found = f(memory[:3], memory[2:5])
    assert found.item() == 10.0


def test_dyn2_a_size_that_is_stored_in_a_module():
    class Remembers(nn.Module):
        length = 0

        def forward(self, x):
            self.length = x.shape[0]
            return x * 2

    module = Remembers()
    f = compiled(module)
    for length in (3, 4):
        f(torch.ones(length))
        assert module.length == length
        assert type(module.length) is int


# Which dimensions vary


def test_by_default_those_that_have_changed():
    f = compiled(lambda x, w: (x @ w).relu(), None)
    w = torch.randn(3, 4)
    for length in (4, 6, 7, 30):
        x = torch.randn(length, 3)
        assert torch.equal(f(x, w), (x @ w).relu())
    assert num_captures(f) == 2
    assert [str(i.spec) for i in f.captures[1].program.signature.inputs_of("input")] == ["f32[x.0, 3]", "f32[3, 4]"]
    assert "x was f32[4, 3]" in fg.explain(f).captures[1].reason


def test_by_default_another_change_is_no_reason_to_vary():
    f = compiled(lambda x, how: x * len(how), None)
    f(torch.ones(3), "a")
    f(torch.ones(4), "bc")
    assert [capture.conditions for capture in f.captures] == [None, None]


def test_none_vary_with_false():
    f = compiled(lambda x: x * 2, False)
    for length in (3, 4, 5):
        f(torch.ones(length))
    assert num_captures(f) == 3


def test_the_rest_of_a_partial_function():
    f = compiled(functools.partial(lambda w, x: x @ w, torch.ones(3, 2)))
    for length in (3, 4):
        assert f(torch.ones(length, 3)).shape == (length, 2)
    assert num_captures(f) == 1


def test_named_ones():
    f = compiled(lambda batch: batch["tokens"] * batch["scale"], {"batch.tokens": (-1,)})
    for length in (3, 4):
        f({"tokens": torch.ones(2, length), "scale": torch.ones(2, 1)})
    assert num_captures(f) == 1
    f({"tokens": torch.ones(3, 4), "scale": torch.ones(3, 1)})
    assert num_captures(f) == 2


@pytest.mark.parametrize(
    ("dynamic", "words"), [({"y": (0,)}, "the tensors of this call are x"), ({"x": (2,)}, "has 1")]
)
def test_names_and_dimensions_that_are_not_there(dynamic, words):
    with pytest.raises(ValueError, match=words):
        compiled(lambda x: x * 2, dynamic)(torch.ones(3))


@pytest.mark.parametrize("dynamic", ["yes", {"x": ("a",)}, 3])
def test_a_choice_that_cannot_be_meant(dynamic):
    with pytest.raises(TypeError):
        compiled(lambda x: x * 2, dynamic)


def test_strides_that_follow_from_sizes():
    def function(x):
        return (x * 2).sum(0), x.reshape(-1)

    f = compiled(function)
    for rows, columns in ((3, 4), (5, 6)):
        x = torch.randn(columns, rows).T
        for found, expected in zip(f(x), function(x), strict=True):
            assert_equal(found, expected)
    assert num_captures(f) == 1
    x = torch.randn(5, 12)[:, ::2]
    assert torch.equal(f(x)[0], function(x)[0])
    assert num_captures(f) == 2


def test_arguments_that_share_memory_stay_static():
    f = compiled(lambda x, y: x.mul_(2) + y)
    for length in (3, 4):
        x = torch.ones(length)
        assert torch.equal(f(x, x.view(length)), torch.full((length,), 4.0))


def test_arguments_that_share_memory_vary_where_nothing_is_written():
    def function(x, y, scale):
        return (x * y * scale).sum()

    f = compiled(function, dynamic=None)
    for length in (3, 4, 5, 6):
        x = torch.randn(length)
        assert torch.equal(f(x, x.view(length), torch.ones(2)[:1]), function(x, x, torch.ones(1)))
    assert num_captures(f) == 2


def test_arguments_that_share_memory_and_need_gradients_stay_static_and_connected():
    def function(x, y):
        return torch.autograd.grad(y.square().sum(), x, allow_unused=True)[0]

    f = compiled(function, dynamic=None)
    for length in (3, 4, 5):
        x = torch.randn(length, requires_grad=True)
        assert torch.equal(f(x, x.view(length)), 2 * x)
    assert "share memory and need gradients" in f.captures[-1].reason


def test_one_tensor_given_twice():
    f, named = compiled(torch.mul, dynamic=None), compiled(lambda i, j: i * j, dynamic={"i": (0,), "j": (0,)})
    for length in (3, 4, 5, 6):
        i = torch.randn(length)
        assert torch.equal(f(i, i), i * i)
        assert torch.equal(named(i, i), i * i)
    assert (num_captures(f), num_captures(named)) == (2, 1)


class Model(nn.Module):
    def forward(this, x, y):  # the name of the parameter is what is tested
        return (x * y).sum()


class Unpacked(nn.Module):
    def forward(*args, scale=2.0):  # the same
        return (args[1] * args[2] * scale).sum()


class Holder:
    def __call__(me, x, y):  # the same
        return (x * y).sum()

    def method(me, x, y):  # the same
        return (x * y).sum()

    @classmethod
    def of_class(kind, x, y):  # the same
        return (x * y).sum()

    @staticmethod
    def alone(x, y):
        return (x * y).sum()


def given_more(function):
    @functools.wraps(function)
    def run(y, *rest, **others):
        return function(*rest, y=y, **others)

    return run


@pytest.mark.parametrize(
    "target",
    [
        Model(),
        Unpacked(),
        Holder(),
        Holder().method,
        Holder.of_class,
        Holder.alone,
        lambda self, y: (self * y).sum(),
        lambda *xs: (xs[0] * xs[1]).sum(),
        given_more(lambda x, y: (x * y).sum()),
        functools.partial(lambda scale, x, y: (scale * x * y).sum(), torch.ones(1)),
        functools.partial(lambda x, y, scale: (scale * x * y).sum(), scale=torch.ones(1)),
        lambda args, kwargs: (args * kwargs).sum(),
        torch.dot,
    ],
)
def test_sizes_vary_however_a_function_takes_its_arguments(target):
    f = compiled(target, dynamic=None)
    for length in (3, 4, 5, 6):
        x, y = torch.randn(length), torch.randn(length)
        assert torch.equal(f(x, y), target(x, y))
    assert num_captures(f) == 2


def test_sizes_vary_in_a_method_that_is_compiled_where_it_is_defined():
    class Owner:
        @functools.partial(fg.compile, backend="eager")
        def total(this, x):  # the name of the parameter is what is tested
            return x.sum()

    owner = Owner()
    for length in (3, 4, 5, 6):
        assert owner.total(torch.ones(length)) == length
    assert num_captures(Owner.total) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, /, **others: x.sum() * others["x"].sum(),
        lambda x, /, **others: x.sum() * others["class"].sum(),
        lambda x, /, **others: x.sum() * others["a b"].sum(),
        lambda *args, **others: args[0].sum() * others["args.0"].sum(),
    ],
)
def test_sizes_vary_in_arguments_whose_names_clash_or_are_no_names(function):
    (key,) = [
        const for const in function.__code__.co_consts if isinstance(const, str) and const != function.__qualname__
    ]
    f = compiled(function, dynamic=None)
    for length in (3, 4, 5, 6):
        x, y = torch.randn(length), torch.randn(length + 1)
        assert torch.equal(f(x, **{key: y}), function(x, **{key: y}))
    assert num_captures(f) == 2


def test_sizes_vary_under_keys_that_read_alike():
    f = compiled(lambda d: d[1].sum() * d["1"].sum(), dynamic=None)
    for length in (3, 4, 5, 6):
        assert f({1: torch.ones(length), "1": torch.ones(length + 1)}) == length * (length + 1)
    assert num_captures(f) == 2


# What cannot vary


def lstm_of(x):
    return LSTM(x)[0]


LSTM = nn.LSTM(4, 5, batch_first=True)


def test_what_cannot_vary_is_captured_for_each_size():
    f = compiled(lstm_of)
    for length in (3, 4):
        x = torch.randn(2, length, 4)
        assert torch.equal(f(x), lstm_of(x))
    assert "sizes cannot vary" in fg.explain(f).captures[0].reason
    with pytest.warns(UserWarning, match="x cannot vary as dynamic= says"):
        compiled(lstm_of, {"x": (1,)})(torch.randn(2, 3, 4))


def test_an_error_of_the_function_itself_is_raised():
    f = compiled(lambda x: x @ torch.ones(3, 3))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            f(torch.ones(2, 4))
    f(torch.ones(5, 3))
    assert f.captures[0].conditions is not None


def test_many_captures_are_spoken_of():
    f = compiled(lambda x: x * int(x.shape[0]), None)
    for length in range(2, 10):
        f(torch.ones(length))
    with pytest.warns(UserWarning, match=r"captured 8 times[\s\S]*x.shape\[0\] == 8 does not hold"):
        f(torch.ones(10))
    f(torch.ones(11))  # once


def test_a_compiling_backend_says_that_it_makes_a_program_for_each_size():
    with pytest.warns(UserWarning, match='backend="eager"'):
        fg.compile(lambda x: x * 2, backend=lambda graph, name: graph, dynamic=True)


def test_a_saved_program_serves_all_sizes(tmp_path):
    module = Scales()
    f = compiled(module)
    f(leaf(3, 4))
    f.save(tmp_path / "f.fg")
    loaded = fg.load(tmp_path / "f.fg")
    for length in (3, 7):
        x = leaf(length, 4)
        for found, expected in zip(loaded(x), module(x), strict=True):
            assert_equal(found, expected)
        tangent = torch.randn(4)
        found, expected = (torch.autograd.grad(call(x)[0], x, tangent)[0] for call in (loaded, module))
        assert torch.equal(found, expected)
    with pytest.raises(fg.GuardError):
        loaded(leaf(1, 4))


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).tanh().sum(0) / math.sqrt(x.shape[0]), x.shape[0]


# A loop as users have it


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, attn_mask=mask, dropout_p=0.1 if self.training else 0.0)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.inner(self.norms[1](x))


class Classifier(nn.Module):
    def __init__(self, vocabulary=50, width=16):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, 2) for _ in range(2)])
        self.head = nn.Linear(width, 3)

    def forward(self, input_ids, attention_mask, labels):
        length = input_ids.shape[1]
        x = self.tokens(input_ids) + self.positions(torch.arange(length))
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        mask = causal[None, None] & attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, mask)
        weights = attention_mask.unsqueeze(-1).float()
        logits = self.head((x * weights).sum(1) / weights.sum(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def padded_batches():
    """40 batches of different lengths, the last of another size."""
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)) + 5
    for number, length in enumerate(order.tolist()):
        size = 3 if number == 39 else 4
        lengths = torch.randint(2, length + 1, (size,))
        lengths[0] = length
        mask = (torch.arange(length)[None] < lengths[:, None]).long()
        yield {"input_ids": torch.randint(0, 50, (size, length)) * mask, "attention_mask": mask} | {
            "labels": torch.randint(0, 3, (size,))
        }


def trained(call, model):
    """Losses, and the gradients of each step."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    torch.manual_seed(1)
    for batch in padded_batches():
        optimizer.zero_grad()
        loss = call(**batch)["loss"]
        loss.backward()
        seen.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        optimizer.step()
    return seen


@pytest.mark.slow
def test_a_loop_with_padded_batches_of_40_lengths(capsys):
    torch.manual_seed(0)
    reference, model = Classifier(), Classifier()
    model.load_state_dict(reference.state_dict())
    f = compiled(model, None)
    for found, expected in zip(trained(f, model), trained(reference, reference), strict=True):
        assert all(map(torch.equal, found, expected))
    print(fg.explain(f))
    text = capsys.readouterr().out
    assert num_captures(f) <= 3, text
    assert f"Classifier.forward: {num_captures(f)} captured programs" in text
    assert "input_ids was i64[4, " in text
    assert "input_ids.shape[1]" in text


def test_a_training_step_with_batches_of_many_sizes():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def step_of(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def train(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y) * x.shape[0] ** 0.5
            loss.backward()
            optimizer.step()
            return loss

        return train, optimizer

    (plain, _), (train, optimizer) = map(step_of, models)
    step = fg.step(models[1], optimizer, backend="eager")(train)
    for size in (3, 5, 7, 4, 6, 8):
        x, y = torch.randn(size, 4), torch.randn(size, 2)
        assert torch.equal(step(x, y), plain(x, y))
        for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert num_captures(step) == 2  # the first creates the optimizer's state


@pytest.mark.parametrize("name", ["softplus", "hardswish", "elu", "leaky_relu", "logsigmoid", "hardtanh"])
def test_a_gradient_that_lies_otherwise_than_its_input(name):
    def function(x, w):
        return (getattr(nn.functional, name)(x @ w).transpose(-1, -2) * 2).contiguous()

    compiled = fg.compile(function, backend="eager", dynamic=True)
    w = leaf(5, 4)
    for rows in (3, 4, 7):
        x = leaf(rows, 6, 5)
        expected = torch.autograd.grad(function(x, w).square().sum(), (x, w))
        found = torch.autograd.grad(compiled(x, w).square().sum(), (x, w))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
    assert len(compiled.captures) == 1


def test_a_second_derivative_that_wants_plain_sizes_is_recorded_for_each():
    def both(x):
        doubled = x * 2
        return doubled.abs(), doubled

    def second(f, x):
        one, other = f(x)
        (first,) = torch.autograd.grad((one * other).sum(), x, create_graph=True)
        return torch.autograd.grad((first * x).sum(), x)[0]

    f = fg.compile(both, backend="eager", dynamic=True)
    for size in (4, 5, 6, 4):
        x = torch.randn(size, 3, requires_grad=True)
        assert torch.equal(second(f, x), second(both, x))
    assert len(f.captures) == 1


def test_a_negative_pad_of_what_lies_in_another_order():
    def cut(x, weight):
        turned = (x @ weight).transpose(1, 2)
        return torch.nn.functional.pad(turned, (0, 0, 0, -2)).reshape(-1).sin()

    f, weight = fg.compile(cut, backend="eager"), torch.randn(3, 3)
    for size in (5, 6, 7):
        x = torch.randn(2, size, 3, requires_grad=True)
        assert torch.equal(f(x, weight), cut(x, weight))
        assert f(x.detach(), weight).stride() == cut(x.detach(), weight).stride()
