"""Python that asks the data: `if mask.all():`, `.item()`, `x[x > 0]`. Each call is told what eager would be told."""

import math
import re
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from tests.compare import (
    BACKEND,
    HigherGradients,
    also_compiled,
    assert_same,
    compiled,
    grads_of,
    leaf,
    location,
    same_as_eager,
)


def of(*values):
    return lambda: (torch.tensor(values, requires_grad=True),)


SIGNS = [of(1.0, 2.0, 3.0), of(-1.0, -2.0, 3.5), of(-1.0, 2.0, -3.0), of(1.0, 2.0, 3.0), of(0.5, 0.25, 0.0)]


def branch(x):
    if x.sum() > 0:
        return x * 2
    return x.exp() + 1


def branch_on_all(x):
    return (x * 2).sin() if (x > 0).all() else x.cos()


def chain(x):
    for _ in range(3):
        if x.sum() > 1:
            x = x * 0.5
        else:
            x = x + 1
    return x


def loop(x):
    while x.abs().max() > 0.5:
        x = x * 0.5
    return x


def an_item_is_compared(x):
    scale = x.abs().sum().item()
    return x / scale if scale > 4 else x * scale


def an_item_is_computed_with(x):
    return x * (x.mean().item() * 3 + 1)


def an_item_is_returned(x):
    return x * 2, x.sum().item()


def items_of_integers(x):
    count = int((x > 0).sum())
    return x[:count] * 2


def a_list(x):
    return x * len([v for v in x.tolist() if v > 0])


def numpy_decides(x):
    return x * float((x.detach().numpy() > 0).sum())


def selected(x):
    return x[x > 0] * 2


def selected_returned_and_saved(x):
    y = x[x > 0]
    return y, y.sin()


def a_condition_is_returned_and_saved(x):
    y = x.exp()
    z = y.sum()
    return (z, z.sin()) if z > 4 else (y, y.sin(), z)


def selected_and_summed(x):
    y = x * 3
    return y[y > 0].square().sum() + y.sum()


def selected_and_written(x):
    y = x[x > 0]
    y.mul_(3)
    return y + 1


def written_where(x):
    y = x * 1
    y[y > 0] *= 5
    return y


def nonzero(x):
    return x.nonzero(), x * 2


def where_of_one(x):
    (places,) = torch.where(x > 0)
    return x.index_select(0, places)


def masked(x):
    return x.masked_select(x > 0).exp()


def unique(x):
    values, inverse, counts = x.detach().round().unique(return_inverse=True, return_counts=True)
    return values, inverse, counts, x * 2


def repeated(x):
    return x.repeat_interleave((x > 0).long() + 1)


def written_before(x):
    y = x * 1
    y.add_(1)
    if y.sum() > 0:
        y.mul_(2)
    return y


def an_input_is_written_on_one_way(x):
    y = x.detach()
    if y.sum() > 0:
        y.mul_(2)
    else:
        y.add_(1)
    return x * y


def views_across(x):
    y = x * 2
    row = y[1:]
    if row.sum() > 0:
        row.add_(1)
    return y, row


def equal(x):
    return x * 2 if torch.equal(x, x.abs()) else x * 3


def close(x):
    return x * 2 if torch.allclose(x, x.abs()) else x * 3


def finite(x):
    return x * 2 if math.isfinite(x.log().sum().item()) else x * 3


def a_value_of_the_middle(x):
    y = x.exp()
    z = y * x
    if z.sum() > 1:
        return z + y
    return z.sin() * y


def asked_twice(x):
    if x.sum() > 0:
        x = x * 2
    if x.sum() > 0:
        x = x * 3
    return x


def negated(x):
    return x if not (x > 0).any() else x * 2


def asserted(x):
    assert x.sum() < 100, "too large"
    return x * 2


def nothing_needs_a_gradient(x):
    with torch.no_grad():
        return x * 2 if x.sum() > 0 else x * 3


def detached_number(x):
    return x * float(x[0].detach() > 0.75)


FUNCTIONS = [
    branch,
    branch_on_all,
    chain,
    loop,
    an_item_is_compared,
    an_item_is_computed_with,
    an_item_is_returned,
    items_of_integers,
    a_list,
    numpy_decides,
    selected,
    selected_returned_and_saved,
    a_condition_is_returned_and_saved,
    selected_and_summed,
    selected_and_written,
    written_where,
    nonzero,
    where_of_one,
    masked,
    unique,
    repeated,
    written_before,
    an_input_is_written_on_one_way,
    views_across,
    equal,
    close,
    finite,
    a_value_of_the_middle,
    asked_twice,
    negated,
    asserted,
    nothing_needs_a_gradient,
    detached_number,
]


@also_compiled
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_each_call_is_as_in_eager(function):
    subject = assert_same(function, SIGNS, calls=2)
    assert len(subject.captures) <= len(SIGNS)


def test_an_answer_that_came_before_is_not_captured_again():
    subject = compiled(branch)
    for sign in (1, -1, 1, -1, 1, 1, -1):
        subject(torch.ones(3) * sign)
    assert len(subject.captures) == 2


@also_compiled
@same_as_eager
def test_dropout_before_a_branch(wrap):
    def function(x):
        y = nn.functional.dropout(x, 0.5)
        if y.sum() > 2:
            return nn.functional.dropout(y, 0.5)
        return y + torch.rand(3)

    torch.manual_seed(0)
    f, found = wrap(function), []
    for _ in range(12):
        x = torch.ones(3, requires_grad=True)
        out = f(x)
        out.sum().backward()
        found += [out, x.grad, torch.rand(1)]
    return found


@same_as_eager
def test_a_generator_of_the_users_before_a_branch(wrap):
    def function(x, generator):
        y = torch.rand(3, generator=generator)
        return x * y if y.sum() > 1.5 else x + torch.rand(3, generator=generator)

    f, generator = wrap(function), torch.Generator().manual_seed(3)
    return [f(torch.ones(3), generator) for _ in range(12)], torch.rand(2, generator=generator)


@same_as_eager
def test_second_derivatives(wrap):
    f, found = wrap(a_value_of_the_middle), []
    for value in (1.0, -1.0, 2.0):
        x = torch.full((3,), value, requires_grad=True)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x)
        found.append(HigherGradients((g, h)))
    return found


@same_as_eager
def test_a_checkpoint_asks_again_in_backward(wrap):
    def block(x):
        y = x.sin()
        return (y * 2).exp() if y.sum() > 0 else y.cos()

    f, found = wrap(lambda x: checkpoint(block, x * 1, use_reentrant=False)), []
    for value in (1.0, -1.0):
        x = torch.full((3,), value, requires_grad=True)
        f(x).sum().backward()
        found.append(grads_of(x))
    return found


@same_as_eager
def test_rows_are_selected_inside_a_checkpoint(wrap):
    f, found = wrap(lambda x: checkpoint(lambda y: y[y > 0].exp(), x * 2, use_reentrant=False)), []
    for values in ([1.0, -2.0, 3.0], [1.0, 2.0, 3.0]):
        x = torch.tensor(values, requires_grad=True)
        f(x).sum().backward()
        found.append(grads_of(x))
    return found


@also_compiled
@same_as_eager
def test_a_module_and_its_buffer(wrap):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.count += 1
            if self.count % 2 == 0:
                return self.linear(x)
            return self.linear(x).relu()

    torch.manual_seed(0)
    module = Counts()
    f, found = wrap(module), []
    for _ in range(5):
        out = f(torch.ones(2, 3))
        out.sum().backward()
        found += [out, module.count.clone(), module.linear.weight.grad.clone()]
    return found


@same_as_eager
def test_an_error_of_the_function_comes_after_its_writes(wrap):
    def function(x, limit):
        x.add_(1)
        if x.sum() > limit:
            raise ValueError("too much")
        return x * 2

    f, x, found = wrap(function), torch.zeros(3), []
    for _ in range(4):
        try:
            found.append(f(x, 8.0))
        except ValueError as error:
            found.append(str(error))
        found.append(x.clone())
    return found


def test_batch_norm_without_momentum():
    assert_same(nn.BatchNorm1d(3, momentum=None), lambda: (leaf(4, 3),), calls=4)


def test_a_question_after_more_ops_than_python_recurses():
    def function(x):
        y = torch.ones(3)
        for _ in range(700):
            x, y = x + 0.001, y + 0.001
        return x * 2 if x.sum() > 0 and y.sum() > 0 else x.cos()

    assert_same(function, SIGNS[:2])


def test_questions_can_be_refused():
    with pytest.raises(fg.CaptureError, match="is needed in Python"):
        fg.compile(branch, backend=BACKEND, questions="error")(torch.ones(3))
    with pytest.raises(ValueError, match="questions is"):
        fg.compile(branch, questions="no")


def test_the_tree_says_which_answer_came_how_often():
    subject = compiled(chain)
    for value in (1.0, 1.0, -1.0, 1.0, 8.0):
        subject(torch.full((3,), value))
    (asked,) = fg.explain(subject).asked
    assert re.search(location(chain, "if x.sum() > 1:"), asked.line)
    assert [(text, calls) for text, calls, *_ in asked.answers] == [("True", 4), ("False", 1)]
    assert "True: 4 calls" in str(fg.explain(subject))
    assert re.search(r"answer \d \(at .*\) was True, is False", fg.explain(subject).captures[1].reason)
    assert fg.explain(subject).as_json()["asked"][0]["answers"][0]["calls"] == 4


def test_many_answers_end_in_one_warning_and_eager():
    def function(x):
        return x * int(x.sum())

    subject, values = compiled(function), [torch.full((2,), float(value)) for value in range(20)]
    with pytest.warns(UserWarning, match="asks the data for a value that was another in more than 16") as caught:
        found = [subject(value) for value in values]
    assert len(caught) == 1
    assert all(map(torch.equal, found, map(function, values)))
    assert torch.equal(subject(torch.full((2,), 99.0)), torch.full((2,), 99.0 * 198))
    assert len(subject.captures) == 17


PATHS = """
import sys
import torch
import foregrad as fg

def function(x, mask):
    if mask.all():
        return x.sin()
    return x[mask].exp().sum() * x

compiled = fg.compile(function, backend="eager", cache=sys.argv[1])
for bits in ([True] * 3, [True, False, True], [False] * 3, [True] * 3):
    x, mask = torch.ones(3, requires_grad=True), torch.tensor(bits)
    out = compiled(x, mask)
    out.sum().backward()
    assert torch.equal(out, function(x, mask))
print(len(compiled.captures), sum("without tracing" in made.origin.how for made in compiled.captures))
compiled.save(sys.argv[1] + "/function.fg")
loaded = fg.load(sys.argv[1] + "/function.fg")
assert torch.equal(loaded(x, torch.tensor([True, False, True])), function(x, torch.tensor([True, False, True])))
assert torch.equal(loaded(x, mask), function(x, mask))
"""


def test_paths_are_found_by_later_processes_and_in_files(tmp_path):
    (tmp_path / "script.py").write_text(PATHS)
    command = [sys.executable, tmp_path / "script.py", tmp_path / "cache"]
    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(2)]
    assert told == [["3", "0"], ["3", "3"]]


def test_a_program_lists_what_was_asked():
    subject = compiled(branch)
    subject(torch.ones(3))
    assert "answer  True" in str(subject.captures[0])


@same_as_eager
def test_a_step_is_skipped_where_the_loss_is_not_finite(wrap):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if torch.isfinite(loss):
            optimizer.step()
        return loss

    train = fg.step(model, optimizer, backend=BACKEND)(step) if wrap(len) is not len else step
    found = []
    for value in (1.0, 2.0, math.inf, 3.0, math.nan, 1.0):
        found += [train(torch.full((2, 3), value)), model.weight.detach().clone()]
    return found


@same_as_eager
def test_a_step_clips_where_the_norm_is_large(wrap):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        if norm.item() > 0.5:
            for p in model.parameters():
                p.grad.mul_(0.5 / norm)
        optimizer.step()
        return loss.detach()

    train = fg.step(model, optimizer, backend=BACKEND)(step) if wrap(len) is not len else step
    return [train(torch.full((2, 3), value)) for value in (1.0, 0.1, 2.0, 0.1, 0.01, 1.0)], model.weight


def test_a_question_at_the_end_of_a_long_chain_of_ops():
    def function(x):
        ones = torch.zeros(3)
        for _ in range(400):
            x, ones = x + 1, ones + 1
        return x * ones.sum().item() if x.sum() > 0 else -x

    assert_same(function, [of(1.0, 2.0, 3.0), of(-500.0, 0.0, 0.0)])


def three_calls_beside_a_thread(f):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        torch.manual_seed(0)
        return [f(torch.full((3,), value)) for value in (1.0, 2.0, 3.0)], torch.rand(2)
    finally:
        stop.set()
        thread.join()


@same_as_eager
def test_a_tensor_is_made_of_numbers_after_dropout_beside_another_thread(wrap):
    def function(x):
        y = nn.functional.dropout(x, 0.5)
        return torch.tensor([y.sum().item(), 1.0]) + y.sum() + torch.tensor(y.max().item())

    return three_calls_beside_a_thread(wrap(function))


@same_as_eager
def test_an_integer_after_dropout_beside_another_thread(wrap):
    def function(x):
        y = nn.functional.dropout(x, 0.5)
        return x * int(y.sum()) + torch.tensor([int(y.max())])

    return three_calls_beside_a_thread(wrap(function))


class Counts(nn.Module):
    bad = 0

    def forward(self, x):
        if not torch.isfinite(x).all():
            self.bad += 1
            raise FloatingPointError("not finite")
        return x * 2


@same_as_eager
def test_an_error_of_a_module_comes_after_what_it_has_stored(wrap):
    module = Counts()
    f, found = wrap(module), []
    for value in (1.0, math.inf, math.nan, 2.0):
        try:
            found.append(f(torch.tensor([value])))
        except FloatingPointError as error:
            found.append(str(error))
        found.append(module.bad)
    return found


@same_as_eager
def test_an_error_of_the_function_comes_after_changes_of_arguments(wrap):
    def function(x, kept):
        kept["n"] = kept.get("n", 0) + 1
        kept["x"] = x * 2
        if x.sum() > 0:
            raise ValueError("too much")
        return x

    f, kept, found = wrap(function), {}, []
    for value in (-1.0, 1.0, 1.0):
        try:
            found.append(f(torch.tensor([value]), kept))
        except ValueError as error:
            found.append(str(error))
        found.append(dict(kept))
    return found


def test_an_error_after_an_iterator_has_moved_is_refused():
    def function(x, numbers):
        x.add_(next(numbers))
        if x.sum() > 0:
            raise ValueError("too much")
        return x

    x = torch.ones(1)
    with pytest.raises(fg.CaptureError, match="moved an iterator"):
        compiled(function)(x, iter([1, 10, 100]))
    assert x.item() == 1
