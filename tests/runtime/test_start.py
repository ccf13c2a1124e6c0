"""With `fg.configure(lazy_dynamo=True)` a training process starts without torch's compiler, and gets it when needed."""

import subprocess
import sys

LAZY = """
import sys, torch, foregrad as fg
fg.configure(lazy_dynamo=True)
"""

TRAINED = """
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight])
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""

WITH_THE_COMPILER = """
import torch._dynamo
optimizer.zero_grad()
function = torch.optim.Optimizer.zero_grad
assert function.__wrapped__.__dict__["__dynamo_disable"]._torchdynamo_disable

@torch.compile(backend="eager")
def clear():
    weight.grad = torch.ones(3)
    optimizer.zero_grad()
    return weight * 2

assert clear().tolist() == [2.0] * 3 and weight.grad is None
"""

AS_IT_WAS = """
import torch
methods = [getattr(torch.optim.Optimizer, name) for name in dir(torch.optim.Optimizer)]
def state():
    return [(id(one), *vars(getattr(one, "__wrapped__", state))) for one in methods]
before = state()
import foregrad as fg
fg.step, fg.load, fg.configure()
assert state() == before
fg.configure(lazy_dynamo=True)
assert state() != before
fg.configure(lazy_dynamo=False)
assert state() == before
"""


def test_an_optimizer_needs_no_compiler():
    run(LAZY + TRAINED)


def test_an_optimizer_switches_the_compiler_off_once_it_is_there():
    run(LAZY + TRAINED + WITH_THE_COMPILER)


def test_optimizers_are_torchs_own_unless_that_was_asked_for():
    run(AS_IT_WAS)


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
