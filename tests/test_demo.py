"""What `make demo` shows, in a few steps."""

import io

import pytest
from rich.console import Console

from foregrad.cli import demo


def told(steps):
    console = Console(file=io.StringIO(), width=120)
    is_fine = demo.run(console, steps=steps)
    return is_fine, console.file.getvalue()


@pytest.mark.skipif(demo.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.slow
def test_captured_is_eager_bitwise_and_compiled_to_rounding():
    is_fine, text = told(3)
    assert is_fine
    assert "captured: losses bitwise equal in 3 of 3 steps, gradients in 3 of 3" in text
    assert "compiled: gradients of the first step within" in text
    assert "blocks.*" in text


def test_without_a_compiler_the_demo_says_so(monkeypatch):
    monkeypatch.setattr(demo, "compiler", lambda: None)
    is_fine, text = told(2)
    assert is_fine
    assert "there is no C++ compiler" in text
    assert "compiled:" not in text
