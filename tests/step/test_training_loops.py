"""Ordinary training loops, as people write them: each runs once with eager and once with foregrad, and must end alike.

A loop is a function of `Ways`: how it compiles a model and how it makes a training step. What it returns is compared.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import swa_utils

import foregrad as fg

LOOPS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Ways:
    """How a loop compiles a model, and how it makes a step."""

    compile: Callable[[Any], Any]
    step: Callable[..., Callable[[Any], Any]]


EAGER = Ways(lambda target: target, lambda *state: lambda function: function)
FOREGRAD = Ways(
    lambda target: fg.compile(target, backend="eager", cache=False),
    lambda *state: fg.step(*state, backend="eager", cache=False),
)


def loop(function):
    LOOPS[function.__name__.replace("_", " ")] = function
    return function


def tensors(body: Callable[[Ways], Any], ways: Ways) -> list[Tensor]:
    """All tensors in what a loop returns."""
    torch.manual_seed(0)
    return [leaf.detach() for leaf in leaves(body(ways))]


def leaves(value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
        yield from (p.grad for p in value.parameters() if p.grad is not None)
    else:
        for one in value:
            yield from leaves(one)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def batch() -> Tensor:
    return torch.randn(3, 4)


def plain_step(ways, model, optimizer):
    @ways.step(model, optimizer)
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train


# -- averages, schedules, groups ---------------------------------------------------------------------------


@loop
def a_moving_average_inside_the_step(ways):
    model = mlp()
    average, optimizer = copy.deepcopy(model), torch.optim.AdamW(model.parameters(), 1e-2)

    @ways.step(model, optimizer, average)
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.1)
        return loss

    return [train(batch()) for _ in range(6)], model, average


@loop
def an_averaged_model_and_a_schedule_outside(ways):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    average = swa_utils.AveragedModel(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    train, losses = plain_step(ways, model, optimizer), []
    for _ in range(6):
        losses.append(train(batch()))
        average.update_parameters(model)
        schedule.step()
    return losses, model, average


@loop
def a_group_of_parameters_added_later(ways):
    model = mlp()
    optimizer = torch.optim.AdamW(model[0].parameters(), 1e-1)
    train, losses = plain_step(ways, model, optimizer), []
    for epoch in range(6):
        if epoch == 3:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 1e-3})
        losses.append(train(batch()))
    return losses, model


@loop
def a_checkpoint_loaded_in_the_middle(ways):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-1)
    train, losses, saved = plain_step(ways, model, optimizer), [], None
    for epoch in range(8):
        if epoch == 2:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if epoch == 5:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        losses.append(train(batch()))
    return losses, model


@loop
def gradients_accumulated_over_three_batches(ways):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-1)

    @ways.step(model, optimizer)
    def train(x, is_last):
        loss = model(x).square().mean() / 3
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return [train(batch(), place % 3 == 2) for place in range(9)], model


@loop
def a_learning_rate_set_by_hand_for_an_optimizer_outside(ways):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-1, momentum=0.9)
    compiled, losses = ways.compile(model), []
    for epoch in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (epoch + 1)
        loss = compiled(batch()).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        losses += [loss, nn.utils.clip_grad_norm_(model.parameters(), 0.1)]
        optimizer.step()
    return losses, model


# -- models that change while they train --------------------------------------------------------------------


@loop
def layers_frozen_and_thawed_around_a_compiled_model(ways):
    model = mlp()
    optimizer, compiled, losses = torch.optim.SGD(model.parameters(), 1e-1, momentum=0.9), ways.compile(model), []
    for epoch in range(6):
        model[0].requires_grad_(epoch not in (2, 3))
        loss = compiled(batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, model


@loop
def layers_frozen_and_thawed_in_a_step(ways):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-1, momentum=0.9)
    train, losses = plain_step(ways, model, optimizer), []
    for epoch in range(6):
        model[0].requires_grad_(epoch not in (2, 3))
        losses.append(train(batch()))
    return losses, model


@loop
def a_head_replaced_and_a_weight_bound_anew(ways):
    model = mlp()
    compiled, results = ways.compile(model), []
    for epoch in range(5):
        if epoch == 2:
            model[2] = nn.Linear(8, 3)
        if epoch == 3:
            model[0].weight = nn.Parameter(torch.ones(8, 4))
        if epoch == 4:
            model[0].weight.data = torch.zeros(8, 4)
        results.append(compiled(batch()))
    return results


class LowRank(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.ones(2, inner.in_features))
        self.up = nn.Parameter(torch.ones(inner.out_features, 2))

    def forward(self, x):
        return self.inner(x) + x @ self.down.T @ self.up.T


@loop
def a_layer_wrapped_in_a_low_rank_update(ways):
    model = mlp()
    compiled, results = ways.compile(lambda x: model(x)), []
    for epoch in range(4):
        if epoch == 2:
            model[0] = LowRank(model[0])
        results.append(compiled(batch()))
    return results


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens))


@loop
def tied_weights_untied(ways):
    model = Tied()
    compiled, losses = ways.compile(model), []
    for epoch in range(4):
        if epoch == 2:
            model.out.weight = nn.Parameter(model.embed.weight.detach().clone())
        loss = compiled(torch.tensor([1, 2, 3])).square().mean()
        model.zero_grad()
        loss.backward()
        losses.append([loss, *(p.grad.clone() for p in model.parameters())])
    return losses


@loop
def parametrized_weights(ways):
    weight_norm, spectral_norm = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(weight_norm(nn.Linear(4, 8)), spectral_norm(nn.Linear(8, 3)))
    train = plain_step(ways, model, torch.optim.SGD(model.parameters(), 1e-1))
    return [train(batch()) for _ in range(5)], model


# -- several modes, several models --------------------------------------------------------------------------


@loop
def training_and_evaluation_in_turn(ways):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    compiled, results = ways.compile(model), []
    for epoch in range(6):
        model.train(epoch % 2 == 0)
        results.append(compiled(batch()))
    return results, model


@loop
def evaluation_without_gradients_between_steps(ways):
    model = mlp()
    compiled, results = ways.compile(model), []
    for _ in range(3):
        model.zero_grad()
        compiled(batch()).square().mean().backward()
        with torch.no_grad():
            results.append(compiled(batch()))
        with torch.inference_mode():
            results.append(compiled(batch()).clone())
    return results, model


@loop
def autocast_in_every_second_step(ways):
    model = mlp()
    compiled, losses = ways.compile(model), []
    for epoch in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=epoch % 2 == 0):
            loss = compiled(batch()).float().square().mean()
        model.zero_grad()
        loss.backward()
        losses.append([loss, *(p.grad.clone() for p in model.parameters())])
    return losses


@loop
def two_models_that_play_against_each_other(ways):
    makes, judges = mlp(), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    for_makes, for_judges = (torch.optim.Adam(m.parameters(), 1e-2) for m in (makes, judges))

    @ways.step(makes, judges, for_judges)
    def judge(noise, real):
        for_judges.zero_grad()
        loss = functional.softplus(-judges(real)).mean() + functional.softplus(judges(makes(noise).detach())).mean()
        loss.backward()
        for_judges.step()
        return loss

    @ways.step(makes, judges, for_makes)
    def make(noise):
        for_makes.zero_grad()
        loss = functional.softplus(-judges(makes(noise))).mean()
        loss.backward()
        for_makes.step()
        return loss

    return [[judge(batch(), torch.randn(3, 2)), make(batch())] for _ in range(5)], makes, judges


@loop
def a_state_carried_from_batch_to_batch(ways):
    model = nn.LSTM(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), 1e-1)

    @ways.step(model, optimizer)
    def train(x, state):
        optimizer.zero_grad()
        y, state = model(x, state)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss, tuple(part.detach() for part in state)

    losses, state = [], (torch.zeros(1, 3, 5), torch.zeros(1, 3, 5))
    for _ in range(4):
        loss, state = train(torch.randn(6, 3, 4), state)
        losses.append(loss)
    return losses, state, model


@pytest.mark.parametrize("name", LOOPS)
def test_a_training_loop_ends_as_in_eager(name):
    expected, found = (tensors(LOOPS[name], ways) for ways in (EAGER, FOREGRAD))
    assert len(expected) == len(found) > 0
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(one, other), f"tensor {place} of {len(expected)} differs"
