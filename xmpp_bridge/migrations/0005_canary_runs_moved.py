from django.db import migrations

# As in `waku_bridge`.
MOVE = [
    "LOCK TABLE xmpp_bridge_canaryrun IN ACCESS EXCLUSIVE MODE",
    """
        INSERT INTO pushserver_canaryrun (network, state, started_at, finished_at, broken_link, cause, detail, times,
            work_ms, is_dry_run, pseudonym, device)
        SELECT 'xmpp', state, started_at, finished_at, broken_link, cause, detail, jsonb_strip_nulls(jsonb_build_object(
            'register', register_ms, 'push', push_ms, 'gateway', gateway_ms, 'unregister', unregister_ms
        )), work_ms, true, pseudonym, device FROM xmpp_bridge_canaryrun ORDER BY id
    """,
]

# Exports of the release before, and whoever recomputes reports, ask here whose rows are a canary's.
VIEW = """
    CREATE VIEW xmpp_bridge_canaryrun AS SELECT id, pseudonym, device FROM pushserver_canaryrun WHERE network = 'xmpp'
"""


class Migration(migrations.Migration):
    dependencies = [("xmpp_bridge", "0004_canary_started_at"), ("pushserver", "0009_canary_runs")]
    operations = [
        migrations.RunSQL(MOVE, migrations.RunSQL.noop),
        migrations.DeleteModel("CanaryRun"),
        migrations.RunSQL(VIEW, "DROP VIEW IF EXISTS xmpp_bridge_canaryrun"),
    ]
