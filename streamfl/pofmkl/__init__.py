"""POF-MKL: personalised online federated multi-kernel learning. Clients have samples of their own."""

from streamfl.contract.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="pofmkl",
    summary="clients with samples of their own",
    kinds=("pofmkl-client", "pofmkl-server"),
    roles="streamfl.pofmkl.roles:ROLES",
    rank=0,
    simulate="streamfl.pofmkl.tools.commands:simulate",
    demo="streamfl.pofmkl.tools.demo:demo",
    sources={"pofmkl-client": "streamfl.pofmkl.tools.replay:samples"},
    dashboards="streamfl.pofmkl.tools.dashboard:DASHBOARDS",
    alerts="streamfl.pofmkl.tools.alerts:ALERTS",
    report="streamfl.pofmkl.tools.page:REPORTS",
    readers={"updates": "streamfl.pofmkl.tools.readable:updates", "model": "streamfl.pofmkl.tools.readable:model"},
    inspect={
        "pofmkl-client": "streamfl.pofmkl.tools.inspect:client_report",
        "pofmkl-server": "streamfl.pofmkl.tools.inspect:server_report",
    },
    standings={"pofmkl-client": "streamfl.pofmkl.tools.standing:client_standing"},
    commands={"features": "streamfl.pofmkl.tools.features:features", "compare": "streamfl.pofmkl.tools.commands:compare"},
    exports={
        "Classifier": "streamfl.pofmkl.estimators.default_estimators:Classifier",
        "Regressor": "streamfl.pofmkl.estimators.default_estimators:Regressor",
        "POFMKLClassifier": "streamfl.pofmkl.estimators.online:POFMKLClassifier",
        "POFMKLRegressor": "streamfl.pofmkl.estimators.online:POFMKLRegressor",
        "compare": "streamfl.pofmkl.tools.notebook:compare",
    },
    refusals={
        "incomplete": "a signed version of the model with parameters that somebody else has overwritten",
        "kernel": "kernel numbers that do not belong to the shard",
        "replayed": "an older version of the model, or a record of it, written again",
        "shard": "a partition of the model that federation.shards does not have",
        "too_large": "a target row longer than 3: its label was not clipped",
        "too_many_clients": "a client beyond federation.clients",
        "unknown_version": "an update made on a version of the model that the server never published",
    },
)
