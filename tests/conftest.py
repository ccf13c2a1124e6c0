"""One thread for torch in each test process: the processes run side by side, and sums keep one order.

The backend is `eager`, which is bitwise; `FOREGRAD_BACKEND` names another. Nothing is found in this user's cache:
tests of warm starts name a cache of their own. Keys are made and trusted in a folder of
each process.
"""

import os
import tempfile

import pytest
import torch

os.environ.setdefault("FOREGRAD_BACKEND", "eager")
os.environ.setdefault("FOREGRAD_CACHE", "off")
KEYS = tempfile.TemporaryDirectory(prefix="foregrad-keys-")
os.environ["FOREGRAD_CONFIG_DIR"] = KEYS.name
torch.set_num_threads(1)


def pytest_configure(config):
    """With a backend that compiles, the tests of behaviour run ops of which no loops can be made. That a compiler fails
    stays an error."""
    if os.environ["FOREGRAD_BACKEND"] != "eager":
        config.addinivalue_line("filterwarnings", "ignore::foregrad.FallbackWarning")
        config.addinivalue_line("filterwarnings", "error:(?s).*could not compile:foregrad.FallbackWarning")


@pytest.fixture(autouse=os.environ.get("FOREGRAD_CACHE_VERIFY") is not None)
def finds_are_checked():
    """With `FOREGRAD_CACHE_VERIFY` a test ends when what it has found without tracing is compared with a capture: what
    differs is a warning, and with that an error."""
    from foregrad.cache.serialize.cached_calls import cache_for

    yield
    if (place := os.environ["FOREGRAD_CACHE"]) != "off":
        cache_for(place, None).wait()
