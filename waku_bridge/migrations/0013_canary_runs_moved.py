from django.db import migrations

# Once the table is gone, a canary of the release before fails until its worker is replaced. A run under way is copied
# with its pseudonym, so that the next run removes its traces and reports leave them out.
MOVE = [
    "LOCK TABLE waku_bridge_canaryrun IN ACCESS EXCLUSIVE MODE",
    """
        INSERT INTO pushserver_canaryrun (network, state, started_at, finished_at, broken_link, cause, detail, times,
            work_ms, is_dry_run, pseudonym)
        SELECT 'waku', state, started_at, finished_at, broken_link, cause, detail, jsonb_strip_nulls(jsonb_build_object(
            'register', register_ms, 'register_answer', register_answer_ms, 'query', query_ms,
            'query_answer', query_answer_ms, 'request', request_ms, 'gateway', gateway_ms,
            'request_answer', request_answer_ms, 'unregister', unregister_ms, 'unregister_answer', unregister_answer_ms
        )), work_ms, is_dry_run, pseudonym FROM waku_bridge_canaryrun ORDER BY id
    """,
]

# Exports of the release before, and whoever recomputes reports, ask here whose rows are a canary's.
VIEW = """
    CREATE VIEW waku_bridge_canaryrun AS SELECT id, pseudonym FROM pushserver_canaryrun WHERE network = 'waku'
"""


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0012_still_fewer_indexes"), ("pushserver", "0009_canary_runs")]
    operations = [
        migrations.RunSQL(MOVE, migrations.RunSQL.noop),
        migrations.DeleteModel("CanaryRun"),
        migrations.RunSQL(VIEW, "DROP VIEW IF EXISTS waku_bridge_canaryrun"),
    ]
