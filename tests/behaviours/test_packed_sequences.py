"""Recurrent layers over packed sequences, of lengths that are plain numbers, or data."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.compare import compiled

KINDS = {"rnn": nn.RNN, "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k), "gru": nn.GRU, "lstm": nn.LSTM}


def last_of(hidden):
    return hidden[0] if isinstance(hidden, tuple) else hidden


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
def test_lengths_of_data(kind, both_ways):
    torch.manual_seed(0)
    rnn = KINDS[kind](2, 3, num_layers=2, bidirectional=both_ways)

    def function(x, lengths):
        packed, hidden = rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(packed)[0].sin().sum() + last_of(hidden).sum()

    f = compiled(function)
    for lengths in ([4, 2, 1], [1, 3, 3], [4, 2, 1]):
        x, found = torch.randn(4, 3, 2), []
        for one in (f, function):
            rnn.zero_grad()
            leaf = x.clone().requires_grad_()
            result = one(leaf, torch.tensor(lengths))
            result.backward()
            found.append([result.detach(), leaf.grad, *(p.grad.clone() for p in rnn.parameters())])
        assert all(map(torch.equal, *found))
    assert len(f.captures) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_that_are_plain_numbers_and_a_sequence_that_was_packed_before(kind):
    torch.manual_seed(0)
    rnn, x = KINDS[kind](2, 3), torch.randn(4, 2, 2)
    inside = compiled(lambda x: last_of(rnn(pack_padded_sequence(x, [4, 1]))[1]))
    assert torch.equal(inside(x), last_of(rnn(pack_padded_sequence(x, [4, 1]))[1]))
    given = compiled(lambda packed: last_of(rnn(packed)[1]))
    for lengths in ([4, 1], [3, 3]):
        packed = pack_padded_sequence(x, lengths)
        assert torch.equal(given(packed), last_of(rnn(packed)[1]))
