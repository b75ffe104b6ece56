"""Fixtures that several test folders share."""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest
from access import secured_broker
from broker import Broker, shared
from hypothesis import settings
from threadpoolctl import threadpool_limits

import streamfl.records.formats
from streamfl.testing.role_laws import RoleLaws

# The Kafka client reads its schemas in a way that Python 3.11 calls deprecated; the tests turn warnings into
# errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin  # noqa: F401


ROOT = Path(__file__).parents[1]
# Test brokers live for seconds. Compiling and collecting garbage for long runs would take most of that time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# How many examples a test tries, and by what the numbers of tests that set their own are divided. Every run
# draws others. ``HYPOTHESIS_PROFILE=thorough`` is for a search that may take long.
EXAMPLES = {"fast": 8, "whole": 16, "thorough": 50}
DIVISORS = {"fast": 6, "whole": 3, "thorough": 1}
LEAST_EXAMPLES = 3
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "whole")

for name, examples in EXAMPLES.items():
    settings.register_profile(name, max_examples=examples, deadline=None)
settings.load_profile(PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--system NAME``: the tests of one system, and those general tests that run for every system, for this
    one.

    ``--backwards``: in reverse order, to find tests that need others before them.
    """
    parser.addoption("--backwards", action="store_true", help="run the tests in the reverse order")
    parser.addoption(
        "--system", help="run this system's tests, and the general ones with it as their parameter"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that do not belong to the named system, if one is named. A name without any test is
    an error."""
    try_fewer_examples(items)
    if PROFILE == "fast":
        leave_out_further_subjects(config, items)
    spread_waiting(items)
    if config.getoption("--backwards"):
        items.reverse()
    name = config.getoption("--system")
    if name is None:
        return
    folder = name.replace("-", "_")
    folders = [ROOT / "tests" / folder, ROOT / "streamfl" / folder]

    def of_the_system(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        parameters = callspec.params.values() if callspec is not None else ()
        # Parameters may be a system or its name. An array would compare with a text element by element.
        names = [
            one for one in (getattr(given, "name", given) for given in parameters) if isinstance(one, str)
        ]
        return name in names or any(folder in item.path.parents for folder in folders)

    chosen = [item for item in items if of_the_system(item)]
    if not chosen:
        raise pytest.UsageError(f"--system {name}: no test is of it")
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def leave_out_further_subjects(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first subject of each law of roles. ``make test`` tries the law with all of them."""
    further, seen = set[pytest.Item](), set[tuple[type, str]]()
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, RoleLaws):
            law = (item.cls, item.originalname)
            if law in seen:
                further.add(item)
            seen.add(law)
    config.hook.pytest_deselected(items=list(further))
    items[:] = [item for item in items if item not in further]


def spread_waiting(items: list[pytest.Item]) -> None:
    """Spread the modules that wait for a broker evenly among those that compute.

    Each of pytest's processes begins with a part of its own. Side by side, one waits while others compute. At
    the end nothing would compute if the waiting were left over.
    """
    groups: dict[bool, list[pytest.Item]] = {False: [], True: []}
    for item in items:
        groups[item.get_closest_marker("broker") is not None].append(item)
    places: dict[pytest.Item, float] = {}
    for alike in groups.values():
        first: dict[Path, float] = {}
        for number, item in enumerate(alike):
            places[item] = first.setdefault(item.path, number / len(alike))
    items.sort(key=places.__getitem__)


def try_fewer_examples(items: list[pytest.Item]) -> None:
    """Divide the numbers of tests that set their own, because a profile does not affect those."""
    functions = {
        getattr(function, "__func__", function)
        for item in items
        if (function := getattr(item, "obj", None)) is not None
    }
    for function in functions:
        own: settings | None = getattr(function, "_hypothesis_internal_use_settings", None)
        if own is not None and own is not settings.default:
            fewer = max(LEAST_EXAMPLES, own.max_examples // DIVISORS[PROFILE])
            function._hypothesis_internal_use_settings = settings(own, max_examples=fewer)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``streamfl`` in the test's own process, which most tests do not load."""
    from command_line import run_command

    return functools.partial(run_command, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as their content, whatever runs the tests: pytest's workers have a width set."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress lines: a command that is slow on a busy machine prints the same as always."""
    monkeypatch.setattr("streamfl.terminal.progress.SILENT_SECONDS", 1e6)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command in the tests' process configures logging to a stderr that is closed after the test."""
    handlers, level = list(logging.root.handlers), logging.root.level
    own = logging.getLogger("streamfl").level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    logging.getLogger("streamfl").setLevel(own)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all of pytest's workers of one run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def broker(run_folder: Path) -> Iterator[Broker]:
    """A real Kafka broker for the whole run. Tests use their own topics and groups, and do not halt it.

    Without Java or Maven tests fail; they are never skipped.
    """
    with shared(Broker, run_folder / "broker") as running:
        yield running


@pytest.fixture(scope="session")
def secured(run_folder: Path) -> Iterator[Broker]:
    """A broker with access control for the whole run. Tests use their own federation names."""
    with shared(secured_broker, run_folder / "secured") as running:
        yield running


@pytest.fixture(scope="module")
def quick_starts() -> Iterator[None]:
    """For tests that start thousands of clients, each of which would read the metadata of every installed
    package."""
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.setattr(streamfl.records.formats, "entry_points", functools.cache(entry_points))
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of the papers' data sets, from the environment variable STREAMFL_DATA."""
    location = os.environ.get("STREAMFL_DATA")
    if not location:
        pytest.skip("STREAMFL_DATA does not name the folder with the papers' data sets")
    return Path(location)


@pytest.fixture(scope="session")
def streams_of_sets(data: Path) -> ModuleType:
    """The module ``streams.py`` beside the data sets. It deals their rows to clients."""
    spec = importlib.util.spec_from_file_location("streams", data / "streams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="_refused_connections")
def _collect_sockets() -> Iterator[None]:
    """The Kafka client leaves the socket of a refused connection to the garbage collector, which then
    warns."""
    yield
    gc.collect()
