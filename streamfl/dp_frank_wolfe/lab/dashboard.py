"""What to watch of a private Frank-Wolfe federation: what was spent, where a fit is, who is away, what is held back."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series, worker_panels

__all__ = ["DASHBOARD"]

SERVER = "dp-frank-wolfe-server"
PARTY = "dp-frank-wolfe-party"
BY_MEMBER = "{{group}} {{instance}}"


DASHBOARD = Dashboard(
    name="sparse",
    uid="streamfl-sparse",
    title="streamfl: private sparse regression",
    system="dp-frank-wolfe",
    rows=(
        (
            Panel(
                "Epsilon spent",
                "Of the entity of which most was released, at privacy.delta, if every party has released as much of its share. It "
                "never exceeds privacy.epsilon. Nothing is shown where noise promises nothing: it is infinite.",
                "short",
                (Query(f"max by (group, instance) ({series('epsilon', PARTY)})", BY_MEMBER),),
            ),
            Panel(
                "Releases",
                "Links of each party's ledger: what was frozen or released, for fits and for predictions. It only grows.",
                "short",
                (Query(f"max by (group, instance) ({series('ledger_links')})", BY_MEMBER),),
            ),
            Panel(
                "Releases held back",
                "Releases that a party did not send, for its ledger file does not fit its state. It should stay 0: the party "
                "is not "
                "ready, and its log says what to put back.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('refused_releases_total')})", BY_MEMBER),),
            ),
        ),
        (
            Panel(
                "Phase",
                "Where each member is. Party: 0 waits for a window, 1 in a fit. Server: 0 waits for entities, 1 waits for "
                "parties to "
                "freeze the window, 2 in a fit.",
                "short",
                (Query(f"max by (group, instance) ({series('phase')})", BY_MEMBER),),
            ),
            Panel(
                "Iterations a second",
                "Iterations that each party answered and the server decided. Standing still within a fit means that somebody is "
                "away.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('iterations_total')})", BY_MEMBER),),
            ),
            Panel(
                "Windows and models",
                "Number of the latest window at each member, and how many fits came to a model within the last hour. Each window "
                "has one fit.",
                "short",
                (
                    Query(f"max by (group, instance) ({series('window')})", f"latest window, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) (increase({series('models_total')}[1h]))", f"models, last hour, {BY_MEMBER}"),
                ),
            ),
        ),
        (
            Panel(
                "Model",
                "Columns with a weight in the latest fit, and the sum of the absolute weights, which stays within learning.radius.",
                "short",
                (
                    Query(f"max by (group, instance) ({series('support', SERVER)})", f"columns, {BY_MEMBER}"),
                    Query(f"max by (group, instance) ({series('l1_norm')})", f"l1 norm, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Uplink of a fit",
                "Numbers that parties have released in the latest fit: a signed index is one, a sketch as many as "
                "learning.sketch_rows.",
                "short",
                (Query(f"max by (group, instance) ({series('fit_uplink_numbers')})", BY_MEMBER),),
            ),
            Panel(
                "Bytes sent a second",
                "Bytes of messages to other members.",
                "Bps",
                (Query(f"sum by (group, instance) ({rate('bytes_sent_total')})", BY_MEMBER),),
            ),
        ),
        (
            Panel(
                "Entities",
                "Records of columns that came a second, entities that were announced, and those that were charged for a fit.",
                "ops",
                (
                    Query(f"sum by (group, instance) ({rate('samples_total', PARTY)})", f"records, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({rate('announced_entities_total', PARTY)})", f"announced, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({rate('charged_entities_total')})", f"charged, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Entities without a window",
                "Entities that wait at the server and that all parties have announced: a window begins at window.rows. Those that "
                "some party has not announced, which wait without a time limit. Records a second of entities without budget, and "
                "of those that gave way.",
                "short",
                (
                    Query(f"max by (group, instance) ({series('complete_entities')})", f"wait, {BY_MEMBER}"),
                    Query(f"max by (group, instance) ({series('missing_entities')})", f"lack at a party, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({rate('spent_entities_total')})", f"no budget, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({rate('displaced_entities_total', PARTY)})", f"gave way, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Parties away",
                "Parties that have not answered for window.patience_seconds, and answers that came too late. A fit goes on without "
                "them, and their budget for it is spent.",
                "short",
                (
                    Query(f"max by (group, instance) ({series('parties_away')})", f"away, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({series('late_answers_total')})", f"late, {BY_MEMBER}"),
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
                    Query(f"sum by (group, instance) ({rate('predictions_total', SERVER)})", f"published, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({rate('unpredicted_entities_total')})", f"no budget, {BY_MEMBER}"),
                    Query(f"sum by (group, instance) ({rate('expired_predictions_total', SERVER)})", f"expired, {BY_MEMBER}"),
                ),
            ),
            Panel(
                "Messages that came again",
                "Messages that came again or too late, which changes nothing.",
                "ops",
                (Query(f"sum by (group, instance) ({rate('repeated_messages_total')})", BY_MEMBER),),
            ),
        ),
        worker_panels(),
    ),
)
