"""A real Redis server for tests: on a free port of this machine, without a file of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.keep.claimants import until


class Server:
    """A server that can be killed and started again at the same port; then it is empty."""

    def __init__(self, program: str, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self.command += ["--save", "", "--appendonly", "no", "--enable-debug-command", "local"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        until(self._answers)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def client(self):
        import redis

        return redis.Redis(port=self.port)

    def _answers(self) -> bool:
        import redis

        assert self.process.poll() is None, "the server has stopped"
        try:
            with self.client() as client:
                return client.ping()
        except redis.exceptions.ConnectionError:
            return False


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """A running server; the test is skipped where there is none to run."""
    pytest.importorskip("redis", reason="the client of Redis is not installed: pip install redis")
    # `make test` puts one beside Python, where it can install one.
    program = shutil.which("redis-server", path=str(Path(sys.executable).parent)) or shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server: apt-get install redis-server")
    server = Server(program, folder)
    try:
        yield server
    finally:
        server.kill()
