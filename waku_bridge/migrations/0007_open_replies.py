from django.db import migrations, models

import kit.db.fields
from kit.db.operations import SplitOpenRows

BOTH = """id, envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns, message_hash, state,
    attempt_count, repeat_count, created_at, published_at, node"""
TYPES = [
    (15, "contact code"),
    (16, "registration"),
    (17, "registration response"),
    (18, "query"),
    (19, "query response"),
    (20, "request"),
    (21, "response"),
]
STATES = [(each, each.capitalize()) for each in ("pending", "published", "confirmed", "unconfirmed", "abandoned")]
COLUMNS = [
    ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
    ("envelope_hash", kit.db.fields.BytesField()),
    ("part", models.PositiveSmallIntegerField(default=0)),
    ("message_type", models.PositiveSmallIntegerField(choices=TYPES)),
    ("pubsub_topic", models.TextField()),
    ("content_topic", models.TextField()),
    ("timestamp_ns", models.BigIntegerField()),
    ("message_hash", kit.db.fields.BytesField(null=True)),
    ("state", models.TextField(choices=STATES, default="pending")),
    ("attempt_count", models.PositiveSmallIntegerField(default=0)),
    ("repeat_count", models.PositiveSmallIntegerField(default=0)),
    ("created_at", models.DateTimeField()),
    ("published_at", models.DateTimeField(null=True)),
    ("node", models.TextField(blank=True)),
]
OPEN = [
    ("payload", kit.db.fields.BytesField(null=True)),
    ("due_at", models.DateTimeField(null=True)),
    ("is_discarded", models.BooleanField(db_default=False, default=False)),
    ("needs_confirmation", models.BooleanField(db_default=True, default=True)),
]
ENDED = [("confirmed_at", models.DateTimeField(null=True)), ("ended_on", models.DateField())]
LOST = models.Q(("state", "abandoned"), models.Q(("repeat_count__gt", 0), ("state", "unconfirmed")), _connector="OR")
INDEXES = [
    models.Index(condition=models.Q(state__in=["unconfirmed", "abandoned"]), fields=["id"], name="reply_given_up"),
    models.Index(condition=models.Q(state="abandoned"), fields=["id"], name="reply_abandoned"),
    models.Index(condition=LOST, fields=["created_at"], name="reply_lost"),
    models.Index(
        condition=models.Q(message_type__in=[15, 16, 17, 18, 19, 20]), fields=["message_type", "id"], name="reply_type"
    ),
]
ONE = models.UniqueConstraint(fields=("envelope_hash", "part", "ended_on"), name="one_reply_per_envelope")


class Migration(migrations.Migration):
    """Give open replies a table of their own. No row is copied, and none that is open is lost.

    A process of the release before cannot write the view, and waits until it is replaced, as if a table were missing.
    """

    dependencies = [("waku_bridge", "0006_windows_end"), ("notifications", "0011_open_requests")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint("outboundreply", "reply_ended"),
                migrations.RemoveConstraint("outboundreply", ONE.name),
                *(migrations.RemoveIndex("outboundreply", index.name) for index in INDEXES),
                migrations.AlterModelTable("outboundreply", "waku_bridge_outboundreply"),
                migrations.AlterModelOptions(
                    "outboundreply", {"managed": False, "verbose_name": "reply", "verbose_name_plural": "replies"}
                ),
                migrations.CreateModel("OpenReply", COLUMNS + OPEN, {"default_permissions": ()}),
                migrations.CreateModel(
                    "EndedReply",
                    COLUMNS + ENDED,
                    {
                        "default_permissions": (),
                        "constraints": [ONE],
                        "indexes": [models.Index(fields=["created_at"], name="reply_created"), *INDEXES],
                    },
                ),
            ],
            database_operations=[
                SplitOpenRows("waku_bridge_outboundreply", "waku_bridge_openreply", "waku_bridge_endedreply"),
                migrations.RunSQL(f"""
                    ALTER TABLE waku_bridge_openreply DROP COLUMN confirmed_at;
                    ALTER TABLE waku_bridge_endedreply ALTER ended_on DROP DEFAULT, DROP CONSTRAINT reply_ended,
                        DROP COLUMN payload, DROP COLUMN due_at, DROP COLUMN is_discarded,
                        DROP COLUMN needs_confirmation;
                    CREATE VIEW waku_bridge_outboundreply AS
                        SELECT {BOTH}, payload, due_at, is_discarded, needs_confirmation,
                            NULL::timestamptz AS confirmed_at, date '9999-12-31' AS ended_on
                        FROM waku_bridge_openreply
                        UNION ALL SELECT {BOTH}, NULL::bytea, NULL::timestamptz, FALSE, FALSE, confirmed_at, ended_on
                        FROM waku_bridge_endedreply;
                    CREATE TRIGGER refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON waku_bridge_outboundreply
                        FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
                """),
            ],
        ),
        migrations.AddIndex("openreply", models.Index(fields=["due_at"], name="open_reply_due")),
        migrations.AddConstraint(
            "openreply",
            models.CheckConstraint(condition=models.Q(state__in=["pending", "published"]), name="open_reply_state"),
        ),
        migrations.AddConstraint(
            "openreply", models.UniqueConstraint(fields=["envelope_hash", "part"], name="one_open_reply")
        ),
    ]
