"""Processes of ``streamfl`` that need not load its libraries again: each is a fork of one process that has.

Loading takes eight tenths of a second of processor time, and the tests start hundreds of workers. A fork is a
process like any other: it has its own number, output, environment and signals, and it can be killed. Tests of
what is loaded, or of Python's own options, start Python itself.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

__all__ = ["run_streamfl", "start_streamfl"]

# A request with its environment is one message.
LONGEST_REQUEST = 1 << 20
# Of Linux's prctl: a process whose parent has ended becomes a child of this one.
PR_SET_CHILD_SUBREAPER = 36
STREAMS = (0, 1, 2)
ASKING = threading.Lock()
LOADED = ("streamfl.cli.run", "streamfl_connectors.kafka", "streamfl_connectors.librdkafka")


def start_streamfl(*arguments: object, **options: Any) -> subprocess.Popen[Any]:
    """Start ``streamfl`` with these arguments. options: those of :class:`subprocess.Popen`: env, cwd, stdout,
    stderr, text."""
    return _Forked([str(one) for one in arguments], **options)


def run_streamfl(
    *arguments: object, timeout: float = 300.0, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run ``streamfl`` with these arguments to its end, and capture its output. check: RuntimeError if it
    fails."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start_streamfl(*arguments, **streams | options) as process:
        try:
            out, error = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(process.args, process.returncode, out, error)
    if check and ended.returncode:
        raise RuntimeError(f"{process.args} ended with {ended.returncode}:\n{out}{error}")
    return ended


class _Forked(subprocess.Popen[Any]):
    """A process that another one forks. All but its start is :class:`subprocess.Popen`'s."""

    def _execute_child(self, args: list[str], *given: Any) -> None:
        # The order in which Popen.__init__ gives them.
        (_executable, _preexec, _close_fds, _pass_fds, cwd, env, _info, _flags, _shell, *pipes) = given[:15]
        p2cread, _p2cwrite, _c2pread, c2pwrite, _errread, errwrite = pipes
        streams = [
            stream if given_one == -1 else given_one
            for stream, given_one in zip(STREAMS, (p2cread, c2pwrite, errwrite), strict=True)
        ]
        request = {"arguments": args, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        try:
            with ASKING:
                channel = _loaded_process()
                socket.send_fds(channel, [json.dumps(request).encode()], streams)
                self.pid = int(channel.recv(100))
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)


@functools.cache
def _loaded_process() -> socket.socket:
    """A channel to this process's own process that has loaded everything. That one ends when the channel is
    closed."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_REQUEST)
    other.set_inheritable(True)
    os.posix_spawn(
        sys.executable,
        [sys.executable, __file__, str(other.fileno())],
        os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        file_actions=[(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in STREAMS[:2]],
    )
    other.close()
    return own


def _serve(channel: socket.socket) -> bool:
    """Fork for every request. Returns True in a fork, and False when nobody can ask any more."""
    while True:
        text, streams, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, len(STREAMS))
        if not text:
            return False
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(read)
                os.close(write)
                channel.close()
                _become(json.loads(text), streams)
                return True
            os.write(write, str(child).encode())
            # Whoever asked becomes the parent of the child.
            os._exit(0)
        os.waitpid(between, 0)
        channel.send(os.read(read, 100))
        for one in (read, write, *streams):
            os.close(one)


def _become(request: Mapping[str, Any], streams: list[int]) -> None:
    """Make this process what a new one would be: its arguments, folder, environment and streams."""
    for stream, given in zip(STREAMS, streams, strict=True):
        os.dup2(given, stream)
    for given in streams:
        os.close(given)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    paths = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = [str(sys.modules["__main__"].__file__), *request["arguments"]]


def _load() -> None:
    """Load what workers need. Which systems are installed is looked up by each fork."""
    roles = [system.load().roles.partition(":")[0] for system in entry_points(group="streamfl.systems")]
    for module in (*LOADED, *roles):
        importlib.import_module(module)
    # Processes that the role starts load the main module, by its name.
    sys.modules["__main__"] = importlib.import_module("streamfl.__main__")
    gc.freeze()


if __name__ == "__main__":
    _load()
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        from streamfl.entry import main

        try:
            main()
        finally:
            # What was loaded is shared with the other forks, and to look at it once more would copy it.
            gc.freeze()
