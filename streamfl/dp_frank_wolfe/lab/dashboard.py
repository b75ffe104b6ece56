"""What to watch of a private Frank-Wolfe federation: what was spent, where a fit is, who is away, what is held back."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series

__all__ = ["DASHBOARD"]

BY_MEMBER = "{{job}} {{instance}}"


def of_members(query: str) -> str:
    """Without other roles, which have a metric of the same name: these alone count columns that were shown."""
    return f"{query} and on (job, instance) {series('shown_columns_total')}"


def of_parties(query: str) -> str:
    """Without servers."""
    return f"{query} and on (job, instance) {series('ledger_links')}"


def of_servers(query: str) -> str:
    """Without parties."""
    return f"{query} and on (job, instance) {series('fit_uplink_numbers')}"


DASHBOARD = Dashboard(
    name="sparse",
    uid="streamfl-sparse",
    title="streamfl: private sparse regression",
    jobs_with="shown_columns_total",
    rows=(
        (
            Panel(
                "Epsilon spent",
                "Of the entity of which most was released, at privacy.delta, if every party has released as much of its share. It "
                "never exceeds privacy.epsilon. Nothing is shown where noise promises nothing: it is infinite.",
                "short",
                (Query(f"max by (job, instance) ({of_parties(series('epsilon'))})", BY_MEMBER),),
            ),
            Panel(
                "Releases",
                "Links of each party's ledger: what was frozen or released, for fits and for predictions. It only grows.",
                "short",
                (Query(f"max by (job, instance) ({series('ledger_links')})", BY_MEMBER),),
            ),
            Panel(
                "Releases held back",
                "Releases that a party did not send, for its ledger file does not fit its state. It should stay 0: the party "
                "is not "
                "ready, and its log says what to put back.",
                "ops",
                (Query(f"sum by (job, instance) ({rate('refused_releases_total')})", BY_MEMBER),),
            ),
        ),
        (
            Panel(
                "Phase",
                "Where each member is. Party: 0 waits for a window, 1 in a fit. Server: 0 waits for entities, 1 waits for "
                "parties to "
                "freeze the window, 2 in a fit.",
                "short",
                (Query(f"max by (job, instance) ({of_members(series('phase'))})", BY_MEMBER),),
            ),
            Panel(
                "Iterations a second",
                "Iterations that each party answered and the server decided. Standing still within a fit means that somebody is "
                "away.",
                "ops",
                (Query(f"sum by (job, instance) ({of_members(rate('iterations_total'))})", BY_MEMBER),),
            ),
            Panel(
                "Windows and models",
                "Windows that began, and models that fits came to. Each window has one fit.",
                "short",
                (
                    Query(f"sum by (job, instance) ({of_members(series('windows_total'))})", f"windows, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_members(series('models_total'))})", f"models, {BY_MEMBER}"),
                ),
            ),
        ),
        (
            Panel(
                "Model",
                "Columns with a weight in the latest fit, and the sum of the absolute weights, which stays within learning.radius.",
                "short",
                (
                    Query(f"max by (job, instance) ({of_servers(series('support'))})", f"columns, {BY_MEMBER}"),
                    Query(f"max by (job, instance) ({of_servers(series('l1_norm'))})", f"l1 norm, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Uplink of a fit",
                "Numbers that parties have released in the latest fit: a signed index is one, a sketch as many as "
                "learning.sketch_rows.",
                "short",
                (Query(f"max by (job, instance) ({series('fit_uplink_numbers')})", BY_MEMBER),),
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (Query(f"sum by (job, instance) ({of_members(rate('bytes_sent_total'))})", BY_MEMBER),),
            ),
        ),
        (
            Panel(
                "Entities",
                "Records of columns that came a second, entities that were announced, and those that were charged for a fit.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({of_parties(rate('samples_total'))})", f"records, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_parties(rate('announced_entities_total'))})", f"announced, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('charged_entities_total')})", f"charged, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Entities without a window",
                "Entities that wait at the server and that all parties have announced: a window begins at window.rows. Those that "
                "some party has not announced, which wait without a time limit. Records a second of entities without budget, and "
                "of those that gave way.",
                "short",
                (
                    Query(f"max by (job, instance) ({series('complete_entities')})", f"wait, {BY_MEMBER}"),
                    Query(f"max by (job, instance) ({series('missing_entities')})", f"lack at a party, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('spent_entities_total')})", f"no budget, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_parties(rate('displaced_entities_total'))})", f"gave way, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Parties away",
                "Parties that have not answered for window.patience_seconds, and answers that came too late. A fit goes on without "
                "them, and their budget for it is spent.",
                "short",
                (
                    Query(f"max by (job, instance) ({series('parties_away')})", f"away, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({series('late_answers_total')})", f"late, {BY_MEMBER}"),
                ),
            ),
        ),
        (
            Panel(
                "Predictions",
                "Predictions that were published a second, records that had no budget for one, and predictions that lacked a "
                "part for "
                "too long.",
                "ops",
                (
                    Query(f"sum by (job, instance) ({of_servers(rate('predictions_total'))})", f"published, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('unpredicted_entities_total')})", f"no budget, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({of_servers(rate('expired_predictions_total'))})", f"expired, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Messages that came again",
                "Messages that came again or too late, which changes nothing.",
                "ops",
                (Query(f"sum by (job, instance) ({of_members(rate('repeated_messages_total'))})", BY_MEMBER),),
            ),
            Panel(
                "Dead letters",
                "Records that were refused and went to the dead-letter topics, by reason. It should be empty: a row that "
                "cannot be read "
                "counts as zeros, and is not refused.",
                "ops",
                (Query(f"sum by (job, instance, reason) ({rate('dead_letters_total')})", "{{job}} {{instance}} {{reason}}"),),
            ),
        ),
        (
            Panel(
                "Consumer lag",
                "Records not read yet, by topic and partition. It should return to zero.",
                "short",
                (Query(f"sum by (topic, partition) ({series('consumer_lag_records')})", "{{topic}} {{partition}}"),),
                width=12,
            ),
            Panel(
                "Workers up",
                "1 while Prometheus reaches a worker, and the commits a second of each, which show that it goes round.",
                "short",
                (
                    Query('min by (job, instance) (up{job=~"$job"})', f"up, {BY_MEMBER}"),
                    Query(f"sum by (job, instance) ({rate('commits_total')})", f"commits a second, {BY_MEMBER}"),
                ),
                width=12,
            ),
        ),
    ),
)
