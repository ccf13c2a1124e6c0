"""What training steps do beside calling an optimizer: each bitwise as eager, with few captures."""

import collections
import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import foregrad as fg


def mlp():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def values(state):
    """Everything that can be seen of declared state."""
    found = []
    for one in state:
        if isinstance(one, nn.Module):
            found += [*one.state_dict().values(), *(p.grad for p in one.parameters())]
        elif isinstance(one, torch.optim.Optimizer):
            saved = one.state_dict()
            found += [v for s in saved["state"].values() for v in s.values()]
            found += [v for group in saved["param_groups"] for v in group.values()]
        else:
            found += [one] if isinstance(one, torch.Tensor) else list(one.state_dict().values())
    return [v for value in found for v in (value if isinstance(value, (list, tuple)) else [value])]


def assert_as_eager(setup, num_captures=2, num_steps=6, nan_is_equal=False):
    """`setup` gives a step, its state, and what to do after each step; nothing to do if it is None."""
    outcomes = []
    for is_step in (False, True):
        torch.manual_seed(0)
        step, state, after = setup()
        run = fg.step(*state, backend="eager")(step) if is_step else step
        torch.manual_seed(1)
        losses = []
        for number in range(num_steps):
            losses.append(run(torch.randn(6, 3), torch.randn(6, 2)).detach().clone())
            if after is not None:
                after(number)
        outcomes.append([*losses, *values(state)])
    expected, found = outcomes
    assert len(expected) == len(found)
    for place, (a, b) in enumerate(zip(expected, found, strict=True)):
        if isinstance(a, torch.Tensor):
            a, b = (a.nan_to_num(0.125), b.nan_to_num(0.125)) if nan_is_equal else (a, b)
            assert torch.equal(a, b), (place, a, b)
        else:
            assert type(a) is type(b), (place, a, b)
            assert a == b, (place, a, b)
    assert len(run.captures) <= num_captures, str(fg.explain(run))
    return run


def usual(make_model=mlp, make_optimizer=adamw, after=None):
    def setup():
        model = make_model()
        optimizer = make_optimizer(model)

        def step(x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step, (model, optimizer), None if after is None else after(model, optimizer)

    return setup


# -- schedules ----------------------------------------------------------------------------------------------

SCHEDULES = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: schedules.StepLR(o, 2),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: schedules.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: schedules.LinearLR(o),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 2),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=10),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)], optimizer=o
    ),
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_needs_no_new_capture(name, fused):
    def after(model, optimizer):
        scheduler = SCHEDULES[name](optimizer)
        return lambda number: scheduler.step()

    def make(model):
        return torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)

    assert_as_eager(usual(make_optimizer=make, after=after))


def test_a_schedule_by_the_loss_needs_no_new_capture():
    def after(model, optimizer):
        scheduler = schedules.ReduceLROnPlateau(optimizer, patience=0)
        return lambda number: scheduler.step(1.0 + number)

    assert_as_eager(usual(after=after))


@pytest.mark.parametrize("name", [n for n in SCHEDULES if n not in ("ChainedScheduler", "MultiStepLR")])
def test_a_schedule_can_be_part_of_the_step(name):
    """What it counts are numbers of declared state; where it branches on them, there is a capture for each way."""

    def setup():
        model = mlp()
        optimizer = adamw(model) if name != "CyclicLR" else torch.optim.SGD(model.parameters(), 0.01, 0.9)
        scheduler = SCHEDULES[name](optimizer)

        def step(x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss

        return step, (model, optimizer, scheduler), None

    assert_as_eager(setup, num_captures=6, num_steps=8)


def test_a_step_that_is_captured_again_and_again_says_why():
    """MultiStepLR looks its counter up in a dict, which needs its value."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = SCHEDULES["MultiStepLR"](optimizer)

    @fg.step(model, optimizer, scheduler, backend="eager")
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    with pytest.warns(UserWarning, match=r"captured 8 times:[\s\S]*8. scheduler.last_epoch \+ 1"):
        losses = [step(torch.ones(2, 3)) for _ in range(9)]
    assert all(type(loss) is float for loss in losses)


def test_a_number_may_change_the_path_of_the_optimizer():
    """Weight decay set to zero leaves an op out: a capture of its own, whose reason says so."""

    def after(model, optimizer):
        def change(number):
            optimizer.param_groups[0]["lr"] = 0.01 * (number + 1)
            optimizer.param_groups[0]["weight_decay"] = 0.0 if number >= 3 else 0.1

        return change

    step = assert_as_eager(usual(after=after), num_captures=3)
    assert "weight_decay != 0" in step.captures[-1].reason
    assert "was True, is False" in step.captures[-1].reason


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_learning_rate_may_be_a_tensor(kind):
    def after(model, optimizer):
        scheduler = schedules.ExponentialLR(optimizer, 0.9)
        return lambda number: scheduler.step()

    def make(model):
        return kind(model.parameters(), lr=torch.tensor(0.01))

    assert_as_eager(usual(make_optimizer=make, after=after))


def test_values_of_other_kinds_are_guarded():
    """A number of numpy's is no input, but a value that the program depends on."""

    def after(model, optimizer):
        def change(number):
            optimizer.param_groups[0]["lr"] = np.float64(0.01 * (number // 3 + 1))

        return change

    assert_as_eager(usual(after=after), num_captures=4)


def test_state_of_another_kind_is_captured_anew():
    def after(model, optimizer):
        def forget(number):
            if number == 3:
                for state in optimizer.state.values():
                    state["momentum_buffer"] = None

        return forget

    def make(model):
        return torch.optim.SGD(model.parameters(), 0.1, 0.9)

    assert_as_eager(usual(make_optimizer=make, after=after), num_captures=3)


def test_numbers_say_that_they_are_pythons_own():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    optimizer.param_groups[0]["count"] = 3
    kinds = []

    @fg.step(model, optimizer, backend="eager", python="allow")
    def step(x):
        group = optimizer.param_groups[0]
        kinds.extend([isinstance(group["lr"], float), isinstance(group["count"], int), isinstance(group["lr"], int)])
        return model(x).sum() * group["count"]

    step(torch.ones(2, 3))
    assert kinds == [True, True, False]


# -- optimizers -----------------------------------------------------------------------------------------------


def test_muon():
    def make(model):
        return torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.01)

    def after(model, optimizer):
        scheduler = schedules.ExponentialLR(optimizer, 0.9)
        return lambda number: scheduler.step()

    assert_as_eager(usual(make_optimizer=make, after=after))


class Mine(torch.optim.Optimizer):
    """Numbers, tensors and tuples of both in its state."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["last"] = 0, torch.zeros_like(p), (torch.zeros_like(p), 1.5)
                state["step"] += 1
                state["m"].mul_(0.9).add_(p.grad)
                state["last"] = (p.grad.clone(), state["step"] * 2.0)
                p.sub_(state["m"], alpha=group["lr"] / state["step"] ** 0.5)


def test_an_optimizer_of_the_users_own():
    assert_as_eager(usual(make_optimizer=lambda model: Mine(model.parameters(), 0.1)))


def test_several_optimizers_and_losses():
    def setup():
        model = mlp()
        first, second = torch.optim.SGD(model[0].parameters(), 0.1, 0.9), adamw(model[2])

        def step(x, y):
            first.zero_grad()
            second.zero_grad()
            loss, other = (model(x) - y).square().mean(), model(x).abs().mean()
            loss.backward()
            other.backward()
            first.step()
            second.step()
            return loss + other

        return step, (model, first, second), None

    assert_as_eager(setup)


def test_lbfgs_is_refused():
    model = mlp()
    with pytest.raises(fg.CaptureError, match="LBFGS evaluates the loss as often as its value says"):
        fg.step(model, torch.optim.LBFGS(model.parameters()))


def test_a_branch_on_the_loss_is_refused_with_its_line():
    model = mlp()

    @fg.step(model, backend="eager", questions="error")
    def step(x):
        loss = model(x).square().mean()
        return loss if loss.item() > 0 else -loss

    with pytest.raises(fg.CaptureError, match=r"test_training.py:\d+ in step"):
        step(torch.randn(2, 3))


# -- gradients ------------------------------------------------------------------------------------------------


def test_several_calls_before_an_optimizer_step():
    def setup():
        model = mlp()
        optimizer = adamw(model)

        def step(x, y):
            loss = (model(x) - y).square().mean() / 2
            loss.backward()
            return loss

        def after(number):
            if number % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=number % 4 == 1)

        return step, (model, optimizer), after

    assert_as_eager(setup, num_captures=4)


def test_gradients_zeroed_in_place_and_clipped_by_value():
    def setup():
        model = mlp()
        optimizer = adamw(model)

        def step(x, y):
            optimizer.zero_grad(set_to_none=False)
            loss = (model(x) - y).square().mean()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            return loss

        return step, (model, optimizer), None

    assert_as_eager(setup)


def test_a_gradient_without_backward():
    def setup():
        w = torch.randn(3, 2, requires_grad=True)

        def step(x, y):
            loss = (x @ w - y).square().mean()
            (gradient,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w.sub_(gradient, alpha=0.1)
            return loss

        return step, (w,), None

    assert_as_eager(setup, num_captures=1)


def test_a_gradient_penalty():
    def setup():
        model = mlp()
        optimizer = adamw(model)

        def step(x, y):
            optimizer.zero_grad()
            x = x.requires_grad_()
            loss = (model(x) - y).square().mean()
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + gradient.square().sum()).backward()
            optimizer.step()
            return loss

        return step, (model, optimizer), None

    assert_as_eager(setup)


class Unused(nn.Module):
    """A layer that gets no gradient, a frozen one, and tied weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.idle = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.frozen, self.last = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.frozen(self.second(self.first(x)).tanh()))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))

    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))


@pytest.mark.parametrize(
    "make",
    [
        Unused,
        Checkpointed,
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2)),
    ],
    ids=["unused, frozen, tied", "checkpoint", "dropout, batch norm"],
)
def test_models(make):
    assert_as_eager(usual(make))


def test_autocast():
    def setup():
        model = mlp()
        optimizer = adamw(model)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step, (model, optimizer), None

    assert_as_eager(setup)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_grad_scaler_leaves_steps_out(kind, options):
    """Where a gradient is not finite, nothing but the scale changes. Steps that create state run in eager; there
    torch's fused SGD leaves momentum uninitialized if it is left out, so it has none here.
    """

    def setup():
        model = mlp()
        more = {"momentum": 0.9} if kind is torch.optim.SGD and "fused" not in options else {}
        optimizer = kind(model.parameters(), lr=0.01, **more, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        calls = torch.zeros((), dtype=torch.int64)

        def step(x, y):
            calls.add_(1)
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean() / ((calls != 1) & (calls != 4))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return torch.zeros(())

        return step, (model, optimizer, scaler, calls), None

    step = assert_as_eager(setup, num_captures=4, num_steps=8, nan_is_equal=True)
    assert step.captures


# -- averages -------------------------------------------------------------------------------------------------


def test_averages_of_weights():
    """`n_averaged` is a tensor that Python asks: the first update copies."""

    def setup():
        model = mlp()
        optimizer = adamw(model)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        mean, by_hand = AveragedModel(model), copy.deepcopy(model)

        def step(x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            ema.update_parameters(model)
            mean.update_parameters(model)
            with torch.no_grad():
                for average, p in zip(by_hand.parameters(), model.parameters(), strict=True):
                    average.lerp_(p, 0.1)
            return loss

        return step, (model, optimizer, ema, mean, by_hand), None

    assert_as_eager(setup)


# -- the module and the optimizer stay the truth --------------------------------------------------------------


def test_evaluation_between_steps_sees_the_new_weights():
    def after(model, optimizer):
        x, seen = torch.ones(1, 3), []

        def evaluate(number):
            model.eval()
            seen.append(model(x).detach())
            model.train()
            assert number == 0 or not torch.equal(seen[-1], seen[-2])

        return evaluate

    assert_as_eager(usual(after=after))


def test_resuming_from_a_state_dict():
    """State loaded into a fresh module and optimizer is used by their step at once."""

    def after(model, optimizer):
        saved = {}

        def keep_or_resume(number):
            if number == 2:
                saved.update(copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
            elif number == 4:
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])

        return keep_or_resume

    assert_as_eager(usual(after=after))


def test_a_parameter_added_later_is_captured_anew():
    def after(model, optimizer):
        def add(number):
            if number == 2:
                model[0].bias.requires_grad_(False)
            elif number == 3:
                model[0].bias.requires_grad_(True)

        return add

    assert_as_eager(usual(after=after), num_captures=6)


def test_capture_takes_state_too():
    model = mlp()
    optimizer = adamw(model)

    def train(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    program = fg.capture(train, torch.randn(4, 3), state=(model, optimizer))
    assert "number" in {i.role for i in program.signature.inputs}
    assert any(i.name == "1 - optimizer.param_groups.0.betas.0" for i in program.signature.inputs)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())


class Box:
    def __init__(self, value):
        self.value = value


class Table(dict):
    pass


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize("make", [Box, lambda y: Table(y=y), lambda y: Pair(y, 3), lambda y: [Box(y)], lambda y: {y}])
def test_a_new_object_in_the_state_of_an_optimizer_is_refused(make):
    """It would hold a tensor without data."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @fg.step(model, optimizer, backend="eager")
    def train(x):
        loss = model(x).sum()
        optimizer.state["seen"] = make(loss.detach() * 2)
        return loss.detach()

    with pytest.raises(fg.CaptureError, match=r"puts a new .* into optimizer\.state\.seen"):
        train(torch.ones(2, 3))
    assert "seen" not in optimizer.state
