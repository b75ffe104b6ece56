"""Series as Prometheus sees them, and the alert that has to fire: just beyond each limit it fires, just
within it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CASES", "Told"]

DAY = 24 * 60
CHALLENGER = 'challenger_%s_total{model="running-mean"}'
# Minutes between samples of alerts that look back for a day. Prometheus computes each of them.
SELDOM = 20
# A counter that is scraped as seldom and grows by one a day.
ONE_A_DAY = "0+0.014x100"
# Three weeks of a counter that grows by one on each weekday, in steps of six hours. The weekends begin it.
WEEKDAYS = " ".join(f"{day}x{11 if day % 5 == 0 else 3}" for day in range(1, 16))
DAYS = 720
# Five days in steps of two minutes, from six to six on each, and the weekend.
WEEK = (*[360] * 9, 360 + 2 * DAYS)
GUEST = 'role="quasi-newton-guest"'
COORDINATOR = 'role="quasi-newton-coordinator"'


@dataclass(frozen=True)
class Told:
    """One case: series of a federation, and when the alert fires.

    seen: samples in promtool's notation, by the metric's name and its own labels.
    minute: the first minute at which the alert fires; None: it never does.
    still: further minutes at which it fires.
    step: minutes between samples.
    begin, end: steps between which it never fires; with a minute, between ``begin`` and that minute.
    look: minutes between two evaluations of the alert, in a case of days; 0: as many as between samples.
    rough: minutes between two evaluations of its wrong variants, where fewer are enough; 0: as many.
    """

    seen: Mapping[str, str]
    minute: int | None = None
    still: tuple[int, ...] = ()
    step: int = 1
    begin: int = 0
    end: int = 90
    look: int = 0
    rough: int = 0

    @property
    def every(self) -> int:
        """Minutes between two evaluations of the alert."""
        return self.look or self.step


def grows(by: float, steps: int = 220) -> str:
    return f"0+{by}x{steps}"


def stays(value: float, steps: int = 220) -> str:
    return f"{value}x{steps}"


def worked(*steps: int, by: float = 0.002) -> str:
    """A counter that grows for so many steps, rests for so many, and so on."""
    found, last = [], 0.0
    for number, some in enumerate(steps):
        if number % 2:
            found.append(f"{last:.6g}x{some - 1}")
        else:
            found.append(f"{last + by:.6g}+{by}x{some - 1}")
            last += by * some
    return " ".join(found)


def once(counter: str, minute: int = 61) -> tuple[Told, ...]:
    """Cases of an alert on any event of a counter: one event, and no event for a long time."""
    return Told({counter: "0x60 1x60"}, minute), Told({counter: stays(0)})


def share(counted: tuple[str, float], of: Mapping[str, float], less: float, minute: int) -> tuple[Told, ...]:
    """Cases of an alert on a counter's share of other counters.

    counted: the counter, and its growth when the alert fires.
    of: the other counters.
    less: its growth when the alert does not fire.
    """
    name, more = counted
    others = {other: grows(by) for other, by in of.items()}
    return Told({name: grows(more), **others}, minute), Told({name: grows(less), **others})


def absence(counter: str, of: str) -> tuple[Told, ...]:
    """Cases of an alert on a share that grows while a party is away: it is away for a quarter of an hour, or
    for an hour, and the alert ends a quarter of an hour later."""
    return (
        Told({counter: "0x60 1+1x14 15x100", of: grows(1)}, end=170),
        Told({counter: "0+1x60 60x110", of: grows(1)}, 31, (60, 70)),
        Told({counter: "0+1x60 60x110", of: grows(1)}, begin=76, end=170),
    )


def first_training(other: Mapping[str, str]) -> Mapping[str, str]:
    """A party of quasi-Newton with one entity that stays incomplete. other: series that differ."""
    return {
        "missing_entities": stays(1),
        "known_entities": stays(4),
        "samples_total": ONE_A_DAY,
        **other,
    }


def first_window(other: Mapping[str, str]) -> Mapping[str, str]:
    """A party of DP Frank-Wolfe whose one entity never gets its label. other: series that differ."""
    lacking = {
        'lacking_entities{reason="label"}': stays(1),
        'lacking_entities{reason="columns"}': stays(0),
    }
    return {
        "window": stays(0),
        **lacking,
        "samples_total": ONE_A_DAY,
        "announced_entities_total": stays(7),
        **other,
    }


def stopped(counter: str, others: Mapping[str, str] | None = None) -> tuple[Told, ...]:
    """Cases of an alert on a counter that grew each minute and stopped, and those in which it is not told.

    others: counters that keep growing.
    """
    others = dict(others or {})
    found = [
        # It stays, also when the others stop too.
        Told(
            {counter: "0+0.25x30 7.5x60", **dict.fromkeys(others, "0+0.02x60 1.2x60")},
            45,
            (60, 89),
            rough=5,
        ),
        # It grows again.
        Told({counter: "0+0.25x30 7.5x40 8+0.25x30", **others}, begin=73, end=95),
        Told({counter: grows(0.25), **others}, end=60),
        # It grows once in half an hour, so 15 minutes without growth are usual.
        Told({counter: "0x29 1x29 2x29 3x29", **others}, end=100),
    ]
    if others:
        # The other counters have stopped too.
        found.append(Told(dict.fromkeys((counter, *others), "0+0.25x30 7.5x60"), end=80))
    return tuple(found)


def seldom(counter: str, others: Mapping[str, str] | None = None) -> tuple[Told, ...]:
    """Cases in which a counter stopped that grew each hour or each day.

    others: counters that keep growing.
    """
    slow = {other: grows(0.0004, 5500) for other in others or {}}
    others = dict(others or {})
    return (
        Told({counter: "0 1x3 2x3 3x3 4x3 5x60", **others}, 435, (795,), 15, rough=60),
        Told({counter: "0 1x3 2x3 3x3 4x3 5x60", **others}, 10440, (21600,), 360, rough=DAY),
        # Each day from six to six. On the eighth day it does not come.
        Told({counter: f"0x179 {worked(*[360] * 13, 5000)}", **slow}, 10620, (), 2, look=180, rough=540),
        # Once a day, but not at weekends.
        Told({counter: f"0x7 {WEEKDAYS} 15x40", **others}, 34560, (), 360, rough=DAY),
    )


CASES: dict[str, tuple[Told, ...]] = {
    # Alerts of every worker.
    "StreamflNoWorker": (
        Told({"ready": "1x6 stale", "up": "1x6 0x600"}, 40, (DAY, 2 * DAY), 5),
        # Their scrape targets are gone too.
        Told({"ready": "1x6 stale", "up": "1x6 stale"}, 40, (DAY,), 5),
        Told({"ready": "1x6 stale 1x90", "up": "1x6 0 1x90"}, step=5),
        Told(
            {"ready": stays(1), 'ready{instance="b:1"}': "1x6 stale", 'up{instance="b:1"}': "1x6 0x200"},
            step=5,
        ),
    ),
    "StreamflWorkerDown": (
        # It never answered.
        Told({"up": stays(0)}, 5, (200,), 5),
        Told({'up{job="pods"}': "1x6 0x600", 'ready{job="pods"}': "1x6 stale"}, 40, (DAY, 2 * DAY), 5),
        # Other programs' targets do not count.
        Told({'up{job="pods"}': stays(0)}, step=5),
        Told({"up": "1x6 0 1x90", "ready": "1x6 stale 1x90"}, step=5),
    ),
    "StreamflNotServing": (
        Told({'not_ready{reason="bus"}': "0x29 1x60"}, 35),
        Told({'not_ready{reason="bus"}': "0x29 1x4 0x200"}),
    ),
    "StreamflNoProgress": (
        Told({'consumer_lag_records{partition="0"}': stays(101), "records_total": stays(70)}, 11),
        # Partition 1 has no worker.
        Told(
            {
                'consumer_lag_records{partition="0"}': stays(50),
                'group_lag_records{partition="1"}': stays(51),
                "records_total": stays(7),
            },
            11,
        ),
        Told({'consumer_lag_records{partition="0"}': stays(99), "records_total": stays(70)}),
        Told({'consumer_lag_records{partition="0"}': stays(101), "records_total": grows(0.2)}),
    ),
    "StreamflLagGrows": (
        Told({'consumer_lag_records{partition="0"}': "10.1+0.01x220", "records_total": grows(0.5)}, 31),
        # The worker of partition 1 is gone: another worker reports the partition's lag.
        Told(
            {
                'consumer_lag_records{partition="0"}': stays(0),
                'group_lag_records{partition="1"}': "1000+1x220",
                "records_total": stays(0),
            },
            31,
        ),
        Told({'consumer_lag_records{partition="0"}': "9+0.004x220", "records_total": grows(0.5)}),
        # At such a rate the lag is a matter of seconds.
        Told({'consumer_lag_records{partition="0"}': "1000+1x220", "records_total": grows(200)}, begin=20),
        # The lag falls. Another worker's view of a partition that has a worker is some seconds old.
        Told(
            {
                'consumer_lag_records{partition="0"}': "9000-10x220",
                'group_lag_records{partition="0"}': "2000+10x220",
                "records_total": grows(10),
            }
        ),
    ),
    "StreamflSamplesGone": (
        # Cases that find many mistakes in little time come first.
        *stopped("samples_total")[:1],
        *seldom("samples_total"),
        # It rests by night too. On a Monday both days before had no samples, but a week ago there were some.
        Told(
            {"samples_total": f"0x179 {worked(*WEEK, 172, 200)}"}, 10800, (), 2, 2 * DAYS, look=240, rough=720
        ),
        # Shops close each evening at about the same time. The first two evenings are news.
        Told(
            {"samples_total": worked(160, 320, 160, 320, 132, 300)},
            step=3,
            begin=1085,
            end=1160,
            look=18,
        ),
        # A plant rests at weekends, from about ten on. The first weekend is news.
        Told(
            {"samples_total": worked(5 * DAYS - 57, 2 * DAYS + 57, 5 * DAYS - 99, 2 * DAYS + 99, 300)},
            None,
            (),
            2,
            11 * DAYS,
            14 * DAYS + 200,
            180,
        ),
        # By day as by night they were open on both days before.
        Told({"samples_total": worked(1060, 40)}, 3195, (), 3, look=45),
        # For a week there were no samples, then for five days there were. No pause began a week ago.
        Told(
            {"samples_total": worked(DAYS, 7 * DAYS, 5 * DAYS - 8, 200)},
            13 * 1440,
            (),
            2,
            9 * DAYS,
            look=240,
        ),
        *stopped("samples_total")[1:],
    ),
    "StreamflLabelsGone": (
        *stopped("labels_total", {"samples_total": grows(0.02)}),
        *stopped("labels_total", {"embeddings_total": grows(0.02)})[:1],
        *seldom("labels_total", {"samples_total": grows(0.02)}),
    ),
    "StreamflDeletedUnread": once('deleted_unread_records_total{topic="readings"}'),
    "StreamflRecordsLost": once('lost_records_total{topic="readings"}'),
    "StreamflDeadLetters": (
        *once('dead_letters_total{reason="label"}'),
        # Records were refused before the first scrape.
        Told({'dead_letters_total{reason="label"}': "_x60 22x60"}, 60),
        # The worker could not be scraped for a while.
        Told({'dead_letters_total{reason="label"}': "22x100 _x30 22x60"}, begin=90, end=190),
    ),
    "StreamflMessagesRefused": once('refused_messages_total{reason="forged"}'),
    "StreamflTableRejections": once('table_rejections_total{reason="forged"}'),
    "StreamflCommitsRefused": share(("commits_refused_total", 2.1), {"commits_total": 10}, 1.9, 16),
    "StreamflRestarts": (
        Told({"start_time_seconds": "0x9 1x4 2x4 3x4 4x200"}, 25),
        Told({"start_time_seconds": "0x9 1x4 2x4 3x200"}),
    ),
    # Alerts of clients with samples of their own.
    "StreamflErrorAboveRunningMean": share(
        ("squared_error_sum_total", 2.1),
        {"labels_total": 10, CHALLENGER % "squared_error_sum": 2, CHALLENGER % "labels": 10},
        1.9,
        61,
    ),
    "StreamflRegretRises": (
        Told({"regret": "0.10x72 0.112x15", "lifetime_labels": stays(1)}, DAY + 80, (), SELDOM),
        Told({"regret": "0.0005x72 0.0011x15", "lifetime_labels": stays(1)}, DAY + 80, (), SELDOM),
        Told({"regret": "0.10x72 0.109x15", "lifetime_labels": stays(1)}, step=SELDOM, end=83),
        Told({"regret": "0.0005x72 0.00095x15", "lifetime_labels": stays(1)}, step=SELDOM, end=83),
        # The regret rises together with the number of labels.
        Told({"regret": "0.10x72 0.20x15", "lifetime_labels": "1x72 2x15"}, step=SELDOM, end=83),
        # Around zero a small regret is many times yesterday's.
        Told({"regret": "-0.00001x72 0.00001x15", "lifetime_labels": stays(1)}, step=SELDOM, end=83),
    ),
    "StreamflRegretStays": (
        Told({"regret": stays(0.0105, 400), "lifetime_labels": stays(1, 400)}, 7 * DAY + 60, (), 30),
        Told({"regret": stays(0.0095, 400), "lifetime_labels": stays(1, 400)}, step=30, end=350),
        Told({"regret": "0.05-0.0001x400", "lifetime_labels": stays(1, 400)}, step=30, end=350),
    ),
    "StreamflBudgetExhausted": share(
        ('skipped_updates_total{reason="budget"}', 5.1), {"updates_total": 10}, 4.9, 61
    ),
    "StreamflBudgetNearlySpent": (
        *share(("update_bytes_total", 0.0081), {"update_budget_bytes_total": 0.01}, 0.0079, 31),
        # There is no budget.
        Told({"update_bytes_total": grows(9), "update_budget_bytes_total": stays(0)}),
    ),
    "StreamflClientSilent": (
        Told({"silent_clients": "0x9 1x80"}, 15),
        Told({"silent_clients": "0x9 1x4 0x80"}),
    ),
    "StreamflClientUnlabelled": (
        Told({"unlabelled_clients": "0x9 1x80"}, 15),
        Told({"unlabelled_clients": "0x9 1x4 0x80"}),
    ),
    "StreamflModelStands": (
        Told({"updates_total": grows(0.05), "model_version": stays(7)}, 6),
        # There is no model yet.
        Told({"updates_total": grows(0.05), "model_version": "NaNx220"}, 6),
        Told({"updates_total": grows(5), "model_version": "7x2 8x9 9x9 10x9 11x9 12x9 13x9 14x9 15x9 16x9"}),
        Told({"updates_total": stays(0), "model_version": stays(7)}),
    ),
    "StreamflUpdatesGone": stopped("updates_applied_total"),
    "StreamflUpdatesIgnored": share(
        ('ignored_updates_total{reason="late"}', 2.6), {"updates_applied_total": 10}, 2.4, 16
    ),
    "StreamflClientsSilenced": (
        Told({"labels_total": grows(0.02), "updates_total": stays(0)}, 61),
        Told({"labels_total": grows(5), "updates_total": grows(0.02)}),
        Told({"labels_total": stays(0), "updates_total": stays(0)}),
    ),
    "StreamflClientMissing": (
        Told({"timed_out_rounds_total": grows(0.05)}, 21),
        Told({"timed_out_rounds_total": "0x60 1x160"}),
    ),
    "StreamflClientsAlone": (Told({"alone": "0x9 1x80"}, 15), Told({"alone": stays(0)})),
    "StreamflPredictedWithoutModel": (
        Told({"version_zero_predictions_total": grows(0.55), "predictions_total": grows(1)}, 16),
        Told(
            {
                "version_zero_predictions_total": grows(1),
                "predictions_total": grows(1),
                "model_version": "NaNx220",
            },
            16,
        ),
        # A short history was predicted before there was a model, and a slow stream follows.
        Told(
            {
                "version_zero_predictions_total": stays(60),
                "predictions_total": "60+0.2x220",
                "model_version": stays(1),
            }
        ),
        Told({"version_zero_predictions_total": grows(0.45), "predictions_total": grows(1)}),
        Told({"version_zero_predictions_total": stays(0), "predictions_total": stays(0)}),
    ),
    "StreamflClientsWait": (
        Told({"waiting_clients": stays(1), "labels_total": stays(0)}, 15),
        Told({"waiting_clients": stays(1), "labels_total": grows(0.05)}),
        Told({"waiting_clients": stays(0), "labels_total": stays(0)}),
    ),
    "StreamflSuspectModel": (
        *once("superseded_updates_total"),
        *once("model_repairs_total"),
        *once("unsigned_parameters_total"),
    ),
    "StreamflStaleUpdates": (
        Told({"staleness": stays(1100)}, 30),
        Told({"staleness": stays(900)}),
        # An up-to-date client does not hide the others.
        Told({"staleness": " ".join(["2200 12"] * 60)}, 30),
        # One update among many.
        Told({"staleness": "12x100 9000 12x100"}),
    ),
    # Alerts of vertical federations.
    "StreamflPartySilent": (
        Told({"silent_parties_total": grows(0.03)}, 16),
        Told({"silent_parties_total": stays(0)}),
    ),
    "StreamflPrivacyBudgetNearlySpent": (
        *share(('withheld_embeddings_total{reason="budget"}', 1.2), {"embeddings_total": 10}, 1, 31),
        *share(('withheld_labels_total{reason="budget"}', 1.2), {"learnt_total": 10}, 1, 31),
        Told({'withheld_embeddings_total{reason="ledger"}': grows(9), "embeddings_total": grows(10)}),
        # Some entities have used up their budget.
        Told({"privacy_mu": stays(2), "privacy_budget_mu": stays(2), "embeddings_total": grows(10)}),
    ),
    "StreamflNothingLearnt": (
        Told({'forgotten_entities_total{reason="no_label"}': grows(0.02), "learnt_total": stays(0)}, 31),
        Told({'forgotten_entities_total{reason="no_label"}': grows(0.02), "learnt_total": grows(0.02)}),
        Told({'forgotten_entities_total{reason="displaced"}': grows(2), "learnt_total": stays(0)}),
    ),
    "StreamflLearningStands": stopped("learnt_total", {"embeddings_total": grows(0.02)}),
    "StreamflPredictedUnlearnt": (
        Told({"predictions_total": grows(0.02), "learnt_total": stays(0)}, 61),
        Told({"predictions_total": grows(5), "learnt_total": "0 1x220"}, begin=10),
    ),
    "StreamflBelowQuorum": (
        *share(("learnt_below_quorum_total", 1.1), {"learnt_total": 10}, 0.9, 31),
        *absence("learnt_below_quorum_total", "learnt_total"),
    ),
    "StreamflTwoSpeak": once("superseded_embeddings_total"),
    "StreamflStepsRefused": once("refused_steps_total"),
    # Alerts of kernel federations.
    "StreamflMasksDoNotFit": (
        *once('abandoned_rounds_total{reason="masks"}'),
        Told({'abandoned_rounds_total{reason="timeout"}': "0x60 1x160"}),
    ),
    "StreamflRowsDropped": (
        Told({"rows_dropped_total": grows(0.02)}, 31),
        Told({"rows_dropped_total": stays(0)}),
    ),
    "StreamflIterationsStand": stopped("iterations_total", {"samples_total": grows(0.02)}),
    "StreamflPredictedUntrained": (
        Told({"predictions_total": grows(0.02), "iterations_total": stays(0)}, 61),
        Told({"predictions_total": grows(5), "iterations_total": "0 1x220"}, begin=10),
    ),
    "StreamflRoundsAbandoned": (
        Told({'abandoned_rounds_total{reason="timeout"}': grows(0.75)}, 29),
        Told({'abandoned_rounds_total{reason="timeout"}': grows(0.6)}),
    ),
    # Alerts of quasi-Newton federations.
    "StreamflFirstTrainingWaits": (
        Told(first_training({}), DAY + 60, (), SELDOM),
        # Only labels come, never the guest's columns.
        Told(first_training({"samples_total": stays(0), "labels_total": ONE_A_DAY}), DAY + 60, (), SELDOM),
        # Fewer entities are known than before: the oldest were forgotten.
        Told(first_training({"known_entities": "9x25 4x75"}), DAY + 60, (), SELDOM),
        # Training has begun, a new entity comes each day, or nothing comes.
        Told(first_training({"missing_entities": stays(0)}), step=SELDOM, end=88),
        Told(first_training({"known_entities": "4x50 5x50"}), step=SELDOM, end=88),
        Told(first_training({"samples_total": stays(9)}), None, (), SELDOM, 8, 88),
    ),
    "StreamflTrainingStands": (
        Told({f"phase{{{COORDINATOR}}}": stays(1), f"iteration{{{COORDINATOR}}}": stays(4)}, 60),
        Told({f"phase{{{COORDINATOR}}}": stays(2), f"iteration{{{COORDINATOR}}}": stays(4)}, 60),
        Told({f"phase{{{COORDINATOR}}}": stays(2), f"iteration{{{COORDINATOR}}}": "4x50 5x50 6x50 7x70"}),
        Told({f"phase{{{COORDINATOR}}}": "1x50 2x50 1x50 2x70", f"iteration{{{COORDINATOR}}}": stays(0)}),
        Told({f"phase{{{COORDINATOR}}}": stays(0), f"iteration{{{COORDINATOR}}}": stays(4)}),
        Told({f"phase{{{COORDINATOR}}}": stays(3), f"iteration{{{COORDINATOR}}}": stays(4)}),
        # For a guest these numbers have another meaning.
        Told(
            {'phase{role="quasi-newton-guest"}': stays(1), 'iteration{role="quasi-newton-guest"}': stays(4)}
        ),
    ),
    "StreamflPartyWaits": (
        Told({f"phase{{{GUEST}}}": stays(2), f"iteration{{{GUEST}}}": stays(4)}, 60),
        Told({f"phase{{{GUEST}}}": stays(6), f"iteration{{{GUEST}}}": stays(4)}, 60),
        Told({f"phase{{{GUEST}}}": stays(1), f"iteration{{{GUEST}}}": stays(4)}),
        Told({f"phase{{{GUEST}}}": stays(7), f"iteration{{{GUEST}}}": stays(4)}),
        Told({f"phase{{{GUEST}}}": stays(3), f"iteration{{{GUEST}}}": "4x50 5x50 6x50 7x70"}),
        Told({f"phase{{{COORDINATOR}}}": stays(2), f"iteration{{{COORDINATOR}}}": stays(4)}),
    ),
    "StreamflQuestionsUnanswered": (
        Told({"abandoned_questions_total": "0x60 1x2 2x4 3x60"}, 69),
        # A host that was away for two or three minutes.
        Told({"abandoned_questions_total": "0x60 1x2 2x60"}),
    ),
    "StreamflModelVersionsNearlySpent": (
        Told({"model_versions_left": "3x9 2x9 1x60"}, 20),
        Told({"model_versions_left": stays(1.2)}),
    ),
    "StreamflTrainingFailed": once("failed_trainings_total"),
    "StreamflDecryptionRefused": once("refused_decryptions_total"),
    # Alerts of DP Frank-Wolfe.
    "StreamflReleaseRefused": once("refused_releases_total"),
    "StreamflAnswersMissing": once("missing_answers_total"),
    "StreamflFirstWindowWaits": (
        Told(first_window({}), DAY + 60, (), SELDOM),
        Told(first_window({"samples_total": stays(0), "labels_total": ONE_A_DAY}), DAY + 60, (), SELDOM),
        Told(first_window({"announced_entities_total": ONE_A_DAY}), step=SELDOM, end=88),
        Told(first_window({"window": stays(1)}), step=SELDOM, end=88),
        Told(first_window({'lacking_entities{reason="label"}': stays(0)}), step=SELDOM, end=88),
        Told(first_window({"samples_total": stays(9)}), None, (), SELDOM, 8, 88),
    ),
    "StreamflEntitiesMissing": (
        Told(
            {"missing_entities": "1+0.002x220", "complete_entities": stays(5), "windows_total": stays(0)}, 61
        ),
        Told({"missing_entities": stays(3), "complete_entities": stays(5), "windows_total": stays(0)}),
        Told({"missing_entities": "1+1x220", "complete_entities": "5+0.02x220", "windows_total": stays(0)}),
        Told({"missing_entities": "1+1x220", "complete_entities": stays(5), "windows_total": grows(0.02)}),
    ),
    "StreamflFitsStand": stopped("windows_total", {"samples_total": grows(0.02)}),
    "StreamflNoModelYet": share(("early_records_total", 5.1), {"samples_total": 10}, 4.9, 61),
    "StreamflPredictionsExpired": (
        *share(("expired_predictions_total", 1.1), {"predictions_total": 10}, 0.9, 31),
        *absence("expired_predictions_total", "predictions_total"),
    ),
    "StreamflPredictionBudgetNearlySpent": share(
        ("unpredicted_entities_total", 1.1), {"samples_total": 10}, 0.9, 31
    ),
    "StreamflFitBudgetNearlySpent": share(
        ("spent_entities_total", 1.1), {"samples_total": 5, "labels_total": 5}, 0.9, 31
    ),
}
