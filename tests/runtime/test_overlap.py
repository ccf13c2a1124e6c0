"""Overlap: which tensors share memory, asked at each call."""

import pytest
import torch

from foregrad.runtime.guards.overlap import Overlap

memory = torch.zeros(100)


def at(start, size=10):
    return memory[start : start + size]


def test_tensors_that_stay_or_move_apart_are_as_they_were():
    is_same = Overlap.of([at(0), at(20), at(40)])
    assert is_same([at(0), at(20), at(40)])
    for place in (50, 60, 30, 10, 90):
        assert is_same([at(0), at(20), at(place)])


@pytest.mark.parametrize("place", [0, 5, 11, 20, 29])
def test_a_tensor_that_moves_over_another_is_noticed(place):
    is_same = Overlap.of([at(0), at(20), at(40)])
    for elsewhere in (40, 60, 70):
        assert is_same([at(0), at(20), at(elsewhere)])
    assert not is_same([at(0), at(20), at(place)])
    assert is_same([at(0), at(20), at(40)])


def test_two_that_move_are_compared_with_each_other():
    is_same = Overlap.of([at(0), at(20), at(40)])
    assert is_same([at(0), at(30), at(60)])
    assert is_same([at(0), at(50), at(70)])
    assert not is_same([at(0), at(65), at(70)])


def test_one_that_never_moved_may_still_move():
    is_same = Overlap.of([at(0), at(20), at(40)])
    assert is_same([at(0), at(20), at(60)])
    assert is_same([at(80), at(20), at(60)])
    assert not is_same([at(25), at(20), at(60)])
    assert is_same([at(0), at(80), at(60)])


def test_tensors_that_shared_memory_must_share_it():
    is_same = Overlap.of([at(0), at(5), at(40)])
    assert is_same([at(50), at(55), at(20)])
    assert not is_same([at(50), at(70), at(20)])


def test_empty_tensors_share_nothing():
    is_same = Overlap.of([at(0), at(20, 0), at(40)])
    assert is_same([at(0), at(5, 0), at(40)])
    assert is_same([at(0), at(45, 0), at(40)])


def test_tensors_without_data():
    base = torch.empty(100, device="meta")
    is_same = Overlap.of([base[:10], base[20:30]])
    assert is_same([base[:10], base[40:50]])
    assert not is_same([base[:10], base[5:15]])
