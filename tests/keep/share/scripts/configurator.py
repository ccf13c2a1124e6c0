"""What nanoGPT runs to let the command line override globals."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    key, val = arg.removeprefix("--").split("=")
    assert key in globals(), f"Unknown config key: {key}"
    globals()[key] = literal_eval(val)
