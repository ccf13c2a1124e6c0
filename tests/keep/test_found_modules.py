"""Modules in variables of a function: what is found without tracing reads those of its own process."""

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import foregrad as fg
from foregrad.cache.serialize.cached_calls import CAPTURED, FOUND

net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def of_a_global(x):
    return net(x)


def of_a_closure(own):
    def function(x):
        return own(x)

    return function


class Trainer:
    def __init__(self, own):
        self.own = own

    def loss(self, x):
        return self.own(x)


def in_a_global(own):
    globals()["net"] = own
    return of_a_global


WAYS = {"a global": in_a_global, "a closure": of_a_closure, "an object": lambda own: Trainer(own).loss}


def new_net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def trained(call, own):
    """A result and the gradients of the parameters."""
    own.zero_grad()
    result = call(torch.ones(2, 3))
    result.square().sum().backward()
    return [result.detach(), *(p.grad.clone() for p in own.parameters())]


@pytest.mark.parametrize("way", WAYS)
def test_a_module_in_a_variable_is_found(way, tmp_path):
    origins = []
    for seed in (0, 1):  # as in two processes: other modules of the same layout
        own = new_net(seed)
        function = WAYS[way](own)
        expected = trained(function, own)
        compiled = fg.compile(function, backend="eager", cache=str(tmp_path))
        torch.testing.assert_close(trained(compiled, own), expected)
        origins.append(compiled.origin.how)
    assert origins == [CAPTURED, FOUND]


@pytest.mark.parametrize("way", ["a global", "a closure"])
def test_what_was_found_follows_a_module_that_is_replaced(way, tmp_path):
    for _ in range(2):
        first, second = new_net(0), new_net(1)
        function = WAYS[way](first)
        compiled = fg.compile(function, backend="eager", cache=str(tmp_path))
        trained(compiled, first)
        if way == "a global":
            in_a_global(second)
        else:
            function.__closure__[0].cell_contents = second
        torch.testing.assert_close(trained(compiled, second), trained(second, second))


def makes_a_module(own):
    return lambda x: nn.Dropout(0.5).eval()(nn.ReLU6()(own(x)))


def scaled_by(factor):
    return lambda module, args, result: result * factor


def with_a_hook(own, factor=2.0):
    own[0].register_forward_hook(scaled_by(factor))
    own[2].register_full_backward_hook(lambda module, inwards, outwards: (inwards[0] * 3,))
    return own


def with_pruned_weights(own):
    nn.utils.prune.l1_unstructured(own[0], "weight", amount=0.3)
    return own


@pytest.mark.parametrize("make", [makes_a_module, with_a_hook, with_pruned_weights])
def test_modules_made_inside_and_hooks_are_found(make, tmp_path):
    origins = []
    for seed in (0, 1):
        own = new_net(seed)
        target = make(own)
        expected = trained(target, own)
        compiled = fg.compile(target, backend="eager", cache=str(tmp_path))
        torch.testing.assert_close(trained(compiled, own), expected)
        origins.append(compiled.origin.how)
    assert origins == [CAPTURED, FOUND], compiled.origin


def test_what_was_found_follows_hooks_that_change(tmp_path):
    for how in (CAPTURED, FOUND):
        own = with_a_hook(new_net(0))
        compiled = fg.compile(own, backend="eager", cache=str(tmp_path))
        compiled(torch.ones(2, 3))
        assert compiled.origin.how == how
        own[0].register_forward_hook(scaled_by(5.0))
        torch.testing.assert_close(compiled(torch.ones(2, 3)), own(torch.ones(2, 3)))


def test_another_number_in_a_hook_is_another_program(tmp_path):
    for factor in (2.0, 3.0):
        own = with_a_hook(new_net(0), factor)
        compiled = fg.compile(own, backend="eager", cache=str(tmp_path))
        torch.testing.assert_close(compiled(torch.ones(2, 3)), own(torch.ones(2, 3)))
        assert compiled.origin.how != FOUND


def test_what_a_file_cannot_check_is_not_saved_from_a_cache(tmp_path):
    for _ in range(2):
        compiled = fg.compile(with_a_hook(new_net(0)), backend="eager", cache=str(tmp_path / "cache"))
        compiled(torch.ones(2, 3))
    with pytest.raises(fg.CannotKeep, match="hooks"):
        compiled.save(tmp_path / "net.fg")


def test_reasons_name_the_argument(tmp_path):
    def total(first, *, batch):
        return first.sum() + batch["x"].sum()

    compiled = fg.compile(total, backend="eager", cache=str(tmp_path))
    weight = torch.ones(3, requires_grad=True)
    compiled(torch.ones(3), batch={"x": weight * 2})
    assert "the argument batch.x has a history" in str(compiled.origin)
    compiled(torch.empty(0).set_(torch.ones(5)[:3].untyped_storage(), 0, (3,)), batch={"x": torch.ones(3)})
    assert "the argument first shows a part of its memory only" in str(compiled.origin)


def test_reasons_name_modules_that_no_other_process_would_find(tmp_path):
    compiled = fg.compile(lambda model, x: model(x), backend="eager", cache=str(tmp_path))
    compiled(nn.Linear(3, 2), torch.ones(3))
    assert "the program refers to a Linear that is an argument" in str(compiled.origin)


def test_reasons_name_tensors_that_no_other_process_would_find(tmp_path):
    models = [[nn.Linear(3, 2)]]
    compiled = fg.compile(lambda x: models[0][0](x), backend="eager", cache=str(tmp_path))
    compiled(torch.ones(3))
    assert "it reads `weight`, `bias`, kept in none of the function's own variables" in str(compiled.origin)


def test_reasons_name_what_a_call_changes(tmp_path):
    seen = []
    compiled = fg.compile(lambda x: (seen.append(1), x * 2)[1], backend="eager", cache=str(tmp_path))
    compiled(torch.ones(3))
    assert "it is not kept, since it changes seen was [], is [1]" in str(compiled.origin)


def test_what_was_found_follows_a_patch_of_a_class_that_it_makes_modules_of(tmp_path, monkeypatch):
    for how in (CAPTURED, FOUND):
        compiled = fg.compile(lambda x: nn.ReLU6()(x), backend="eager", cache=str(tmp_path))
        assert compiled(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
        assert compiled.origin.how == how
    monkeypatch.setattr(nn.ReLU6, "forward", lambda self, x: x * 5)
    assert compiled(torch.ones(3)).tolist() == [5.0, 5.0, 5.0]
