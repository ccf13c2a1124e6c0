"""What foregrad starts ends with it: after `kill -9` of a process none of its compilers is left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from foregrad.process import children
from foregrad.process import forked_copy as copies
from tests.keep.claimants import fork, kill, until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

#: A program that starts another one, as g++ does: both write their numbers.
DRIVER = """
echo $$ >> "$0"
sh -c 'echo $$ >> "$0"; sleep 300' "$0"
"""


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def numbers(file):
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def started(file, before=lambda: None):
    """A process with a child that runs for minutes, and the two processes of that child."""

    def work():
        before()
        children.run(["sh", "-c", DRIVER, str(file)])

    owner = fork(work)
    until(lambda: len(numbers(file)) == 2)
    return owner, numbers(file)


def test_what_a_killed_process_has_started_is_gone(tmp_path):
    owner, processes = started(tmp_path / "numbers")
    kill(owner)
    until(lambda: not any(map(is_alive, processes)), 2.0)


def test_a_fork_that_lives_on_does_not_keep_them_alive(tmp_path):
    def fork_a_sleeper():
        children.run(["true"])  # so that there is a pipe to hold
        (tmp_path / "sleeper").write_text(str(fork(lambda: time.sleep(300))))

    owner, processes = started(tmp_path / "numbers", fork_a_sleeper)
    kill(owner)
    until(lambda: not any(map(is_alive, processes)), 2.0)
    sleeper = int((tmp_path / "sleeper").read_text())
    assert is_alive(sleeper)
    os.kill(sleeper, signal.SIGKILL)


def test_a_process_that_ends_by_itself_leaves_none(tmp_path):
    file = tmp_path / "numbers"
    source = f"""
import threading, time
from pathlib import Path
from foregrad.process import children, forked_copy as copies
threading.Thread(target=children.run, args=(["sh", "-c", {DRIVER!r}, {str(file)!r}],), daemon=True).start()
while not (Path({str(file)!r}).exists() and len(Path({str(file)!r}).read_text().split()) == 2):
    time.sleep(0.01)
"""
    subprocess.run([sys.executable, "-c", source], check=True)
    until(lambda: not any(map(is_alive, numbers(file))), 2.0)


def test_status_and_output_pass_through(tmp_path):
    command = ["sh", "-c", "pwd; echo $WORD; echo bad >&2; cat; exit 7"]
    done = children.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "WORD": "a b"})
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{tmp_path}\na b\n", "bad\n")
    with pytest.raises(subprocess.CalledProcessError, match="status 7"):
        children.check_output(command, stderr=subprocess.DEVNULL)
    assert children.run(["sh", "-c", "kill -9 $$"], capture_output=True).returncode == 128 + signal.SIGKILL
    with pytest.raises(FileNotFoundError, match="no program nothing-of-this-name"):
        children.run(["nothing-of-this-name"])


def test_a_time_limit_ends_all_of_a_child(tmp_path):
    file = tmp_path / "numbers"
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sh", "-c", DRIVER, str(file)], timeout=1)
    assert len(numbers(file)) == 2
    until(lambda: not any(map(is_alive, numbers(file))), 2.0)


def test_a_copy_of_a_process_ends_with_it_and_else_answers_at_length(tmp_path):
    answers = []
    copies.in_a_copy(lambda: "x" * 500_000, answers.append).join()
    assert answers == ["x" * 500_000]

    def work():
        def sleep():
            (tmp_path / "copy").write_text(str(os.getpid()))
            time.sleep(100)

        copies.in_a_copy(sleep, print).join()

    owner = fork(work)
    until(lambda: (tmp_path / "copy").exists() and (tmp_path / "copy").read_text())
    kill(owner)
    copy = int((tmp_path / "copy").read_text())
    until(lambda: not is_alive(copy), 2.0)
