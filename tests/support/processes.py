"""Processes of Python: the ranks of a training, the scheduler and workers of a cluster."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_ports(count):
    """Return ports of this machine that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def run(code, *arguments, **environment):
    """Run code in a process of its own, from the project's root; returns what it printed."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@contextlib.contextmanager
def started(arguments, output, cwd=None, **environment):
    """Start Python with these arguments; it ends with the block, at the latest.

    It writes to the open file `output`, and can import what this repository holds.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **environment}
    streams = {"stdout": output, "stderr": subprocess.STDOUT}
    process = subprocess.Popen([sys.executable, *arguments], cwd=cwd, env=environment, **streams)
    try:
        yield process
    finally:
        process.terminate()  # a parent, such as torchrun, then ends its children
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_together(programs, environments, timeout=240, cwd=None):
    """Run each program in a process of its own; return what each printed last, as JSON.

    If one fails, the others are ended.
    """
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in programs]
        running = [
            stack.enter_context(started(["-c", program], output, cwd, **environment))
            for program, output, environment in zip(programs, outputs, environments, strict=True)
        ]
        end, codes = time.monotonic() + timeout, [None]
        while None in codes and not any(codes) and time.monotonic() < end:
            time.sleep(0.05)
            codes = [process.poll() for process in running]
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read())
        assert codes == [0] * len(codes), "\n\n".join(text[-3000:] for text in texts)
        return [json.loads(text.splitlines()[-1]) for text in texts]
