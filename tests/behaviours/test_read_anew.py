"""Files and clocks: what eager would read anew at each call is guarded, named or refused, never kept without a word."""

import datetime
import io
import json
import logging
import os
import pathlib
import sys
import time
import warnings
from time import perf_counter

import numpy as np
import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled, same_as_eager

X = torch.ones(3)


def reads_json(path):
    with open(path) as file:
        return json.load(file)["scale"]


def reads_by_line(path):
    with open(path) as file:
        return next(float(json.loads(line)["scale"]) for line in file)


def reads_bytes(path):
    with io.open(path, "rb") as file:  # noqa: UP020  the other name of it
        return json.loads(file.read())["scale"]


READS = {
    "open": reads_json,
    "lines": reads_by_line,
    "pathlib": lambda path: json.loads(pathlib.Path(path).read_text())["scale"],
    "io.open": reads_bytes,
    "numpy.load": lambda path: float(np.load(f"{path}.npy")),
    "numpy.fromfile": lambda path: float(np.fromfile(f"{path}.txt", sep=" ")[0]),
    "torch.load": lambda path: torch.load(f"{path}.pt")["scale"],
}


def write(path, scale):
    path.write_text(json.dumps({"scale": scale}))
    np.save(f"{path}.npy", scale)
    pathlib.Path(f"{path}.txt").write_text(str(scale))
    torch.save({"scale": scale}, f"{path}.pt")


@pytest.mark.parametrize("how", READS)
def test_a_file_that_the_function_reads_is_guarded(tmp_path, how):
    path = tmp_path / "config"
    f, results = compiled(lambda x: x * READS[how](path)), []
    for scale in (2.0, 2.0, 35.0):
        if scale != 2.0 or not results:
            write(path, scale)
        results.append(f(X)[0].item())
    assert results == [2.0, 2.0, 35.0]
    assert len(f.captures) == 2
    assert "config" in f.captures[1].reason


UNSEEN = {
    "numpy.loadtxt": lambda path: float(np.loadtxt(path)),
    "os.read": lambda path: float(os.read(os.open(path, os.O_RDONLY), 9)),
}


@pytest.mark.parametrize("how", UNSEEN)
def test_a_file_that_is_opened_past_what_is_watched_is_refused(tmp_path, how):
    (tmp_path / "number").write_text("3")
    with pytest.raises(fg.CaptureError, match=r"reads a file[^\n]*\n  at .*test_read_anew"):
        compiled(lambda x: x * UNSEEN[how](tmp_path / "number"))(X)


def test_a_file_that_comes_to_be_is_noticed(tmp_path):
    path = tmp_path / "late"

    def scale():
        try:
            return float(path.read_text())
        except FileNotFoundError:
            return 1.0

    f = compiled(lambda x: x * scale())
    assert f(X)[0] == 1
    path.write_text("5")
    assert f(X)[0] == 5


def test_reading_on_from_an_open_file_is_refused(tmp_path):
    (tmp_path / "numbers").write_text("1\n2\n3\n")
    refused = pytest.raises(fg.CaptureError, match=r"reads from an open file[^\n]*\n  at .*test_read_anew")
    with open(tmp_path / "numbers") as file, refused:
        compiled(lambda x: x * float(file.readline()))(X)


CLOCKS = {
    "time": lambda: time.time(),
    "a clock by name": lambda: perf_counter(),
    "datetime": lambda: datetime.datetime.now().timestamp(),
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_is_named_once_and_by_explain(clock):
    def times_a_layer(x):
        start = CLOCKS[clock]()
        y = x * 2
        _ = CLOCKS[clock]() - start
        return y

    f = compiled(times_a_layer)
    with pytest.warns(UserWarning, match=r"reads the clock[\s\S]*test_read_anew") as caught:
        assert f(X).tolist() == [2, 2, 2]
    assert len(caught) == 1
    assert "reads the clock" in str(fg.explain(f))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(X), f(torch.ones(4))


MOMENTS = {
    "an op": lambda x: x * (time.time() - 5),
    "a result": lambda x: (x * 2, time.time() - 3.0),
    "a tensor": lambda x: x + torch.tensor([time.monotonic()]),
}


@pytest.mark.parametrize("where", MOMENTS)
def test_a_clock_whose_value_counts_is_refused(where):
    with pytest.raises(fg.CaptureError, match=r"(?i)clock[\s\S]*test_read_anew"):
        compiled(MOMENTS[where])(X)


def test_libraries_read_clocks_as_they_like():
    log = logging.getLogger("nobody")
    log.addHandler(logging.NullHandler())
    log.propagate = False

    def f(x):
        log.warning("a line")  # with the time at which it was made
        return nn.functional.relu(x)

    with pytest.warns(UserWarning, match="a log line of nobody at") as caught:
        compiled(f)(X)
    assert not any("reads the clock" in str(one.message) for one in caught)


@same_as_eager
def test_nothing_stays_replaced(wrap):
    before = open, io.open, time.time, time.perf_counter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrap(lambda x: x * 2 if time.time() else x)(X)
    assert before == (open, io.open, time.time, time.perf_counter)
    assert sys.getprofile() is None
    return torch.ones(1)
