"""Reads small projects, and prints the key of each: `python keys_worker.py folder`.

Each project has a `main.py` with a function `make()` that returns a target, its arguments and its state. Each is read
in a process of its own, so that what one does to torch is nothing to the next; they share an imported torch.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch

from foregrad.cache.key.sources import sources_of

torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports much


def key_of(project: Path) -> dict:
    sys.path.insert(0, str(project))
    target, args, *state = importlib.import_module("main").make()
    sources = sources_of(target, args, {}, state=tuple(state))
    return {"key": sources.key.as_json(), "unsure": sources.unsure}


def in_a_process_of_its_own(project: Path) -> dict:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = key_of(project)
        except BaseException:
            said = {"error": traceback.format_exc()}
        with os.fdopen(writer, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = json.load(pipe)
    os.waitpid(child, 0)
    return said


if __name__ == "__main__":
    print(json.dumps({one.name: in_a_process_of_its_own(one) for one in sorted(Path(sys.argv[1]).iterdir())}))
