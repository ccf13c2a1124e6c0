"""Every optimizer of torch.optim, in every variant: 20 steps bitwise as eager, whatever the schedule does."""

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

from tests.step.training import assert_same, train

optim = torch.optim
OPTIMIZERS = {
    "SGD": (
        optim.SGD,
        [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}],
    ),
    "Adam": (optim.Adam, [{}, {"amsgrad": True, "weight_decay": 0.1}]),
    "AdamW": (optim.AdamW, [{}, {"amsgrad": True, "maximize": True}]),
    "NAdam": (optim.NAdam, [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}]),
    "RAdam": (optim.RAdam, [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}]),
    "Adamax": (optim.Adamax, [{}, {"weight_decay": 0.1}]),
    "Adagrad": (optim.Adagrad, [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.1}]),
    "Adadelta": (optim.Adadelta, [{}, {"weight_decay": 0.1}]),
    "RMSprop": (optim.RMSprop, [{}, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}]),
    "Rprop": (optim.Rprop, [{}, {"maximize": True}]),
    "ASGD": (optim.ASGD, [{}, {"t0": 5, "weight_decay": 0.1}]),
    "Adafactor": (optim.Adafactor, [{}, {"weight_decay": 0.1}]),
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
NEITHER = ("Adafactor",)
CAPTURABLE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Rprop", "ASGD")
WAYS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def cases():
    for name, (kind, options) in OPTIMIZERS.items():
        for way, flags in WAYS.items():
            if way == "fused" and name not in FUSED:
                continue
            for place, more in enumerate(options):
                yield pytest.param(kind, {**flags, **more}, id=f"{name}-{way}-{place}")


@pytest.mark.parametrize(("kind", "options"), list(cases()))
def test_twenty_steps_are_bitwise_as_eager(kind, options):
    def run(backend):
        return train(
            lambda groups: kind(groups, lr=0.05, **options),
            lambda optimizer: ExponentialLR(optimizer, 0.9),
            backend=backend,
            reload_at=9,
        )

    ours = run("eager")
    assert_same(run(None), ours)
    assert len(ours.step.captures) <= 5
