"""Modules as targets, and the signature of what was captured from them (MOD-1, MOD-2, DESC-1)."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import also_compiled, assert_same, compiled, grads_of, leaf, only_with_eager, same_as_eager


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 1)
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n.add_(1)
        return (self.l(x) ** 2).sum(), self.n * 1


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


class RebindsBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n = self.n + 1
        return x * self.n


def mlp():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


MODULES = {
    "linear": lambda: nn.Linear(2, 3),
    "mlp": mlp,
    "batch norm": lambda: nn.BatchNorm1d(2),
    "dropout": lambda: nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5)),
    "lstm": lambda: nn.LSTM(2, 3),
    "attention": lambda: nn.TransformerEncoderLayer(2, 1, 4, dropout=0.1),
    "tied": Tied,
    "counter": Counter,
    "unused": Unused,
    "rebinds a buffer": RebindsBuffer,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
    "no state": nn.ReLU,
}


# MOD-1: results and state


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_MOD_1_a_module_computes_and_keeps_its_state_as_eager(make, training):
    torch.manual_seed(0)
    assert_same(make().train(training), lambda: (leaf(4, 2),), calls=2)


def test_MOD_1_batch_norm_without_momentum_evaluates_as_eager():
    assert_same(nn.BatchNorm1d(2, momentum=None).eval(), lambda: (leaf(4, 2),), calls=2)


def test_MOD_1_batch_norm_without_momentum_asks_its_counter_in_training():
    """It reads its counter in Python, to average over all batches so far."""
    assert_same(nn.BatchNorm1d(2, momentum=None), lambda: (leaf(4, 2),), calls=3)


@same_as_eager
def test_MOD_1_train_and_eval_are_seen_at_each_call(wrap):
    model = wrap(nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)))
    x = leaf(4, 2)
    results = [model(x)]
    model.eval()
    results.append(model(x))
    model[1].train()
    results.append(model(x))
    return results, model.training, model.state_dict()


@same_as_eager
def test_MOD_1_flags_of_the_original_module_are_seen_too(wrap):
    original = nn.Dropout(0.5)
    model = wrap(original)
    first = model(torch.ones(8))
    original.eval()
    return first, model(torch.ones(8))


@same_as_eager
def test_MOD_1_a_replaced_parameter_is_used(wrap):
    model = wrap(mlp())
    x = leaf(3, 2)
    first = model(x)
    model[0].weight = nn.Parameter(torch.ones(3, 2))
    second = model(x)
    second.sum().backward()
    return first, second, grads_of(model[0].weight)


@same_as_eager
def test_MOD_1_a_replaced_buffer_and_submodule_are_used(wrap):
    model = wrap(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    x = leaf(3, 2)
    results = [model(x)]
    model[0].running_mean = torch.full((2,), 5.0)
    model.eval()
    results.append(model(x))
    model[1] = nn.Tanh()
    results.append(model(x))
    return results


@only_with_eager("Adam divides a gradient that is zero but for rounding")
@same_as_eager
def test_MOD_1_training_with_an_optimizer(wrap):
    model = wrap(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 2)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, model.state_dict()


@also_compiled
@same_as_eager
def test_MOD_1_frozen_parameters_get_no_gradient(wrap):
    model = wrap(mlp())
    x = leaf(3, 2)
    model(x).sum().backward()
    model.zero_grad()
    model[0].requires_grad_(False)
    model(x).sum().backward()
    return grads_of(*model.parameters()), grads_of(x)


@same_as_eager
def test_MOD_1_to_another_dtype(wrap):
    model = wrap(mlp())
    first = model(torch.randn(3, 2))
    model.to(torch.float64)
    return first, model(torch.randn(3, 2, dtype=torch.float64))


@also_compiled
@same_as_eager
def test_MOD_1_load_state_dict(wrap):
    model, other = wrap(mlp()), mlp()
    first = model(torch.ones(3, 2))
    model.load_state_dict(other.state_dict())
    return first, model(torch.ones(3, 2))


@same_as_eager
def test_MOD_1_hooks_added_after_the_first_call_fire(wrap):
    model = wrap(mlp())
    first = model(torch.ones(3, 2))
    handle = model[0].register_forward_hook(lambda module, args, output: output * 2)
    second = model(torch.ones(3, 2))
    handle.remove()
    return first, second, model(torch.ones(3, 2))


@same_as_eager
def test_MOD_1_hooks_on_the_compiled_module_itself_fire_once(wrap):
    model, seen = wrap(mlp()), []
    model.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return model(torch.ones(3, 2)), model(torch.ones(3, 2)), seen


@same_as_eager
def test_MOD_1_a_compiled_module_inside_another_module(wrap):
    inner = wrap(mlp())
    outer = nn.Sequential(nn.Linear(2, 2), inner)
    outer(torch.randn(3, 2)).sum().backward()
    return outer.state_dict(), grads_of(*outer.parameters())


@same_as_eager
def test_MOD_1_a_module_used_by_a_function(wrap):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    f = wrap(lambda x: model(x).sum())
    for _ in range(2):
        f(torch.randn(4, 2)).backward()
    model.eval()
    return f(torch.randn(4, 2)), model.state_dict(), grads_of(*model.parameters())


# MOD-1: a compiled module is a module of the same class


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_MOD_1_class_repr_and_state_dict_are_the_modules_own(make):
    model = make()
    twin = compiled(model)
    assert isinstance(twin, type(model))
    assert repr(twin) == repr(model)
    assert list(twin.state_dict()) == list(model.state_dict())
    assert [name for name, _ in twin.named_modules()] == [name for name, _ in model.named_modules()]


def test_MOD_1_state_is_shared_with_the_original_module():
    model = nn.BatchNorm1d(2)
    twin = compiled(model)
    assert all(ours is theirs for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True))
    twin(torch.randn(4, 2)).sum().backward()
    assert model.num_batches_tracked == 1
    assert model.weight.grad is twin.weight.grad is not None
    assert twin.running_mean is model.running_mean


def test_MOD_1_attributes_and_methods_reach_the_module():
    class Scaled(nn.Linear):
        scale = 2.0

        def forward(self, x):
            return super().forward(x) * self.scale

        def doubled(self):
            return self.scale * 2

    twin = compiled(Scaled(2, 2))
    assert twin.in_features == 2
    assert twin.doubled() == 4.0
    before = twin(torch.ones(1, 2))
    twin.scale = 3.0
    assert torch.equal(twin(torch.ones(1, 2)) * 2.0, before * 3.0)


def test_MOD_1_deepcopy_is_independent_and_compiled():
    twin = compiled(mlp())
    x = torch.randn(3, 2)
    expected = twin(x)
    other = copy.deepcopy(twin)
    assert isinstance(other, nn.Sequential)
    assert torch.equal(other(x), expected)
    assert fg.explain(other).captures
    with torch.no_grad():
        other[0].weight.zero_()
    assert torch.equal(twin(x), expected)
    assert not torch.equal(other(x), expected)


def test_MOD_1_pickle_gives_a_compiled_module():
    model = mlp()
    twin = compiled(model)
    x = torch.randn(3, 2)
    expected = twin(x)
    other = pickle.loads(pickle.dumps(twin))
    assert isinstance(other, nn.Sequential)
    assert other.captures == ()
    assert torch.equal(other(x), expected)
    assert len(other.captures) == 1
    file = io.BytesIO()
    torch.save(twin.state_dict(), file)
    file.seek(0)
    assert list(torch.load(file)) == list(model.state_dict())


# MOD-2, DESC-1: the signature


def items(side, role):
    return [item.name for item in side if item.role == role]


def test_MOD_2_the_signature_names_parameters_buffers_inputs_writes_and_gradients():
    signature = fg.capture(Counter(), torch.ones(3, 2)).signature
    assert items(signature.inputs, "param") == ["l.weight", "l.bias"]
    assert items(signature.inputs, "buffer") == ["n"]
    assert items(signature.inputs, "input") == ["x"]
    assert len(items(signature.inputs, "tangent")) == 1
    assert items(signature.outputs, "write") == ["n"]
    assert len(items(signature.outputs, "output")) == 2
    weight, bias = items(signature.outputs, "grad")
    assert ["l.weight" in weight, "l.bias" in bias] == [True, True]


def test_MOD_2_capture_runs_nothing_on_real_data():
    model = Counter()
    fg.capture(model, torch.ones(3, 2))
    assert model.n.item() == 0
    assert model.n._version == 0
    assert model.l.weight.grad is None


def test_MOD_2_tied_weights_count_once():
    signature = fg.capture(Tied(), torch.ones(3, 2)).signature
    assert items(signature.inputs, "param") == ["a.weight", "a.bias", "b.bias"]
    assert len(items(signature.outputs, "grad")) == 3


def test_MOD_2_nested_names_are_paths():
    model = nn.Sequential(mlp(), nn.Linear(1, 1))
    names = items(fg.capture(model, torch.ones(3, 2)).signature.inputs, "param")
    assert names == [name for name, _ in model.named_parameters()]


class Named:
    """Functions and arguments whose every graph input must be traced back to a user's name."""

    @staticmethod
    def plain(x, w):
        return x * w

    @staticmethod
    def aliased(p, q):
        p.mul_(2)
        return p + q

    @staticmethod
    def containers(pair, *, table):
        return pair[0] * pair[1] * table["w"]


def test_DESC_1_every_placeholder_has_one_described_input():
    x = torch.randn(4)
    cases = [
        (Named.plain, (leaf(3), leaf(3)), {}),
        (Named.aliased, (x[:3], x[1:]), {}),
        (Named.containers, ((leaf(2), leaf(2)),), {"table": {"w": leaf(2)}}),
    ]
    for fn, args, kwargs in cases:
        program = fg.capture(fn, *args, **kwargs)
        placeholders = [node for node in program.graph.graph.nodes if node.op == "placeholder"]
        inputs = program.signature.inputs
        assert len(placeholders) == len(inputs)
        assert len({(item.role, item.name) for item in inputs}) == len(inputs)
        for node, item in zip(placeholders, inputs, strict=True):
            value = node.meta.get("val")
            assert value is None or tuple(value.shape) == tuple(item.spec.shape)


def test_DESC_1_the_spec_says_what_the_user_gave():
    x = torch.randn(3, 2, dtype=torch.float64).t().requires_grad_()
    (item,) = [item for item in fg.capture(lambda x: x * 2, x).signature.inputs if item.role == "input"]
    assert (tuple(item.spec.shape), tuple(item.spec.stride)) == ((2, 3), (1, 2))
    assert (item.spec.dtype, item.spec.device, item.spec.requires_grad) == (torch.float64, x.device, True)


def test_DESC_1_members_of_containers_have_names_of_their_own():
    program = fg.capture(Named.containers, (leaf(2), leaf(2)), table={"w": leaf(2)})
    names = items(program.signature.inputs, "input")
    assert len(set(names)) == 3
    assert ["pair" in names[0], "pair" in names[1], "table" in names[2]] == [True] * 3


def test_DESC_1_closed_over_tensors_have_a_role_and_their_name():
    scale = leaf(2)
    program = fg.capture(lambda x: x * scale, leaf(2))
    assert items(program.signature.inputs, "closure") == ["scale"]


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_a_cell_writes_to_parts_of_its_gates(cell):
    """The parts are views of one tensor, though the op that makes them says that they are not."""
    assert_same(cell(4, 4), lambda: (leaf(3, 4),), calls=2)


def test_parts_that_say_they_are_no_views_are_written():
    def f(x):
        a, b = x.sin().unsafe_chunk(2, 1)
        c, d = x.cos().unsafe_split_with_sizes([1, 3], 1)
        return a.sigmoid_() + b.tanh_(), c * 2 + d.exp_()

    assert_same(f, lambda: (leaf(3, 4),), calls=2)


def test_what_a_compiled_module_can_do_is_listed():
    model = fg.compile(nn.Linear(2, 2), backend="eager")
    for name in ("verify", "captures", "save", "origin", "weight", "forward"):
        assert name in dir(model)
        assert hasattr(model, name)


def test_functional_call_on_a_module_that_the_function_makes():
    def function(x, weights):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    states, results = [], []
    for run in (function, fg.compile(function, backend="eager")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for _ in range(2):
            results.append(run(torch.randn(4, 3), weights))
            results[-1].backward()
        states.append([*weights.values(), *(p.grad for p in model.parameters())])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    for expected, found in zip(*states, strict=True):
        assert torch.equal(found, expected)


class BuildsALayer(nn.Module):
    def forward(self, x):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[-1], 2)
        return self.layer(x)


def test_a_layer_that_is_built_at_the_first_call_is_refused_and_left_away():
    model = BuildsALayer()
    with pytest.raises(fg.CaptureError, match="makes a Linear and stores it as `layer`"):
        fg.compile(model, backend="eager")(torch.ones(2, 3))
    assert not hasattr(model, "layer")
    expected = model(torch.ones(2, 3))
    assert torch.equal(fg.compile(model, backend="eager")(torch.ones(2, 3)), expected)


def test_forward_has_the_signature_of_the_modules_own():
    class Model(nn.Module):
        def forward(self, input_ids, *, labels=None):
            return input_ids * 2

    plain, wrapped = Model(), compiled(Model())
    assert inspect.signature(wrapped.forward) == inspect.signature(plain.forward)
    assert inspect.signature(type(wrapped).forward) == inspect.signature(Model.forward)


@pytest.mark.parametrize("dynamic", [False, True])
def test_batch_norm_over_features_that_come_last(dynamic):
    torch.manual_seed(0)
    norm, linear = nn.BatchNorm1d(8), nn.Linear(8, 3)

    def function(x):
        return linear(norm(x.transpose(1, 2)).transpose(1, 2))

    f = fg.compile(function, backend="eager", dynamic=dynamic)
    with torch.no_grad():
        for size in (9, 10):
            x = torch.randn(4, size, 8)
            found, state = f(x), norm.running_mean.clone()
            norm.reset_running_stats()
            assert torch.equal(found, function(x))
            assert torch.equal(state, norm.running_mean)
            norm.reset_running_stats()
