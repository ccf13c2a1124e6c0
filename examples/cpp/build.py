"""Build train.cpp: g++ with the headers and libraries of the torch that is installed.

python examples/cpp/build.py FOLDER
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).parent


def build(folder: Path) -> Path:
    """The program, in a folder."""
    program = folder / "train"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", HERE / "train.cpp", "-o", program]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [f"-I{path}" for path in include_paths()]
    for path in library_paths():
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    subprocess.run([*command, "-ltorch", "-ltorch_cpu", "-lc10"], check=True)
    return program


if __name__ == "__main__":
    build(Path(sys.argv[1]))
