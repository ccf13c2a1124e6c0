"""One end of a pipe: a training that runs in a process of its own, and times itself when it is told to.

It reads one JSON object a line and answers each with one:

    {"load": {...}}   ->  {} after the training that these words describe has been made
    {"train": 3}      ->  {"losses": [...]}
    {"run": 20}       ->  {"wall": seconds, "cpu": seconds}

or with {"failed": why}. `worker.py` is the other end. This one is also read by a Python without torch.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO


class Training(Protocol):
    def step(self) -> Any:
        """Train for one step; the loss, which may still be on its way."""

    def wait(self, loss: Any) -> None:
        """Until a step is over."""


def serve(hello: dict, make: Callable[..., Training]) -> None:
    """Answer until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    answer(answers, hello)
    training = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "load" in order:
                training = make(**order["load"])
                answer(answers, {})
            else:
                answer(
                    answers, losses(training, order["train"]) if "train" in order else seconds(training, order["run"])
                )
        except Exception as error:  # noqa: BLE001  # whatever it is, the other end must be told
            answer(answers, {"failed": " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])})


def losses(training: Training, steps: int) -> dict:
    return {"losses": [float(training.step()) for _ in range(steps)]}


def seconds(training: Training, steps: int) -> dict:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loss = training.step()
    training.wait(loss)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def answer(file: TextIO, value: dict) -> None:
    print(json.dumps(value), file=file, flush=True)
