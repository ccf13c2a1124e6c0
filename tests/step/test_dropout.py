"""Fifty steps of training with dropout, of attention too, and checkpointed blocks: bitwise as eager."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import foregrad as fg

STEPS, TOKENS, WIDTH = 50, 12, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.to_heads, self.from_heads = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.to_heads(self.norm(x)).view(batch, length, 3, 2, -1).transpose(1, 3)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(2), dropout_p=0.2, is_causal=True)
        x = x + self.from_heads(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Two blocks, of which the second is checkpointed: its masks are larger than the state of a generator."""

    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(32, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 32)
        self.first, self.second = Block(), Block()

    def forward(self, tokens):
        x = self.first(self.drop(self.embed(tokens)))
        return self.head(checkpoint(self.second, x, use_reentrant=False))


def train(wrap_model, wrap_step):
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    call = wrap_model(model)

    def step(tokens):
        optimizer.zero_grad()
        loss = functional.cross_entropy(call(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss

    run = wrap_step(step, model, optimizer)
    batches = torch.randint(0, 32, (STEPS, 9, TOKENS), generator=torch.Generator().manual_seed(2))
    losses = torch.stack([run(tokens).detach() for tokens in batches])
    return losses, [p.detach() for p in model.parameters()], torch.get_rng_state()


@functools.cache
def eager():
    return train(lambda model: model, lambda step, *_: step)


RECOMPUTED = (lambda program: program.recompute(lambda node: True, prefer=True),)


@pytest.mark.parametrize("passes", [(), RECOMPUTED], ids=["as it is", "everything recomputed"])
def test_a_compiled_model_trains_bitwise_as_eager(passes):
    assert_same(train(lambda model: fg.compile(model, backend="eager", passes=passes), lambda step, *_: step))


def test_a_step_trains_bitwise_as_eager():
    assert_same(train(lambda model: model, lambda step, *state: fg.step(*state, backend="eager")(step)))


def assert_same(found):
    losses, parameters, state = eager()
    assert torch.equal(losses, found[0]), (losses - found[0]).abs()
    assert all(map(torch.equal, parameters, found[1]))
    assert torch.equal(state, found[2])
    assert losses[-5:].mean() < losses[:5].mean()
