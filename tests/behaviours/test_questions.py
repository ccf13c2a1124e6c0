"""What Python asks of a tensor besides its sizes: it is told what eager would be told, at each call, or refused."""

import pytest
import torch

import foregrad as fg


def leaf():
    return torch.arange(1.0, 4.0, requires_grad=True)


def plain(size=3):
    return torch.arange(1.0, size + 1.0)


def complex_one():
    return torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))


def with_grad(tensor):
    tensor.grad = torch.ones_like(tensor)
    return tensor


def is_a_view(x):
    if x._base is not None:
        return x * 2
    return x * 3


#: A function, and what makes its inputs: each is answered otherwise.
ANSWERED = {
    "storage_offset": (lambda x: x * x.storage_offset(), (plain, lambda: plain(6)[2:5])),
    "storage_offset of a view": (lambda x: x[1:] * x[1:].storage_offset(), (plain, lambda: plain(6)[2:5])),
    "storage_offset for a window": (
        lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1) * 1,
        (plain, lambda: plain(6)[2:5]),
    ),
    "is_conj": (lambda x: x * 2 if x.is_conj() else x * 3, (complex_one, lambda: complex_one().conj())),
    "is_neg": (
        lambda x: x * 2 if x.is_neg() else x * 3,
        (lambda: complex_one().imag, lambda: complex_one().conj().imag),
    ),
    "whether there is a grad_fn": (lambda x: x * 2 if x.grad_fn is None else x * 3, (leaf, lambda: leaf().exp())),
    "whether there is a _base": (is_a_view, (plain, lambda: plain(6)[:3])),
    "_is_view": (lambda x: x * 2 if x._is_view() else x * 3, (plain, lambda: plain(6)[:3])),
    "is_leaf": (lambda x: x * 2 if x.is_leaf else x * 3, (leaf, lambda: leaf().exp())),
    "grad": (lambda x: x * 2 if x.grad is None else x * 3, (leaf, lambda: with_grad(leaf()))),
    "is_contiguous": (lambda x: x * 2 if x.is_contiguous() else x * 3, (plain, lambda: plain(6)[::2])),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_an_input_is_asked_at_each_call(name):
    function, inputs = ANSWERED[name]
    compiled = fg.compile(function, backend="eager", cache=False)
    for make in (*inputs, *inputs):
        assert torch.equal(compiled(make()), function(make()))
    assert len(compiled.captures) == len(inputs)


def retained(tensor):
    tensor.retain_grad()
    return tensor


def hooked(tensor):
    tensor.register_hook(lambda gradient: gradient * 2)
    return tensor


#: What differs between a tensor and one without data, or at each call.
REFUSED = {
    "_version": (lambda x: x * x._version, plain),
    "grad_fn": (lambda x: x * len(x.grad_fn.name()), lambda: leaf().exp()),
    "_base": (lambda x: x * x._base.numel(), lambda: plain(6)[:3]),
    "_backward_hooks": (lambda x: x * len(x._backward_hooks), lambda: hooked(leaf())),
    "retains_grad": (lambda x: x * 2 if x.retains_grad else x * 3, lambda: retained(leaf().exp())),
    "is_shared": (lambda x: x * 2 if x.is_shared() else x * 3, lambda: plain().share_memory_()),
    "is_inference": (lambda x: x * 2 if x.is_inference() else x * 3, torch.inference_mode()(plain)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_capture_cannot_tell_is_refused(name):
    function, make = REFUSED[name]
    function(make())
    with pytest.raises(fg.CaptureError, match=f"for its {name}, of which(.|\n)*test_questions.py"):
        fg.compile(function, backend="eager", cache=False)(make())


@pytest.mark.parametrize("change", [retained, hooked])
def test_an_answer_that_changes_later_is_not_the_old_one(change):
    """The first call is told that there is nothing, and checks that at the next."""
    function = {
        retained: lambda x: x * 2 if x.retains_grad else x * 3,
        hooked: lambda x: x * len(x._backward_hooks or ()),
    }
    compiled = fg.compile(function[change], backend="eager", cache=False)
    compiled(leaf().exp())
    with pytest.raises(fg.CaptureError):
        compiled(change(leaf().exp()))


def test_answers_are_checked_in_a_later_process_too(tmp_path):
    def offset(x):
        return x * x.storage_offset()

    for _ in range(2):
        compiled = fg.compile(offset, backend="eager", cache=tmp_path)
        for x in (plain(), plain(6)[2:5], plain(6)[3:]):
            assert torch.equal(compiled(x), offset(x))
    assert {one.origin.how for one in compiled.captures} == {"found without tracing"}
