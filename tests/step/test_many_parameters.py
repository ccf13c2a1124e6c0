"""A step with many parameters: one op of the optimizer writes to thousands of tensors, and each is looked at once."""

import pytest
import torch
from torch import nn

import foregrad as fg


@pytest.mark.slow
def test_a_fused_optimizer_of_many_parameters_is_captured_and_right():
    """Where each tensor was compared with all others for each of them, this took minutes."""
    models = [nn.ParameterList([torch.full((2,), float(i)) for i in range(400)]) for _ in range(2)]
    losses = []
    for model, compile_step in zip(models, (lambda *state: lambda f: f, fg.step), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        @compile_step(model, optimizer)
        def train(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum((p * x).square().sum() for p in model)
            loss.backward()
            optimizer.step()
            return loss

        losses.append([train(torch.ones(2)).item() for _ in range(3)])
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
