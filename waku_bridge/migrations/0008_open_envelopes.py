import django.db.models.deletion
from django.db import migrations, models

import kit.db.fields
from kit.db.operations import SplitOpenRows

BOTH = "hash, pubsub_topic, content_topic, timestamp_ns, payload, state, source, path, received_at"
TYPES = [
    (15, "contact code"),
    (16, "registration"),
    (17, "registration response"),
    (18, "query"),
    (19, "query response"),
    (20, "request"),
    (21, "response"),
]
STATES = [
    ("received", "Received"),
    ("postponed", "Postponed"),
    ("pending_key", "Pending key"),
    ("processed", "Processed"),
    ("dropped", "Dropped"),
    ("failed", "Failed"),
]
PATHS = [("live", "Live"), ("store", "Store"), ("backfill", "Backfill")]
COLUMNS = [
    ("hash", kit.db.fields.BytesField(primary_key=True, serialize=False)),
    ("pubsub_topic", models.TextField()),
    ("content_topic", models.TextField()),
    ("timestamp_ns", models.BigIntegerField()),
    ("payload", kit.db.fields.BytesField(null=True)),
    ("state", models.TextField(choices=STATES, default="received")),
    ("source", models.TextField()),
    ("path", models.TextField(choices=PATHS, db_default="live")),
    ("received_at", models.DateTimeField()),
]
FAULT = models.ForeignKey(
    db_constraint=False,
    db_index=False,
    null=True,
    on_delete=django.db.models.deletion.DO_NOTHING,
    related_name="+",
    to="waku_bridge.envelopefault",
)
ENDED = [
    ("reason", models.TextField(blank=True)),
    ("message_type", models.PositiveSmallIntegerField(choices=TYPES, null=True)),
    ("message_id", kit.db.fields.BytesField(null=True)),
    ("processed_at", models.DateTimeField(null=True)),
    ("ended_on", models.DateField()),
    ("fault", FAULT),
]
OF_OPEN = [
    models.Index(condition=models.Q(state="received"), fields=["received_at", "timestamp_ns"], name="envelope_waiting"),
    models.Index(condition=models.Q(state="pending_key"), fields=["received_at"], name="envelope_pending_key"),
    models.Index(
        condition=models.Q(state="postponed"), fields=["received_at", "timestamp_ns"], name="envelope_postponed"
    ),
]
OF_ENDED = [
    models.Index(
        condition=models.Q(state__in=["dropped", "failed"]),
        fields=["state", "received_at"],
        name="envelope_not_processed",
    ),
    models.Index(condition=models.Q(state="failed"), fields=["fault", "received_at"], name="envelope_fault"),
    models.Index(
        condition=models.Q(message_type__in=[15, 16, 17, 18, 19, 21]),
        fields=["message_type", "received_at"],
        name="envelope_type",
    ),
    models.Index(
        condition=models.Q(("reason", ""), _negated=True), fields=["reason", "received_at"], name="envelope_reason"
    ),
    models.Index(
        condition=models.Q(("path", "live"), _negated=True), fields=["path", "received_at"], name="envelope_path"
    ),
]


class Migration(migrations.Migration):
    """Give envelopes that wait a table of their own. No row is copied, and none that waits is lost.

    A bridge of the release before goes on storing envelopes, through the view. The next release removes that trigger.
    """

    dependencies = [("waku_bridge", "0007_open_replies")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint("inboundenvelope", "envelope_ended"),
                *(migrations.RemoveIndex("inboundenvelope", index.name) for index in OF_OPEN + OF_ENDED),
                migrations.AlterModelTable("inboundenvelope", "waku_bridge_inboundenvelope"),
                migrations.AlterModelOptions(
                    "inboundenvelope",
                    {
                        "managed": False,
                        "verbose_name": "envelope",
                        "permissions": [("operate_inboundenvelope", "Can process failed envelopes again, and drop them")],
                    },
                ),
                migrations.CreateModel("OpenEnvelope", COLUMNS, {"default_permissions": ()}),
                migrations.CreateModel(
                    "EndedEnvelope",
                    COLUMNS + ENDED,
                    {
                        "default_permissions": (),
                        "indexes": [models.Index(fields=["received_at"], name="envelope_received"), *OF_ENDED],
                    },
                ),
            ],
            database_operations=[
                SplitOpenRows(
                    "waku_bridge_inboundenvelope", "waku_bridge_openenvelope", "waku_bridge_endedenvelope", key="hash"
                ),
                migrations.RunSQL(f"""
                    ALTER TABLE waku_bridge_openenvelope DROP COLUMN reason, DROP COLUMN fault_id,
                        DROP COLUMN message_type, DROP COLUMN message_id, DROP COLUMN processed_at;
                    ALTER TABLE waku_bridge_endedenvelope ALTER ended_on DROP DEFAULT, DROP CONSTRAINT envelope_ended;
                    DROP INDEX {", ".join(index.name for index in OF_OPEN)};
                    CREATE VIEW waku_bridge_inboundenvelope AS
                        SELECT {BOTH}, '' AS reason, NULL::bigint AS fault_id, NULL::smallint AS message_type,
                            NULL::bytea AS message_id, NULL::timestamptz AS processed_at,
                            date '9999-12-31' AS ended_on
                        FROM waku_bridge_openenvelope
                        UNION ALL SELECT {BOTH}, reason, fault_id, message_type, message_id, processed_at, ended_on
                        FROM waku_bridge_endedenvelope;
                    CREATE FUNCTION waku_bridge_store() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                        INSERT INTO waku_bridge_openenvelope ({BOTH})
                        VALUES (NEW.{BOTH.replace(", ", ", NEW.")});
                        RETURN NEW;
                    END $$;
                    CREATE TRIGGER store INSTEAD OF INSERT ON waku_bridge_inboundenvelope
                        FOR EACH ROW EXECUTE FUNCTION waku_bridge_store();
                    CREATE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON waku_bridge_inboundenvelope
                        FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
                """),
            ],
        ),
        *(migrations.AddIndex("openenvelope", index) for index in OF_OPEN),
        migrations.AddIndex("openenvelope", models.Index(fields=["received_at"], name="open_envelope_received")),
        migrations.AddConstraint(
            "openenvelope",
            models.CheckConstraint(
                condition=models.Q(state__in=["received", "postponed", "pending_key"]), name="open_envelope_state"
            ),
        ),
    ]
