"""A training process starts without torch's compiler, and finds it when it is wanted."""

import subprocess
import sys

PLAIN = """
import sys, torch, foregrad
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


def test_an_optimizer_needs_no_compiler():
    run(PLAIN)


def test_an_optimizer_switches_the_compiler_off_once_it_is_there():
    run(PLAIN + WITH_THE_COMPILER)


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
