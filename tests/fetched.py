"""Programs that tests need. They are fetched once, into ``.broker`` of the repository."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["fetched"]

FOLDER = Path(__file__).resolve().parent.parent / ".broker"


def fetched(name: str, fetch: Callable[[Path], Path]) -> Path:
    """The program's directory. fetch: puts it into a directory of this process, and returns where the program
    is in there."""
    home = FOLDER / name
    if home.is_dir():
        return home
    FOLDER.mkdir(exist_ok=True)
    # The directory is moved into place as a whole: two runs may fetch at once, and one may be interrupted.
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=FOLDER))
    try:
        fetch(folder).rename(home)
    except OSError:
        if not home.is_dir():
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return home
