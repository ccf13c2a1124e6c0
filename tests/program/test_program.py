"""A program can be called by itself: its graph, on checked inputs."""

import pytest
import torch

import foregrad as fg


def scaled(x, w):
    return (x * w).sin()


def test_a_program_gives_outputs_and_gradients():
    x, w, tangent = torch.randn(3, requires_grad=True), torch.randn(3), torch.randn(3)
    output, gradient = fg.capture(scaled, x, w)(x.detach(), w, tangent)
    (expected,) = torch.autograd.grad(scaled(x, w), x, tangent)
    assert torch.equal(output, scaled(x, w))
    assert torch.equal(gradient, expected)


def test_every_mismatch_is_in_one_message():
    program = fg.capture(scaled, torch.randn(3, requires_grad=True), torch.randn(3))
    with pytest.raises(fg.GuardError) as caught:
        program(torch.randn(4), torch.randn(3, dtype=torch.float64), None)
    assert "x          captured as f32[3], given f32[4]" in str(caught.value)
    assert "w          captured as f32[3], given f64[3]" in str(caught.value)
    assert "tangent_0  captured as f32[3], given NoneType" in str(caught.value)


def test_a_wrong_number_of_inputs_is_said():
    with pytest.raises(fg.GuardError, match="3 inputs were captured, 1 are given"):
        fg.capture(scaled, torch.randn(3, requires_grad=True), torch.randn(3))(torch.randn(3))
