"""Errors of kernels, which depend on the data: the function may catch them, and writes before them have happened."""

import pytest
import torch

import foregrad as fg
from tests.compare import compiled, same_as_eager


def factor(x, tries):
    tries.add_(1)
    for jitter in (0.0, 0.5, 2.0):
        try:
            return torch.linalg.cholesky(torch.eye(2) * (x + jitter))
        except RuntimeError:
            tries.mul_(2)
    return torch.eye(2)


@same_as_eager
def test_an_error_that_the_function_catches(wrap):
    f, found = wrap(factor), []
    for value in (1.0, -1.0, -0.2, 1.0, -9.0):
        x, tries = torch.tensor(value, requires_grad=True), torch.ones(2)
        found += [f(x, tries), tries]
    return found


@same_as_eager
def test_an_error_that_it_does_not_catch_comes_after_its_writes(wrap):
    def function(x, index, written):
        written.add_(1)
        return x[index] * 2

    f, found = wrap(function), []
    for index in (1, 7, 2):
        x, written = torch.ones(3, requires_grad=True), torch.ones(2)
        try:
            found.append(f(x, torch.tensor([index]), written))
        except (IndexError, RuntimeError) as error:
            found.append("index" in str(error))
        found += [written, written._version]
    return found


@same_as_eager
def test_a_question_after_it(wrap):
    def function(x, tries):
        root = factor(x, tries)
        return root * 2 if root.sum() > 2 else root

    f, found = wrap(function), []
    for value in (1.0, -1.0, 4.0, -0.2, 1.0):
        tries = torch.ones(2)
        found += [f(torch.tensor(value), tries), tries]
    return found


def test_it_is_eagers_own_error_and_the_program_stays():
    f = compiled(lambda x: torch.linalg.cholesky(x))
    good, bad = torch.eye(2), -torch.eye(2)
    f(good)
    with pytest.raises(RuntimeError, match="not positive-definite") as error:
        f(bad)
    assert error.value.__context__ is None
    assert error.traceback[-1].name == "<lambda>"
    f(good)
    assert len(f.captures) == 1


@same_as_eager
def test_random_numbers_after_an_error(wrap):
    f = wrap(lambda x: torch.linalg.cholesky(x) * 2)
    torch.manual_seed(0)
    for x in (torch.eye(2), -torch.eye(2)):
        try:
            f(x)
        except RuntimeError:
            torch.rand(1)
    return torch.rand(3)


def test_a_loaded_file_raises_the_error_of_the_kernel(tmp_path):
    f = compiled(lambda x: torch.linalg.cholesky(x))
    f(torch.eye(2))
    f.save(tmp_path / "f.fg")
    with pytest.raises(RuntimeError, match="not positive-definite"):
        fg.load(tmp_path / "f.fg")(-torch.eye(2))


@same_as_eager
def test_an_error_after_random_numbers(wrap):
    def function(x):
        y = torch.nn.functional.dropout(x, 0.5)
        try:
            return torch.linalg.cholesky(torch.eye(2) * y.sum())
        except RuntimeError:
            return torch.eye(2) * torch.rand(1)

    f, found = wrap(function), []
    for value in (1.0, -1.0, 2.0, -3.0):
        torch.manual_seed(0)
        found += [f(torch.full((8,), value)), torch.rand(1)]
    return found


def test_errors_of_others_than_kernels_do_not_run_the_function():
    raised = []

    def fails(value):
        raised.append(value)
        raise KeyError("of another")

    def keeps(tensor):
        return hook[0](tensor)

    hook, x = [lambda tensor: tensor], torch.ones(3, requires_grad=True)
    hooked, tell = fg.compile(torch.sin, backend="eager"), fg.python(fails)
    with torch.autograd.graph.saved_tensors_hooks(keeps, lambda tensor: tensor):
        hooked(x)
        hook[0] = fails
        with pytest.raises(KeyError, match="of another"):
            hooked(x)
    assert len(raised) == 1
    tells = fg.compile(lambda x: (tell(x), x * 2)[1], backend="eager")
    for _ in range(2):
        with pytest.raises(KeyError, match="of another"):
            tells(torch.ones(3))
    assert len(raised) == 3
