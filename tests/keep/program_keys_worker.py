"""Prints the digests of the keys of some captured programs."""

import json

import torch
from torch import nn

from foregrad.api.capture import capture_call
from foregrad.backends.eager import compile_graph
from foregrad.cache.key.program_key import program_key
from foregrad.runtime.options import Options


def views(x, y):
    flat = x.view(-1)
    y.add_(flat.view_as(y))
    y[:2].mul_(2)
    return {"flat": flat[::2], "turned": y.t(), "sum": (x * y).sum()}


def training():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    step(torch.ones(4, 8))
    return step, (model, optimizer, schedule)


def digest(function, *args, state=()):
    captured = capture_call(function, args, {}, state=state, python="allow" if state else None)
    return program_key(captured.program, Options(compile_graph)).digest


if __name__ == "__main__":
    step, state = training()
    x = torch.ones(4, 8, requires_grad=True)
    print(json.dumps([digest(views, x, torch.ones(4, 8)), digest(step, torch.ones(4, 8), state=state)]))
