"""What is compiled first in a process finds Inductor as nobody has left it: each model has a process of its own.

`make conformance` runs all of them.
"""

import pytest

from foregrad.backends import choose
from tests.backends.first_thing import in_a_fresh_process


@pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("max_pool", "embedding_bag", "fft"))]
)
def test_nothing_falls_back_in_the_first_model_of_a_process(name):
    done = in_a_fresh_process(name)
    assert done.returncode == 0, done.stderr
