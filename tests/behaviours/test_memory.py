"""Memory: a tensor without data is read by nobody, whichever way he comes: he gets the value, or a refusal."""

import copy
import io
import pickle
import threading
import traceback

import numpy as np
import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled

X = torch.tensor([1.0, 2.0, 3.0])


def unseen(x):
    """Read past torch function modes."""
    with torch._C.DisableTorchFunction():
        return torch.from_numpy(x.numpy() * 2)


READS = {
    "to_dlpack": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)) * 2,
    "from_dlpack": lambda x: torch.from_dlpack(x) * 2,
    "dlpack to numpy": lambda x: torch.from_numpy(np.from_dlpack(x).copy()),
    "_to_dlpack": lambda x: torch.from_dlpack(torch._C._to_dlpack(x)),
    "data_ptr": lambda x: x * (x.data_ptr() % 2),
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "numpy of a view": lambda x: torch.from_numpy(x[1:].numpy() * 2),
    "numpy of data": lambda x: torch.from_numpy(x.data.numpy() * 2),
    "numpy, unseen": unseen,
    "asarray": lambda x: torch.from_numpy(np.asarray(x)),
    "ufunc": lambda x: torch.from_numpy(np.sin(x)),
    "untyped_storage": lambda x: x * sum(x.untyped_storage().tolist()),
    "storage": lambda x: x * x.storage()[0],
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": lambda x: copy.deepcopy(x),
    "copy": lambda x: copy.copy(x),
    "save": lambda x: torch.save(x, io.BytesIO()),
    "tolist": lambda x: x * x.tolist()[0],
    "print": lambda x: print(x),
    "str": lambda x: str(x),
    "f-string": lambda x: f"{x}",
    "percent": lambda x: "%s" % x,  # noqa: UP031  the form is what is tried
    "number in an f-string": lambda x: f"{x.sum():.3f}",
    "float": lambda x: x * float(x[0]),
    "constructor": lambda x: torch.Tensor([x[0], x[1]]) * 2,
    "constructor of a dtype": lambda x: torch.FloatTensor([x[0], 2.0]) * 2,
    "share_memory_": lambda x: x.share_memory_(),
    "reduce": lambda x: torch.multiprocessing.reductions.reduce_tensor(x),
    "of what was made inside": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2)),
}


@pytest.mark.filterwarnings("ignore:TypedStorage", "ignore:__array__")
@pytest.mark.parametrize("name", READS)
def test_a_read_is_refused_with_its_line(name):
    with pytest.raises(fg.CaptureError, match="test_memory"):
        compiled(READS[name], questions="error")(X.clone())


def test_a_refusal_names_the_call():
    with pytest.raises(fg.CaptureError, match=r"by torch.utils.dlpack.to_dlpack\(x\)"):
        compiled(READS["to_dlpack"])(X.clone())
    with pytest.raises(fg.CaptureError, match=r"by torch.FloatTensor\(\[x\[0\], 2.0\]\)"):
        compiled(READS["constructor of a dtype"])(X.clone())


SEQUENCES = {
    "tensor": lambda x: torch.tensor([x.sum(), 2.0, x[1]]) * 2,
    "tensor of data": lambda x: torch.tensor(data=[x.sum(), 2.0]),
    "nested": lambda x: torch.tensor([[x[0], 1], (x[1], x[2:3])]),
    "dtype": lambda x: torch.tensor([x[0], 7], dtype=torch.float64),
    "of another dtype": lambda x: torch.tensor([x[0].double(), x[1].half()]),
    "integers": lambda x: torch.tensor([x.long()[0], 3]),
    "as_tensor": lambda x: torch.as_tensor([x[0], x[1]]),
    "new_tensor": lambda x: x.new_tensor([x[0], 5]),
    "needs a gradient": lambda x: torch.tensor([x[0]], requires_grad=True) * x,
    "known": lambda x: x * torch.tensor([torch.arange(3).sum(), 2]).sum().item(),
    "copied": lambda x: torch.tensor(x),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_tensor_made_of_a_list_of_tensors(name):
    """It was made of uninitialised memory."""
    f = SEQUENCES[name]
    ours, theirs = compiled(f)(X.clone()), f(X.clone())
    assert torch.equal(ours, theirs)
    assert (ours.dtype, ours.requires_grad) == (theirs.dtype, theirs.requires_grad)


@pytest.mark.parametrize("read", [lambda t: t.numpy().sum(), lambda t: sum(t.tolist()), lambda t: np.asarray(t).sum()])
def test_a_value_that_depends_on_no_input_is_read(read):
    assert torch.equal(compiled(lambda x: x * float(read(torch.arange(3.0))))(X), X * 3)


def test_an_array_of_a_known_value_is_not_written():
    def through_the_array(x):
        known = torch.arange(3.0)
        known.numpy()[0] = 5
        return x * known

    def through_the_tensor(x):
        known = torch.arange(3.0)
        array = known.numpy()
        known.add_(1)
        return x * float(array[0])

    with pytest.raises(ValueError, match="read-only"):
        compiled(through_the_array)(X)
    with pytest.raises(fg.CaptureError, match="after it was given to NumPy"):
        compiled(through_the_tensor)(X)


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_numpy(gradient.numpy() * 2)


def test_a_read_in_backward_is_refused():
    out = compiled(lambda x: ReadsInBackward.apply(x))(X.clone().requires_grad_())
    with pytest.raises(fg.CaptureError, match="numpy"):
        out.sum().backward()


def test_a_read_in_a_hook_is_refused():
    def f(x):
        y = x * 2
        y.register_hook(lambda g: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(g)))
        return y.sin()

    out = compiled(f)(X.clone().requires_grad_())
    with pytest.raises(fg.CaptureError, match="to_dlpack"):
        out.sum().backward()


def test_a_write_in_another_thread_is_refused():
    def f(x):
        errors = []

        def work():
            try:
                x.add_(1)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise errors[0]

    x = X.clone()
    with pytest.raises(fg.CaptureError, match="reads the data"):
        compiled(f)(x)
    assert torch.equal(x, X)


def test_variables_of_a_function_that_raised_can_be_shown():
    def f(x):
        y = x * 2
        raise ValueError(y.shape)

    for function in (f, nn.Sequential(nn.Linear(3, 3), nn.Flatten(5))):
        try:
            compiled(function)(X.clone())
        except (ValueError, IndexError) as error:
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            assert "tensor(" in "".join(shown.format())


def test_a_backward_after_one_that_raised():
    """The first gives its ghosts memory, for those who look at its frames; the second has none again."""

    def f(x):
        a = x * 1
        b = ReadsInBackward.apply(x)
        return a.sin(), b

    x = X.clone().requires_grad_()
    first, second = compiled(f)(x)
    with pytest.raises(fg.CaptureError):
        second.sum().backward(retain_graph=True)
    first.sum().backward()
    torch.testing.assert_close(x.grad, X.cos())  # compiled code rounds otherwise


def test_a_resize_in_deterministic_mode():
    torch.use_deterministic_algorithms(True)
    try:
        ours, theirs = X.clone(), X.clone()
        for f, x in ((compiled(lambda x: x.resize_(5).fill_(2)), ours), (lambda x: x.resize_(5).fill_(2), theirs)):
            f(x)
        assert torch.equal(ours, theirs)
    finally:
        torch.use_deterministic_algorithms(False)
