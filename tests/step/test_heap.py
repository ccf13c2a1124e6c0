"""Memory that a step has freed: malloc keeps it for the next one where `fg.configure` has asked for that."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import foregrad as fg
from foregrad.process import heap

# pages that the system had to give, in the last of three rounds of making 64 MiB and letting go of them
ROUNDS = """
import resource
import torch
import foregrad as fg

fg.configure(keep_freed_memory="1GiB")
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    values = [torch.ones(1 << 20) for _ in range(16)]
    del values
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
IS_GLIBC = "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))


@pytest.mark.skipif(not IS_GLIBC, reason="glibc is what hands memory back")
def test_freed_memory_is_kept_for_the_next_step():
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES // 10


@pytest.fixture
def asked(monkeypatch):
    """What malloc is asked for."""
    found = []
    malloc = SimpleNamespace(mallopt=lambda *given: found.append(given) or 1)
    monkeypatch.setattr(heap, "_of_malloc", lambda name: getattr(malloc, name, None))
    return found


@pytest.mark.parametrize("size", [1 << 29, "512MiB", "524288 KiB"])
def test_sizes_are_numbers_of_bytes_or_texts(size, asked):
    fg.configure(keep_freed_memory=size)
    assert asked[-1] == (heap._TRIM_THRESHOLD, 1 << 29)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "", "1", "1 GB", "lots", "2GiB", 1 << 31, b"1GiB"])
def test_other_sizes_are_refused(size, asked):
    with pytest.raises((TypeError, ValueError), match="keep_freed_memory is"):
        fg.configure(keep_freed_memory=size)
    assert not asked


def test_nothing_is_set_where_one_option_is_wrong(asked):
    with pytest.raises(TypeError, match="lazy_dynamo is True or False"):
        fg.configure(keep_freed_memory="1GiB", lazy_dynamo="yes")
    assert not asked


def test_another_library_for_c_is_named(monkeypatch):
    monkeypatch.setattr(heap, "_of_malloc", lambda name: None)
    with pytest.raises(OSError, match="glibc"):
        fg.configure(keep_freed_memory="1GiB")
