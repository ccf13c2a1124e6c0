"""One thread for torch in each test process: the processes run side by side, and sums keep one order.

The backend is `eager`, which is bitwise; `FOREGRAD_BACKEND` names another. Nothing is found in this user's cache:
tests of warm starts name a cache of their own.
"""

import os

import torch

os.environ.setdefault("FOREGRAD_BACKEND", "eager")
os.environ.setdefault("FOREGRAD_CACHE", "off")
torch.set_num_threads(1)
