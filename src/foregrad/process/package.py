"""The package: where foregrad's own files lie."""

from __future__ import annotations

import os

#: The folder of the package, with a separator at its end.
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
