"""A process that gets too little memory, threads or files ends with one line and a documented exit code, not
a traceback."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LIMITED = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv.pop(1)) << 20,) * 2); "
)
COMMAND = "sys.argv[0] = 'streamfl'; runpy.run_module('streamfl', run_name='__main__')"
# Each failure is that of a command in a fork. A line on stdout has its exit code and what it said.
FAILING = """
import os, sys, streamfl.cli, streamfl.entry
for failure in sys.argv[1:]:
    reader, writer = os.pipe()
    if not os.fork():
        os.dup2(writer, 2)
        streamfl.cli.main = lambda: exec(failure)
        streamfl.entry.main()
    os.close(writer)
    said = open(reader).read()
    print((os.waitstatus_to_exitcode(os.wait()[1]), said), flush=True)
"""
FAILURES = {
    "raise MemoryError": "memory",
    "bytearray(1 << 62)": "memory",
    "import numpy; numpy.ones(1 << 50)": "allocate",
    'raise RuntimeError("can\'t start new thread")': "thread",
    "raise OSError(24, 'Too many open files')": "open files",
    "raise OSError(28, 'No space left on device')": "space",
}


def run(code: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("megabytes", [60, 110])
def test_too_little_memory_to_load_is_one_line_and_a_number(megabytes: int) -> None:
    """Protects an operator under ulimit -v from an undocumented exit code and from a library's pages of
    advice."""
    code, said = run(LIMITED + COMMAND, str(megabytes), "--help")
    assert code == 71, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_what_the_machine_does_not_give_is_told_wherever_a_command_meets_it() -> None:
    """Protects the same during the work. A bug in the code is not reported as the machine's."""
    mistake = "raise RuntimeError('a mistake')"
    done = subprocess.run(
        [sys.executable, "-c", FAILING, *FAILURES, mistake], capture_output=True, text=True, timeout=120
    )
    *ended, (code, said) = map(ast.literal_eval, done.stdout.splitlines())
    for told, (number, line) in zip(FAILURES.values(), ended, strict=True):
        assert (number, line.count("\n"), told in line) == (71, 1, True), line
    assert (code, "Traceback" in said) == (1, True)


@pytest.mark.parametrize(
    ("command", "number", "code"), [("check", "SIGINT", 130), ("run", "SIGINT", 0), ("run", "SIGTERM", 0)]
)
def test_a_signal_while_loading_is_a_number_and_no_traceback(command: str, number: str, code: int) -> None:
    """Protects the first second: whoever is told to end before any command has begun ends with its exit code
    and no output. A worker is told so by each change of a rollout."""
    program = f"""
import signal, sys
class Told:
    def find_spec(self, name, *rest):
        if name == "streamfl.cli":
            signal.raise_signal(signal.{number})
sys.meta_path.insert(0, Told())
sys.argv[1:] = ["{command}", "client.toml"]
from streamfl.entry import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_lead_nowhere(closed: str, tmp_path: Path) -> None:
    """Protects a daemon whose starter closed its streams: every command ended with an AttributeError and code
    1, and where it went on, the next socket got the number of stderr."""
    program = (
        "import os, sys\n"
        "from streamfl.entry import main\n"
        "sys.argv = ['streamfl', 'check', 'none.toml']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    os._exit(end.code if os.open(os.devnull, os.O_RDONLY) > 2 else 1)\n"
    )
    (tmp_path / "program.py").write_text(program)
    command = f"exec {sys.executable} program.py {closed}"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=120, check=False).returncode == 2
