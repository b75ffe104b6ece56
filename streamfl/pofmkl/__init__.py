"""POF-MKL: personalised online federated multi-kernel learning. Clients have samples of their own."""

from streamfl.contract.refusals import OTHER_SETTINGS, WRITERS, Reason
from streamfl.contract.system import System

__all__ = ["SYSTEM"]

ONLY_SERVER = "let only the server write to the model's topic"
ONE_SENDER = "key samples by client, and let one process send for each client"

SYSTEM = System(
    name="pofmkl",
    summary="clients with samples of their own",
    kinds=("pofmkl-client", "pofmkl-server"),
    roles="streamfl.pofmkl.roles:ROLES",
    rank=0,
    members="streamfl.pofmkl.tools.members:MEMBERS",
    simulate="streamfl.pofmkl.tools.commands:simulate",
    demo="streamfl.pofmkl.tools.demo:demo",
    dashboards="streamfl.pofmkl.tools.dashboard:DASHBOARDS",
    alerts="streamfl.pofmkl.tools.alerts:ALERTS",
    report="streamfl.pofmkl.tools.page:REPORTS",
    readers={
        "updates": "streamfl.pofmkl.tools.readable:updates",
        "model": "streamfl.pofmkl.tools.readable:model",
    },
    inspect={
        "pofmkl-client": "streamfl.pofmkl.tools.inspect:client_report",
        "pofmkl-server": "streamfl.pofmkl.tools.inspect:server_report",
    },
    standings={"pofmkl-client": "streamfl.pofmkl.tools.standing:client_standing"},
    commands={
        "features": "streamfl.pofmkl.tools.features:features",
        "compare": "streamfl.pofmkl.tools.commands:compare",
    },
    exports={
        "Classifier": "streamfl.pofmkl.estimators.default_estimators:Classifier",
        "Regressor": "streamfl.pofmkl.estimators.default_estimators:Regressor",
        "POFMKLClassifier": "streamfl.pofmkl.estimators.online:POFMKLClassifier",
        "POFMKLRegressor": "streamfl.pofmkl.estimators.online:POFMKLRegressor",
        "compare": "streamfl.pofmkl.tools.notebook:compare",
    },
    refusals={
        "incomplete": Reason(
            "with keys of members: a signed version of the model with parameters that somebody else has "
            "overwritten",
            f"{ONLY_SERVER}, and restart the server",
        ),
        "kernel": Reason("kernel numbers that do not belong to the shard", OTHER_SETTINGS),
        "replayed": Reason(
            "with keys of members: an older version of the model, or a record of it, written again", WRITERS
        ),
        "shard": Reason("a partition of the model that federation.shards does not have", OTHER_SETTINGS),
        "too_large": Reason("a target row longer than 3: its label was not clipped"),
        "too_many_clients": Reason(
            "one client more than federation.clients, and none was idle for federation.client_expiry_seconds",
            "raise federation.clients at all members, or remove clients that are gone with streamfl forget",
        ),
        "unknown_version": Reason(
            "an update made on a version of the model that the server never published; the server repairs "
            "the topic",
            ONLY_SERVER,
        ),
    },
    notices={
        "alone": Reason(
            "no new version of the model has come for learning.catch_up_patience_seconds: clients learn "
            "alone until one comes",
            "start the server, or check what its log says about this client's updates",
        ),
        "behind": Reason("clients learn a backlog in step with the model"),
        "bounded_predictions": Reason(
            "predictions were more than a label range beyond samples.label_range and were limited to that",
            f"check learning.learning_rate and samples.label_range; {ONLY_SERVER}",
        ),
        "configuration": Reason(
            "the server's model was made with other settings, so nothing is learnt together", OTHER_SETTINGS
        ),
        "duplicate_update": Reason("an update came again and had no effect", ONE_SENDER),
        "empty_update": Reason("an update without any step came outside a round and had no effect"),
        "late_update": Reason(
            "an update came after its round and had no effect",
            "if most are late, give clients and server the same learning.staleness",
        ),
        "model_bounded": Reason(
            "parameters grew beyond what clients accept and were shortened",
            "check learning.learning_rate, and who may write updates",
        ),
        "model_mended": Reason(
            "the model's topic did not hold what the server published last: it is published again",
            ONLY_SERVER,
        ),
        "other_settings": Reason(
            "client and server differ in settings that both need alike", "give both the same"
        ),
        "round_timed_out": Reason(
            "a round was closed after learning.round_timeout_seconds without some clients",
            'start the clients that the text names, or set learning.staleness = "async"',
        ),
        "superseded": Reason("an update came after a later one of the same client", ONE_SENDER),
        "taken_over": Reason(
            "the model that was learnt before federation.features was given continues with it"
        ),
        "unknown_version": Reason(
            "a client names a version that was never published: the server publishes again", ONLY_SERVER
        ),
        "update_bounded": Reason(
            "updates were longer than a client's can be and were shortened",
            "give server and clients the same [learning], and check who may write updates",
        ),
    },
)
