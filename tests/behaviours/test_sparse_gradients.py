"""SPR: sparse gradients of embeddings. Eager is the reference: layout, coalesced or not, indices, values."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from tests.compare import BACKEND, also_compiled, compiled, refused

TOKENS = torch.tensor([[1, 3, 1], [0, 4, 4]])


def facts(value):
    """What can be seen of a gradient, sparse or not."""
    if isinstance(value, (list, tuple)):
        return [facts(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    seen = [value.layout, tuple(value.shape), value.dtype, value.requires_grad, value.is_leaf]
    if value.is_sparse:
        return [*seen, value.is_coalesced(), facts(value._indices()), facts(value._values())]
    return [*seen, value.tolist() if BACKEND == "eager" else pytest.approx(value.flatten().tolist(), 1e-5)]


def same_as_eager(story):
    """Run a story with the identity and with `fg.compile`; it returns what is to be the same."""

    @functools.wraps(story)
    def test():
        found = []
        for wrap in (compiled, lambda fn: fn):
            torch.manual_seed(0)
            found.append(story(wrap))
        ours, eagers = found
        if BACKEND != "eager":
            torch.testing.assert_close([dense(t) for t in ours], [dense(t) for t in eagers])
        assert facts(ours) == facts(eagers) if BACKEND == "eager" else kinds(ours) == kinds(eagers)

    del test.__wrapped__  # its parameter is no fixture
    return test


def dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def kinds(tensors):
    return [(t.layout, t.shape, t.is_sparse and (t.is_coalesced(), t._nnz())) for t in tensors]


@also_compiled
@same_as_eager
def test_SPR_1_an_embedding_gets_a_sparse_gradient(wrap):
    embedding = nn.Embedding(5, 3, sparse=True)
    wrap(embedding)(TOKENS).sin().sum().backward()
    return [embedding.weight.grad]


@same_as_eager
def test_SPR_1_sparse_gradients_add_up_over_two_backwards(wrap):
    embedding = nn.Embedding(5, 3, sparse=True)
    f = wrap(embedding)
    f(TOKENS).sin().sum().backward()
    f(TOKENS + 0).exp().sum().backward()
    return [embedding.weight.grad]


@same_as_eager
def test_SPR_1_a_sparse_gradient_is_added_to_a_dense_one(wrap):
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding.weight.grad = torch.ones(5, 3)
    wrap(embedding)(TOKENS).sin().sum().backward()
    return [embedding.weight.grad]


@same_as_eager
def test_SPR_1_one_token_one_entry(wrap):
    embedding = nn.Embedding(5, 3, sparse=True)
    wrap(embedding)(torch.tensor(2)).sum().backward()
    return [embedding.weight.grad]


@same_as_eager
def test_SPR_1_no_tokens_at_all(wrap):
    embedding = nn.Embedding(5, 3, sparse=True)
    wrap(embedding)(torch.zeros(0, dtype=torch.long)).sum().backward()
    return [embedding.weight.grad]


@same_as_eager
def test_SPR_1_padding_gets_no_entries(wrap):
    embedding = nn.Embedding(5, 3, padding_idx=1, sparse=True)
    f = wrap(embedding)
    f(TOKENS).exp().sum().backward()
    first = embedding.weight.grad
    embedding.weight.grad = None
    f(torch.ones_like(TOKENS)).exp().sum().backward()
    return [first, embedding.weight.grad]


@same_as_eager
def test_SPR_2_two_lookups_give_one_sparse_gradient(wrap):
    weight = torch.randn(5, 3, requires_grad=True)
    look_up = functools.partial(F.embedding, weight=weight, sparse=True)
    wrap(lambda a, b: look_up(a).sum() * look_up(b).sin().sum())(TOKENS, TOKENS[0]).backward()
    return [weight.grad]


@also_compiled
@same_as_eager
def test_SPR_2_a_weight_that_is_tied_to_a_dense_use_gets_a_dense_gradient(wrap):
    weight = torch.randn(5, 3, requires_grad=True)
    wrap(lambda w: F.embedding(TOKENS, w, sparse=True) @ w.T)(weight).sum().backward()
    return [weight.grad]


@same_as_eager
def test_SPR_2_a_weight_that_is_computed_hands_the_gradient_on(wrap):
    leaf = torch.randn(5, 3, requires_grad=True)
    wrap(lambda w: F.embedding(TOKENS, w, sparse=True).exp())(leaf * 2).sum().backward()
    return [leaf.grad]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_SPR_3_an_embedding_bag_gets_a_sparse_gradient(mode):
    @same_as_eager
    def story(wrap):
        bag = nn.EmbeddingBag(5, 3, sparse=True, mode=mode)
        wrap(bag)(TOKENS).sin().sum().backward()
        return [bag.weight.grad]

    story()


@same_as_eager
def test_SPR_3_bags_with_offsets_and_weights(wrap):
    bag = nn.EmbeddingBag(5, 3, sparse=True, mode="sum")
    weights = torch.rand(6, requires_grad=True)
    wrap(bag)(TOKENS.flatten(), torch.tensor([0, 2]), per_sample_weights=weights).sin().sum().backward()
    return [bag.weight.grad, weights.grad]


@same_as_eager
def test_SPR_3_bags_with_padding_that_lie_as_the_last_offset_says(wrap):
    bag = nn.EmbeddingBag(5, 3, sparse=True, mode="mean", padding_idx=1, include_last_offset=True)
    plain = nn.EmbeddingBag(5, 3, sparse=True, mode="sum", include_last_offset=True)
    tokens, offsets = TOKENS.flatten(), torch.tensor([0, 2, 2, 6])
    wrap(lambda: bag(tokens, offsets).sin().sum() + plain(tokens, offsets).exp().sum())().backward()
    return [bag.weight.grad, plain.weight.grad]


@same_as_eager
def test_SPR_3_hooks_see_the_sparse_gradient(wrap):
    embedding, seen = nn.Embedding(5, 3, sparse=True), []
    embedding.weight.register_hook(lambda grad: seen.append(grad) or grad * 2)
    wrap(embedding)(TOKENS).sum().backward()
    return [*seen, embedding.weight.grad]


@same_as_eager
def test_SPR_3_sparse_adam_outside_of_the_compiled_model(wrap):
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(9, 1))
    f, optimizer = wrap(model), torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        f(TOKENS).square().mean().backward()
        optimizer.step()
    return [model[0].weight, model[0].weight.grad, model[2].weight.grad]


def test_SPR_4_a_gradient_of_a_sparse_gradient_is_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    loss = compiled(embedding)(TOKENS).sin().sum()
    with pytest.raises(fg.CaptureError, match="sparse=False"):
        loss.backward(create_graph=True)


@same_as_eager
def test_SPR_4_a_function_returns_sparse_tensors(wrap):
    def both(w, x):
        return torch.autograd.grad(F.embedding(TOKENS, w, sparse=True).exp().sum(), w)[0], x.to_sparse() * 2

    return wrap(both)(torch.randn(5, 3, requires_grad=True), torch.eye(3))


def test_SPR_4_what_writes_a_sparse_tensor_is_refused():
    def function(x):
        sparse = x.to_sparse()
        return sparse.mul_(2)  # the use

    with refused(function, at="# the use"):
        compiled(function)(torch.eye(3))


def test_SPR_4_a_write_to_what_a_sparse_tensor_is_made_of_is_refused():
    def function(x):
        sparse = x.to_sparse()  # made
        x.add_(1)
        return sparse

    with refused(function, at="# made"):
        compiled(function)(torch.eye(3))


def test_SPR_4_a_number_that_varies_is_not_frozen_in_a_sparse_tensor():
    weight, rate = torch.randn(5, 3, requires_grad=True), torch.tensor(2.0)

    def step():
        (grad,) = torch.autograd.grad(F.embedding(TOKENS, weight, sparse=True).sum(), weight)
        return grad * rate.item()  # the number

    with refused(step, at="# the number"):
        fg.step(rate, backend=BACKEND)(step)()
