"""Calls whose arguments are one tensor, or lie in one memory, are found without tracing, and told apart."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import foregrad as fg
from foregrad.cache.serialize.cached_calls import FOUND


@pytest.fixture
def cache(tmp_path: Path) -> fg.Cache:
    return fg.Cache(tmp_path / "cache")


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def started(function, cache: fg.Cache, make) -> str:
    """How a call comes about in a new compiled function; it does what eager does."""
    compiled = fg.compile(function, backend="eager", cache=cache, progress=False)
    given, same = make(), make()
    assert torch.equal(compiled(*given), function(*same))
    assert all(torch.equal(a, b) for a, b in zip(given, same, strict=True))
    return compiled.captures[0].origin.how


def two(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.arange(4, dtype=dtype), torch.arange(4, dtype=dtype) + 1


def one_twice(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.arange(4, dtype=dtype)
    return x, x


def rows(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.ones(2, 4, dtype=dtype))


def base_and_view(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.arange(4, dtype=dtype)
    return x, x[:]


def overlapping(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.arange(8, dtype=dtype)
    return x[:4], x[2:6]


MAKERS = [two, one_twice, rows, base_and_view, overlapping]


@pytest.mark.parametrize("function", [scaled, written])
@pytest.mark.parametrize("make", MAKERS)
def test_arguments_that_share_memory_are_found_without_tracing(function, make, cache: fg.Cache):
    assert started(function, cache, make) != FOUND
    assert started(function, cache, make) == FOUND


@pytest.mark.parametrize("function", [scaled, written])
def test_what_shares_memory_otherwise_is_another_call(function, cache: fg.Cache):
    for make in MAKERS:
        assert started(function, cache, make) != FOUND, make.__name__
    for make in reversed(MAKERS):
        assert started(function, cache, make) == FOUND, make.__name__


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(8, 4), nn.Linear(4, 8)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.out(self.embed(input_ids)), labels)


@pytest.mark.parametrize("make", MAKERS)
def test_a_found_call_with_arguments_of_one_memory_is_recorded_when_more_is_asked_for(make, cache: fg.Cache):
    def second_order(model: nn.Module, loss) -> list[Tensor]:
        tokens, labels = make(torch.long)
        (first,) = torch.autograd.grad(loss(tokens, labels), model.out.weight, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), model.out.weight)]

    def compiled() -> tuple[nn.Module, nn.Module]:
        model = Language()
        return model, fg.compile(model, backend="eager", cache=cache, progress=False)

    second_order(*compiled())
    model, found = compiled()
    ours, eager = second_order(model, found), second_order(*[Language()] * 2)
    assert found.captures[0].origin.how == FOUND
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one, other)


def test_tokens_that_are_their_own_labels_start_without_tracing(cache: fg.Cache):
    def run() -> str:
        model = Language()
        compiled = fg.compile(model, backend="eager", cache=cache, progress=False)
        tokens = torch.arange(8)
        ours = compiled(input_ids=tokens, labels=tokens)
        assert torch.equal(ours, Language()(input_ids=tokens, labels=tokens))
        ours.backward()
        return compiled.captures[0].origin.how

    assert run() != FOUND
    assert run() == FOUND
