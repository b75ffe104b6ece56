"""What the accuracy figures are made of: methods, data sets and the tables' runs."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.accuracy_runs import Method, Run, Sections
from streamfl.learning.challengers import challenger_names

SETS = ("naval", "air", "uji", "bike_hour", "parkinsons_telemonitoring")
# Its rows are dealt in file order: a method that draws nothing does the same with every seed.
DEALT_WITHOUT_SEED = ("parkinsons_telemonitoring",)
CELLS = ((40, 300), (10, 1000))
SEEDS = (0, 1, 2)
LATE_BY = 20
EXPERIMENT_SETS = ("naval", "air")

_KERNELS = ("streamfl/kernels/*.py", "streamfl/contract/seeding.py")
_DEFAULT = (
    *(
        f"streamfl/pofmkl/learning/{name}.py"
        for name in (
            "default_learner",
            "journal_steps",
            "views",
            "mixture",
            "neighbours",
            "server_steps",
            "recursive_least_squares",
        )
    ),
    "streamfl/pofmkl/tools/direct.py",
    *_KERNELS,
)
_PAPER = (
    *(f"streamfl/pofmkl/{name}.py" for name in ("client/role", "estimators/baselines")),
    "streamfl/kernels/dictionary.py",
    "streamfl/pofmkl/learning/log_weights.py",
    "streamfl/kernels/losses.py",
    "streamfl/kernels/random_features.py",
    "streamfl/contract/seeding.py",
)
_PAPER_LEARNING = {"preset": "paper", "features_per_kernel": 100, "regularisation": 1e-3}


def default(runs: str = "direct", uplink: int = 5, **sections: dict[str, object]) -> Method:
    """The default preset with M = ``uplink`` and these sections."""
    return Method(runs, _DEFAULT, {"uplink": {"kernels_per_upload": uplink}, **sections})


def paper(uplink: int = 1, **learning: object) -> Method:
    """The paper preset as published, M = ``uplink``."""
    sections: Sections = {
        "uplink": {"kernels_per_upload": uplink},
        "learning": {**_PAPER_LEARNING, **learning},
    }
    return Method("paper", _PAPER, sections)


FEDERATED = {
    "default": default("default"),
    "default, M = 1": default("default", 1),
    "default without a server": default("local"),
    "paper, M = 1": paper(),
}
BASELINES = {
    name: Method(name, _PAPER, {"learning": _PAPER_LEARNING})
    for name in (
        "ofskl",
        "ofmkl-avg",
        "vm-kofl-sum",
        "vm-kofl-mean",
        "em-kofl-sum",
        "em-kofl-mean",
        "per-fed-avg",
    )
}
CHALLENGERS = {
    name: Method(name, ("streamfl/learning/challengers.py",), draws=False) for name in challenger_names()
}
LATE = ("default", "default without a server", *(name for name in CHALLENGERS if name != "linear"))

_VIEWS = ("standardised", "centred", "standardised-lags", "centred-lags")
_LOCAL = ("running-mean", "last-label", "neighbours", "scaled-neighbours")


def _without(names: tuple[str, ...], *dropped: str) -> list[str]:
    return [name for name in names if name not in dropped]


# What the ablations are measured against: the default, called as they are.
WHOLE = "full learner"
ABLATIONS = {
    WHOLE: default(),
    **{f"without the view {view}": default(kernels={"views": _without(_VIEWS, view)}) for view in _VIEWS},
    "without views of earlier labels": default(
        kernels={"views": _without(_VIEWS, "standardised-lags", "centred-lags")}
    ),
    "without local experts": default(experts={"local": []}),
    "without both neighbours": default(
        experts={"local": _without(_LOCAL, "neighbours", "scaled-neighbours")}
    ),
    "without last label": default(experts={"local": _without(_LOCAL, "last-label")}),
    "mixtures: without ridge": default(experts={"mixtures": ["kernels", "all"]}),
    "mixtures: without kernels": default(experts={"mixtures": ["all", "ridge"]}),
    "mixtures: only kernels": default(experts={"mixtures": ["kernels"]}),
    "server: a gradient step": default(learning={"server_step": "gradient"}),
    "server: AdaGrad": default(learning={"server_step": "adagrad"}),
    "without drift detection": default(drift={"detector": "none"}),
    "exploration 0": default(learning={"exploration": 0.0}),
    "exploration 1": default(learning={"exploration": 1.0}),
}


class Experiment:
    """One quantity varied: its values, and for each row of the table the method and clients of each value."""

    def __init__(self, title: str, values: tuple[str, ...], rows: dict[str, list[tuple[str, int]]]) -> None:
        self.title = title
        self.values = values
        self.rows = rows


_VARIED = {
    "default, M = 2": default("default", 2),
    "default, M = 10": default("default", 10),
    "default, M = N": default("default", 24),
    "paper, M = 2": paper(2),
    "paper, M = 5": paper(5),
    "paper, M = 10": paper(10),
    "paper, M = 1, exploration 0": paper(exploration=0.0),
    "paper, M = 1, exploration 0.2": paper(exploration=0.2),
}
_MORE = (("default, M = 10", 40), ("default, M = N", 40))
_CLIENTS = (5, 10, 20, 40)
EXPERIMENTS = (
    Experiment(
        "Kernels sent of a sample, M (K = 40)",
        ("1", "2", "5", "10", "N"),
        {
            "default": [("default, M = 1", 40), ("default, M = 2", 40), ("default", 40), *_MORE],
            "paper": [
                ("paper, M = 1", 40),
                ("paper, M = 2", 40),
                ("paper, M = 5", 40),
                ("paper, M = 10", 40),
            ],
        },
    ),
    Experiment(
        "Clients, K",
        tuple(map(str, _CLIENTS)),
        {name: [(name, clients) for clients in _CLIENTS] for name in ("default", "paper, M = 1")},
    ),
    Experiment(
        "Exploration xi, the uniform share of the draw (K = 40)",
        ("0", "0.2", "1"),
        {
            "default": [("exploration 0", 40), ("default", 40), ("exploration 1", 40)],
            "paper, M = 1": [
                ("paper, M = 1, exploration 0", 40),
                ("paper, M = 1, exploration 0.2", 40),
                ("paper, M = 1", 40),
            ],
        },
    ),
)
EXPERIMENT_SAMPLES = 300

METHODS: dict[str, Method] = {**FEDERATED, **BASELINES, **CHALLENGERS, **ABLATIONS, **_VARIED}


def seeds_of(method: str, data: str) -> tuple[int, ...]:
    """The seeds that make a difference."""
    return SEEDS if METHODS[method].draws or data not in DEALT_WITHOUT_SEED else SEEDS[:1]


def cells_of(method: str) -> tuple[tuple[int, int], ...]:
    """K and T of the cells that the method is measured on; relatives, which the paper beats or meets, on the
    first only."""
    return CELLS[:1] if method in BASELINES else CELLS


def plan() -> Iterator[Run]:
    """Every run of every table, those first that the most important tables need; some come more than once."""
    for seed in SEEDS:
        for method in (*CHALLENGERS, *FEDERATED, *BASELINES):
            for clients, samples in cells_of(method):
                for data in SETS:
                    if seed in seeds_of(method, data):
                        yield Run(method, data, clients, samples, seed)
        for method in LATE:
            for clients, samples in CELLS:
                for data in SETS:
                    if seed in seeds_of(method, data):
                        yield Run(method, data, clients, samples, seed, LATE_BY)
        if seed == SEEDS[0]:
            for method in ABLATIONS:
                for clients, samples in CELLS:
                    for data in SETS:
                        yield Run(method, data, clients, samples, seed)
        for experiment in EXPERIMENTS:
            for row in experiment.rows.values():
                for method, clients in row:
                    for data in EXPERIMENT_SETS:
                        yield Run(method, data, clients, EXPERIMENT_SAMPLES, seed)
