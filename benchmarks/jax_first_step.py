"""The first two training steps in a fresh process with JAX, from after `import jax`: what benchmarks/warm.py starts.

python benchmarks/jax_first_step.py WEIGHTS.npz WORKLOAD WAY

Prints what `warm_step.py` prints. JAX finds compiled code in the folder of JAX_COMPILATION_CACHE_DIR.
"""

import json
import sys
import time

import jax  # noqa: F401  the clock starts after it

STARTED = time.perf_counter()


def main(weights: str, workload: str, way: str) -> None:
    from jax_models import LOSSES
    from jax_worker import Training

    training = Training(weights, *LOSSES[workload.partition("-")[0]][way])
    seconds, losses = [], []
    for _ in range(2):
        losses.append(float(training.step()))
        seconds.append(time.perf_counter() - STARTED)
    print(json.dumps({"seconds": seconds, "losses": losses, "origins": []}))


if __name__ == "__main__":
    main(*sys.argv[1:])
