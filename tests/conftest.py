"""One thread for torch in each test process: the processes run side by side, and sums keep one order.

The backend is `eager`, which is bitwise; `FOREGRAD_BACKEND` names another.
"""

import os

import torch

os.environ.setdefault("FOREGRAD_BACKEND", "eager")
torch.set_num_threads(1)
