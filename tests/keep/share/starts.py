"""Starts: what is started twice, in processes of their own, and whether the second finds what the first has left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from foregrad.cache.serialize.cached_calls import FOUND

SCRIPTS = Path(__file__).with_name("scripts")
_START = ("-m", "tests.keep.share.start")

#: The commands, after the name of the program.
STARTS: dict[str, tuple[str, ...]] = {
    **{
        f"workload {name}": (*_START, "workload", name)
        for name in ("mlp-small", "mlp-large", "gpt", "resnet", "lstm", "blocks-100")
    },
    **{f"example {name}": (*_START, "example", name) for name in ("pinn", "force_field", "maml", "gradient_penalty")},
    "script in the manner of nanoGPT": (str(SCRIPTS / "gpt.py"),),
    "script in the manner of nanoGPT, with its configurator": (str(SCRIPTS / "gpt.py"), "--n_layer=1", "--bias=True"),
    "script with a command line": (str(SCRIPTS / "command.py"), "--smoothing=0.2", "--activation=relu"),
}
#: Without OPT and BART, which draw a random number for each layer and look at it in Python: they are refused.
ARCHITECTURES = (
    *("GPT2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi", "Phi3", "GPT-J", "GPTNeoX", "Bloom"),
    *("Falcon", "Olmo2", "StableLM", "Starcoder2", "Granite", "Cohere"),
    *("BERT", "RoBERTa", "XLM-RoBERTa", "DistilBERT", "Electra", "Albert", "DeBERTa-v2", "T5", "ViT", "DeiT"),
)
STARTS |= {f"architecture {name}": (*_START, "architecture", name) for name in ARCHITECTURES}

#: Those that trace in every process, and what must be named as the reason.
DOUBTS: dict[str, str] = {
    "architecture ViT": "problem_type",  # which the first call sets in the model's configuration
    "architecture DeiT": "problem_type",
    "architecture DeBERTa-v2": "kept in none of the function's own variables",
}


@dataclass(frozen=True)
class Second:
    """How a second process started: whether it traced nothing, what `fg.explain` says, and whether its loss is the
    first one's."""

    name: str
    found: bool
    explained: str
    is_same: bool

    @property
    def is_right(self) -> bool:
        """Started without tracing, or for the reason that is known."""
        doubt = DOUBTS.get(self.name)
        is_as_known = self.found if doubt is None else not self.found and doubt in self.explained
        return is_as_known and self.is_same


def start_twice(name: str) -> Second:
    """Two processes with one cache, of which the second runs the same command."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "FOREGRAD_CACHE": cache,
            "FOREGRAD_BACKEND": "eager",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        if "configurator" in name:
            environment["CONFIGURATOR"] = "yes"
        first, second = (_start(STARTS[name], environment) for _ in range(2))
    found = bool(second["how"]) and set(second["how"]) == {FOUND}
    return Second(name, found, second["explained"], first["loss"] == second["loss"])


def _start(command: tuple[str, ...], environment: dict[str, str]) -> dict:
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
