"""Modules of torch that act otherwise where no gradient is asked for."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options).eval()


X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[False, False, True, True], [False, False, False, True]])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_called_inside", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_takes_out_padded_positions_is_refused(mode, is_called_inside):
    model = encoder()
    compiled = fg.compile((lambda x, **mask: model(x, **mask)) if is_called_inside else model, backend="eager")
    with mode():
        assert not model(X, src_key_padding_mask=MASK)[MASK].any()  # what comes back as zeros
        with pytest.raises(fg.CaptureError, match="a nested tensor, of which the sizes depend on data"):
            compiled(X, src_key_padding_mask=MASK)


@pytest.mark.parametrize("mask", [None, MASK])
def test_an_encoder_without_that_path_is_that_of_eager(mask):
    model = encoder(enable_nested_tensor=False)
    compiled = fg.compile(copy.deepcopy(model), backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, src_key_padding_mask=mask), model(X, src_key_padding_mask=mask))


def test_an_encoder_with_gradients_takes_nothing_out():
    model = encoder()
    compiled = fg.compile(copy.deepcopy(model), backend="eager")
    out, expected = (one(X, src_key_padding_mask=MASK) for one in (compiled, model))
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    for ours, theirs in zip(compiled.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_encoder_in_training_is_that_of_eager():
    model = encoder().train()
    compiled = fg.compile(copy.deepcopy(model), backend="eager")
    torch.testing.assert_close(compiled(X, src_key_padding_mask=MASK), model(X, src_key_padding_mask=MASK))


@pytest.mark.parametrize("is_called_inside", [False, True])
def test_attention_takes_the_fast_path_of_eager(is_called_inside):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    compiled = fg.compile((lambda *args: model(*args)) if is_called_inside else model, backend="eager")
    with torch.no_grad():
        ours, theirs = compiled(X, X, X)[0], model(X, X, X)[0]
    assert torch.equal(ours, theirs)
    assert ours.stride() == theirs.stride()


def test_a_number_that_an_op_finds_in_data_is_refused():
    fits = torch.ops.aten.allclose.default
    with pytest.raises(fg.CaptureError):
        fg.compile(lambda x: x * 2 if fits(x, x + 1) else x, backend="eager", questions="error")(X)


def test_another_kernel_of_attention_is_another_program():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = nn.functional.scaled_dot_product_attention
    compiled = fg.compile(attend, backend="eager", cache=False)
    q, k, v = torch.randn(3, 2, 2, 64, 16, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        assert torch.equal(compiled(q, k, v), attend(q, k, v))
        with sdpa_kernel(SDPBackend.MATH):
            assert torch.equal(compiled(q, k, v), attend(q, k, v))
    assert len(compiled.captures) == 2
