"""Memory that a step has freed is there for the next one."""

import os
import subprocess
import sys

import pytest

# faults: pages that the system had to give, in the second of two rounds of making 64 MiB and letting go of them
ROUNDS = """
import resource
import torch
from foregrad.words.heap import keep_freed_memory

keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    values = [torch.ones(1 << 20) for _ in range(16)]
    del values
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
IS_GLIBC = "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))


def faults(**environment):
    command = [sys.executable, "-c", ROUNDS]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not IS_GLIBC, reason="glibc is what hands memory back")
def test_freed_memory_is_kept_for_the_next_step():
    assert faults() < PAGES // 10


@pytest.mark.skipif(not IS_GLIBC, reason="glibc is what hands memory back")
@pytest.mark.parametrize("name", ["FOREGRAD_KEEP_MEMORY", "MALLOC_TRIM_THRESHOLD_"])
def test_a_user_who_says_otherwise_is_heard(name):
    assert faults(**{name: "off" if name.startswith("FOREGRAD") else "131072"}) > PAGES // 2
