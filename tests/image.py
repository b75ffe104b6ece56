"""The image without Docker: runs the Dockerfile's steps in a folder, and starts the program as a container
would.

If the tests run as root, the program runs as another user, with a read-only root file system and no
capabilities. Otherwise it runs as the tests' user, because only root can mount.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DOCKERFILE", "ROOT", "Image", "build", "python_version", "stages"]

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
INSTALLED = "/opt/streamfl"
START_SECONDS = 120.0
Step = tuple[str, str]


def stages() -> list[list[Step]]:
    """The instructions of each stage, with their arguments."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace(
        "\\\n", " "
    )
    steps = [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]
    begins = [place for place, (word, _) in enumerate(steps) if word == "FROM"]
    return [steps[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]


class Image:
    """An installed tree.

    folder: where it was built. The program writes to ``data`` in it.
    base: the folder of its Python.
    """

    def __init__(self, folder: Path, base: Path) -> None:
        self._base = base
        self.tree = folder / INSTALLED.lstrip("/")
        self.data = folder / "data"
        self._folder = folder
        final = stages()[-1]
        self._said = {word: rest for word, rest in final if word != "ENV"}
        self._user, _, self._group = self._said["USER"].partition(":")
        self._variables = dict(
            pair.split("=", 1) for word, rest in final if word == "ENV" for pair in shlex.split(rest)
        )
        for name in ("data", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        if not os.geteuid():
            os.chown(self.data, int(self._user), int(self._group))

    def run(
        self, *arguments: str, more: Mapping[str, str] | None = None, within: bool = False
    ) -> subprocess.Popen[str]:
        """Run the entry point. more: further environment variables. within: the arguments are another program
        of the image."""
        entry = [] if within else json.loads(self._said["ENTRYPOINT"])
        environment = self._variables | {
            "TMPDIR": str(self._folder / "tmp"),
            "LANG": "C.UTF-8",
            **(more or {}),
        }
        environment["PATH"] = f"{self.tree / 'bin'}:{os.defpath}"
        return subprocess.Popen(
            [*self._contained(), *entry, *arguments],
            env=environment,
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def health_check(self, port: int) -> list[str]:
        """Run the image's health check against this port."""
        command: list[str] = json.loads(self._said["HEALTHCHECK"].partition(" CMD ")[2])
        return [word.replace(self._variables["STREAMFL_METRICS__PORT"], str(port)) for word in command]

    @contextmanager
    def worker(
        self, configuration: Path, port: int, more: Mapping[str, str]
    ) -> Iterator[tuple[subprocess.Popen[str], float]]:
        """A worker that is ready, and the seconds until it was."""
        begun = time.monotonic()
        process = self.run("run", str(configuration), more={**more, "STREAMFL_METRICS__PORT": str(port)})
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                        break
                except OSError as error:
                    if isinstance(error, urllib.error.HTTPError):
                        error.close()
                    if process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                        process.kill()
                        said = process.communicate()[0][-3000:]
                        raise RuntimeError(
                            f"the worker is not ready: {error}, exit code {process.returncode}\n{said}"
                        ) from None
                    time.sleep(0.02)
            yield process, time.monotonic() - begun
        finally:
            process.terminate()
            process.communicate(timeout=60)

    def _contained(self) -> list[str]:
        if os.geteuid():
            return []
        base, own = self._base, self._folder / "python"
        lines = [
            f"mount --bind {self.data} {self.data}",
            f"mount -t tmpfs -o mode=1777 tmpfs {self._folder / 'tmp'}",
        ]
        closed = [path for path in (base, *base.parents) if not path.stat().st_mode & 0o001]
        if closed:
            # Python lies in root's home, where the program's user may not go. So an otherwise empty folder
            # takes that home's place.
            own.mkdir(exist_ok=True)
            lines += [
                f"mount --bind {base} {own}",
                f"mount -t tmpfs -o mode=755 tmpfs {closed[-1]}",
                f"mkdir -p {base}",
                f"mount --bind {own} {base}",
            ]
        rights = (
            f"--reuid {self._user} --regid {self._group} --clear-groups --no-new-privs --bounding-set=-all "
            "--inh-caps=-all"
        )
        script = "\n".join(["set -e", *lines, "mount -o remount,ro,bind /", f'exec setpriv {rights} "$@"'])
        return ["unshare", "--mount", "sh", "-c", script, "sh"]


def build(folder: Path, locked: bool) -> Image:
    """Run the build stage's steps in a folder that only has what they copy.

    locked: install the lock file's versions, as in the image. Otherwise use this Python's packages, which
    takes no time."""
    folder.chmod(0o755)
    source, tree = folder / "source", folder / INSTALLED.lstrip("/")
    source.mkdir()
    python, base = Path(sys.executable), Path(sys.base_prefix)
    if locked:
        found = _python_of_the_image()
        _run([found, "-m", "venv", str(folder / "system")], folder)
        python = folder / "system" / "bin" / "python"
        base = Path(
            subprocess.run(
                [found, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True
            ).stdout.strip()
        )
    (folder / "bin").mkdir()
    # Not a link: Python looks for its environment beside the name that it was started by.
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    for word, rest in stages()[0]:
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                _copy(
                    ROOT / name,
                    source / target / Path(name).name if target.endswith("/") else source / target,
                )
        elif word == "RUN" and "--require-hashes" in rest and not locked:
            _run([sys.executable, "-m", "venv", "--without-pip", str(tree)], folder)
            [packages] = tree.glob("lib/python*/site-packages")
            (packages / "here.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        elif word == "RUN":
            _run(["sh", "-ec", rest.replace(INSTALLED, str(tree))], source, folder / "bin")
    return Image(folder, base)


def python_version() -> str:
    """Major and minor version of the Python in the Dockerfile."""
    return str(
        re.findall(r"^ARG PYTHON=python:(3\.\d+)\.", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)[0]
    )


def _python_of_the_image() -> str:
    """A Python of the Dockerfile's version, or this one if there is none. Its standard library is not the
    image's."""
    minor = python_version()
    name = f"python{minor}"
    kept = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{minor}.*/bin/{name}")
    )
    return next((str(one) for one in (*kept, shutil.which(name)) if one), sys.executable)


def _copy(origin: Path, target: Path) -> None:
    if origin.is_dir():
        shutil.copytree(
            origin, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    else:
        shutil.copy(origin, target)


def _run(command: list[str], folder: Path, programs: Path | None = None) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{programs}:{environment['PATH']}" if programs else environment["PATH"]
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-3000:]}")
