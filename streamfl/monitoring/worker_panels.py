"""Panels for workers of any system: whether they are up, what they refuse, how large the lag is."""

from __future__ import annotations

from streamfl.monitoring.dashboard import SCRAPED, Panel, Query, growth, lag, rate, series

__all__ = ["BY_WORKER", "SEEN", "UP", "lag_tile", "refused_tile", "samples_tile", "worker_panels", "workers_tile"]

# Prometheus keeps trying to scrape a worker that is gone. For an hour such a worker counts as expected.
SEEN = f"last_over_time({series('ready')}[1h])"
UP = f"up{{{SCRAPED}}}"
# Legend of a worker's line.
BY_WORKER = "{{group}} {{instance}}"


def workers_tile(width: int = 4) -> Panel:
    """Number of workers that are up, out of those seen within the last hour."""
    return Panel(
        "Workers up",
        "Workers that Prometheus reaches now, of those that it has seen within the last hour.",
        "none",
        (
            Query(f"count({UP} == 1 and on (job, instance) {SEEN}) or vector(0)", "up"),
            Query(f"count(group by (job, instance) ({SEEN})) or vector(0)", "of"),
        ),
        kind="stat",
        width=width,
        remedy="If fewer are up than there were: the panel Workers, below, names the missing one. Its exit code and the last "
        "line of its log say why it ended. One that was taken down on purpose is counted for an hour.",
        bad_below=1,
    )


def samples_tile(*roles: str, width: int = 4) -> Panel:
    """Samples a second at workers with these roles."""
    return Panel(
        "Samples a second now",
        "Samples that the workers took, a second.",
        "ops",
        (Query(f"sum({rate('samples_total', *roles)})", "samples"),),
        kind="stat",
        width=width,
        remedy="If it is 0 although samples are written: look at the lag. If that grows, ask /readyz of the workers what is wrong; "
        "if it is 0 too, the samples go to another topic.",
        nothing="none",
    )


def refused_tile(width: int = 4) -> Panel:
    """The number of refused records over the dashboard's time range."""
    refused = f"sum({growth('dead_letters_total')}) + sum({growth('table_rejections_total')})"
    return Panel(
        "Records refused",
        "Records of inputs and of the model that could not be used, over the time that is shown. Those of inputs lie in the "
        "dead-letter topic.",
        "none",
        (Query(refused, "refused"),),
        kind="stat",
        width=width,
        remedy="If it is above 0: `streamfl dead-letters` shows what they were and why they were refused, and sends them again "
        "once the cause is gone.",
        bad_from=0.5,
        nothing="0",
    )


def lag_tile(width: int = 4) -> Panel:
    """The number of unread records."""
    return Panel(
        "Records waiting",
        "Records of all inputs that were written and not yet read, in partitions with a worker or without.",
        "short",
        (Query(f"sum({lag()})", "waiting"),),
        kind="stat",
        width=width,
        remedy="If it grows for minutes: the workers are too slow or do not serve. Start more of them, up to the number of "
        "partitions, and look at what takes long on the dashboard of service health.",
        bad_from=1000,
        nothing="unknown",
    )


def worker_panels() -> tuple[Panel, ...]:
    """The row of panels for workers of any system: refused records, lag, and whether they are up."""
    return (
        Panel(
            "Dead letters",
            "Records that were refused and went to the dead-letter topics, a second, by reason. It should be empty.",
            "ops",
            (Query(f"sum by (group, reason) ({rate('dead_letters_total')}) > 0", "{{group}} {{reason}}"),),
            nothing="none was refused",
            remedy="If there are some: `streamfl dead-letters` shows the records. The reason says what is wrong with them; the "
            "page of dead letters explains each.",
        ),
        Panel(
            "Consumer lag",
            "Records not read yet, by topic and partition, whether a worker has the partition or not. It should return to zero.",
            "short",
            (Query(lag(), "{{group}} {{topic}} {{partition}}"),),
            remedy="If one partition alone grows: its worker is stuck, so ask its /readyz. If all grow: more comes than is worked "
            "off, so start more workers.",
        ),
        Panel(
            "Workers",
            "1 while Prometheus reaches a worker that it has seen within the last hour, and the commits a second of each, which "
            "show that it goes round.",
            "short",
            (
                Query(f"min by (instance) ({UP} and on (job, instance) {SEEN})", "up, {{instance}}"),
                Query(f"sum by (group, instance) ({rate('commits_total')})", "commits a second, {{group}} {{instance}}"),
            ),
            remedy="If a worker is at 0: look at its process and its log. If it is up and commits nothing while records wait: "
            "ask its /readyz.",
        ),
    )
