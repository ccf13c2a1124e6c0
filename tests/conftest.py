"""One thread for torch in each test process: the processes run side by side, and sums keep one order."""

import torch

torch.set_num_threads(1)
