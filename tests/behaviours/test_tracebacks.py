"""What a user sees of an error: the own lines, and the message (in plain Python and in pytest)."""

import functools
import os
import statistics
import subprocess
import sys
import textwrap
import traceback

import pytest
import torch
from torch import nn

import foregrad as fg

BRANCH = """
    import torch
    import foregrad as fg

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            y = self.layer(x)
            if y.sum() > 0:
                return y
            return -y

    def test_model():
        model = fg.compile(Model(), backend="eager", questions="error")
        model(torch.ones(2, 3))
"""


def told(tmp_path, text, *command, **surroundings):
    """What a script prints when it is run."""
    script = tmp_path / "test_script.py"
    script.write_text(textwrap.dedent(text))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **surroundings}
    run = subprocess.run(
        [sys.executable, *command, script], check=False, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert run.returncode
    return (run.stdout + run.stderr).splitlines()


def refused(function, *args, **kwargs):
    """The traceback of a refusal, as lines."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return "".join(traceback.format_exception(error)).splitlines()
    raise AssertionError("it was not refused")


def test_a_refusal_shows_the_users_frames_and_the_message(tmp_path):
    lines = told(tmp_path, BRANCH + "\n    test_model()\n")
    assert len(lines) <= 15
    assert "is needed in Python" in lines[-3]
    assert lines[-2] == f"  at {tmp_path}/test_script.py:12 in forward"
    files = [line for line in lines if line.startswith("  File ")]
    assert sum("test_script.py" in line for line in files) == 3
    assert sum("foregrad" in line for line in files) == 1


def test_everything_is_shown_on_request(tmp_path):
    lines = told(tmp_path, BRANCH + "\n    test_model()\n", FOREGRAD_TRACEBACK="full")
    assert len(lines) > 40
    assert any("recorder.py" in line for line in lines)


def test_pytest_shows_no_frame_of_foregrad(tmp_path):
    lines = told(tmp_path, BRANCH, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert any(
        line.startswith("test_script.py:12: in forward") or line == "test_script.py:12: CaptureError" for line in lines
    )
    assert not any("foregrad/" in line for line in lines)


def test_a_refusal_inside_a_library_names_the_users_line_too():
    def mean(x):
        return statistics.fmean(x)

    lines = refused(fg.compile(mean, backend="eager", questions="error"), torch.ones(3))
    at, called = [line for line in lines if line.startswith(("  at ", "  called at "))]
    assert "statistics.py" in at
    assert called == f"  called at {__file__}:{mean.__code__.co_firstlineno + 1} in mean"


def test_an_error_of_the_function_shows_what_eager_shows():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def files(lines):
        return [line for line in lines if line.startswith("  File ")]

    eager, compiled = refused(model, torch.ones(2, 4)), refused(fg.compile(model, backend="eager"), torch.ones(2, 4))
    assert compiled[-1] == eager[-1]
    assert files(compiled)[-1] == files(eager)[-1]
    assert sum("foregrad/" in line for line in files(compiled)) == 1


def test_an_error_that_the_function_chains_keeps_its_cause():
    def function(x):
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    with pytest.raises(ValueError, match="second") as caught:
        fg.compile(function, backend="eager")(torch.ones(2))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.numpy(), "numpy()"),
        (lambda x: x.tolist(), "tolist()"),
        (lambda x: sum(x.__array__()), "numpy.asarray()"),
    ],
)
def test_what_asks_for_data_is_named(function, name):
    assert (
        f"`{name}` of a tensor f32[2]"
        in refused(fg.compile(function, backend="eager", questions="error"), torch.ones(2))[-3]
    )


def test_a_tensor_on_the_wrong_device_is_named_with_its_device():
    model = fg.compile(nn.Linear(3, 3), backend="eager")
    with pytest.raises(
        RuntimeError, match=r"on the same device, but those given to aten\.addmm\.default are on meta and cpu"
    ):
        model(torch.ones(2, 3, device="meta"))


@pytest.mark.parametrize("keyword", ["mode", "fullgraph", "options", "disable"])
def test_a_keyword_of_torch_compile_gets_a_sentence(keyword):
    for function in (functools.partial(fg.compile, torch.neg), fg.step):
        with pytest.raises(TypeError, match=f"has no {keyword}=, which is torch.compile's; "):
            function(**{keyword: None})
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            function(colour=1)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(
    "wrap", [lambda model: fg.step(model, backend="eager"), lambda _: functools.partial(fg.compile, backend="eager")]
)
def test_an_optimizer_that_is_not_declared_is_refused(make, wrap):
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters(), 0.1)

    @wrap(model)
    def train(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    lines = refused(train, torch.ones(2, 3))
    assert lines[-3].endswith("which is not declared: its learning rate would stay what it is now.")
    assert lines[-1] == "Declare the optimizer: fg.step(model, optimizer)."
    assert model.weight.grad is None


def test_an_optimizer_that_the_function_makes_is_its_own():
    def fit(x):
        weight = x.detach().clone().requires_grad_()
        optimizer = torch.optim.SGD([weight], 0.5)
        for _ in range(2):
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            optimizer.step()
        return weight.detach()

    x = torch.randn(3)
    assert torch.equal(fg.compile(fit, backend="eager")(x), fit(x))


def test_a_cell_of_a_notebook_is_the_users():
    cell = "def cell(x):\n    y = x * 2\n    return y if y.sum() > 0 else x\n"
    scope = {}
    exec(compile(cell, "<cell 3>", "exec"), scope)
    lines = refused(fg.compile(scope["cell"], backend="eager", questions="error"), torch.ones(2))
    assert lines[-2] == "  at <cell 3>:3 in cell"
