"""Memory that a step has freed is there for the next one."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from foregrad.process import heap

# faults: pages that the system had to give, in the last of three rounds of making 64 MiB and letting go of them
ROUNDS = """
import resource
import torch
from foregrad.process.heap import keep_freed_memory

keep_freed_memory()
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


@pytest.mark.parametrize(
    "environment",
    [{}, {"FOREGRAD_KEEP_MEMORY": "off"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.x=1"}],
    ids=str,
)
def test_a_user_who_says_otherwise_is_heard(environment, monkeypatch):
    asked = []
    monkeypatch.setattr(heap.sys, "platform", "linux")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *given: asked.append(given)))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    heap.keep_freed_memory.__wrapped__()
    assert bool(asked) is not bool(environment)
