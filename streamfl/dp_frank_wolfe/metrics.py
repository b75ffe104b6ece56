"""The metrics of DP Frank-Wolfe. Each follows from names, times and releases, never from a row's values."""

from __future__ import annotations

from streamfl.contract.measurement import Metric, counter, gauge
from streamfl.roles.partitioned_role import OutboxCounts

__all__ = ["MemberCounts", "PartyMetrics", "ServerMetrics"]


class MemberCounts(OutboxCounts):
    """What members count. Each has all of these counters."""

    samples = counter("Records of own columns received, whatever their content")
    labels = counter("Records of labels received, whatever their content")
    duplicate_records = counter(
        "Records of entities that already had one of the same kind; the first one counts"
    )
    spent_entities = counter("Records of entities that have no budget left for a fit", headline=True)
    displaced_entities = counter("Incomplete entities that were dropped for newer ones")
    announced_entities = counter("Entities that were announced to the server")
    left_out_entities = counter(
        "Entities that a party announced beyond the server's window.limit, and that are in no window"
    )
    charged_entities = counter(
        "Entities that were charged the cost of a fit; an entity counts once for each charge"
    )
    windows = counter("Windows that were frozen at a party, or filled at the server")
    iterations = counter("Iterations that a party answered, or the server decided")
    given_up_windows = counter("Windows that the server gave up, because no party had frozen them")
    asked_names = counter("Times that the server asked a party to announce its entities anew")
    releases = counter("Links of the ledger's chain: each records a frozen window or a release")
    refused_releases = counter(
        "Releases that were held back because the ledger file does not match the state"
    )
    shown_columns = counter("Columns that were shown to the server for the first time in their window")
    uplink_numbers = counter(
        "Numbers of parties' releases: a signed index is one, a sketch as many as it has rows"
    )
    uplink_bytes = counter("Bytes of parties' releases in fits, as accepted by the server")
    signed_indices = counter("Vertices that parties have sent to the server")
    models = counter("Models that fits produced")
    missing_answers = counter("Answers of parties that did not come in time")
    timed_out_rounds = counter(
        "Rounds of a fit that the server continued although not every party had answered in time"
    )
    repeated_asks = counter(
        "Manifests and requests that were sent again, because no present party had answered"
    )
    late_answers = counter("Answers of parties that came after the server had gone on without them")
    repeated_messages = counter("Messages that were repeated, or too late")
    partials = counter("Parts of predictions that a party sent")
    early_records = counter(
        "Records that came before the party's first model, so that no prediction was made for them"
    )
    unpredicted_entities = counter(
        "Records of entities without budget for another prediction, or while window.limit of them already "
        "waited"
    )
    predictions = counter("Predictions that were published")
    expired_predictions = counter(
        "Predictions that were given up because a party's part was missing for too long, or newer ones came"
    )


def _phase(*meanings: str) -> Metric:
    """meanings: of each phase number."""
    listed = ", ".join(f"{number} {meaning}" for number, meaning in enumerate(meanings))
    return gauge(f"Phase of the member: {listed}", headline=True)


class PartyMetrics:
    """Metrics of a party."""

    window = gauge("Number of the latest window", headline=True)
    phase = _phase("waits for a window", "in a fit")
    iteration = gauge("Iterations of the fit that are done", headline=True)
    lacking_entities = gauge(
        "Entities whose columns or label have not come yet: they wait without a time limit",
        headline=True,
        reason=("columns", "label"),
    )
    waiting_entities = gauge(
        "Entities that wait for a window; at a server, including those that not all parties have announced"
    )
    epsilon = gauge(
        "epsilon at privacy.delta of the entity with the largest releases, if every party has released as "
        "much of its share",
        headline=True,
    )
    budget_epsilon = gauge("epsilon that no entity may exceed")
    rho = gauge("Cost of this party's releases about the entity with the largest ones")
    delta = gauge("The delta for which epsilon holds")
    ledger_entities = gauge("Entities with releases")
    ledger_links = gauge("Links of the ledger's chains")
    waiting_partials = gauge("Parts of predictions that are still to be sent")


class ServerMetrics:
    """Metrics of the server."""

    window = PartyMetrics.window
    phase = _phase("waits for entities", "waits for parties to freeze the window", "in a fit")
    iteration = PartyMetrics.iteration
    support = gauge("Columns with a weight in the latest fit", headline=True)
    l1_norm = gauge("Sum of the absolute weights in the latest fit", headline=True)
    fit_uplink_numbers = gauge(
        "Numbers that parties have released in the latest fit: a signed index is one", headline=True
    )
    waiting_entities = PartyMetrics.waiting_entities
    complete_entities = gauge("Entities that wait and that all parties have announced", headline=True)
    missing_entities = gauge(
        "Entities that wait because some party has not announced them, without a time limit; the log says "
        "which party",
        headline=True,
    )
    parties_away = gauge("Absent parties, without which the server continues", headline=True)
    waiting_predictions = gauge("Entities whose prediction waits for parts of some parties")
