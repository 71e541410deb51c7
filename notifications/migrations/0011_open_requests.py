from django.db import migrations, models

import kit.db.fields
from kit.db.operations import SplitOpenRows

BOTH = "id, bridge, request_key, source_key, message_id, decided, sender_digest, received_at, reply_due_at"
COLUMNS = [
    ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
    ("bridge", models.TextField()),
    ("request_key", kit.db.fields.BytesField()),
    ("source_key", kit.db.fields.BytesField()),
    ("message_id", kit.db.fields.BytesField()),
    ("decided", kit.db.fields.BytesField(null=True)),
    ("sender_digest", kit.db.fields.BytesField()),
    ("received_at", models.DateTimeField()),
    ("reply_due_at", models.DateTimeField()),
]
OPEN = [
    ("reply_address", kit.db.fields.BytesField(null=True)),
    ("decided_names", kit.db.fields.BytesField(null=True)),
]
ENDED = [("answered_at", models.DateTimeField(null=True)), ("ended_on", models.DateField())]


class Migration(migrations.Migration):
    """Give requests that wait a table of their own. No row is copied, and none that waits is lost.

    A process of the release before cannot write the view, and waits until it is replaced, as if a table were missing.
    """

    dependencies = [("notifications", "0010_refused_hour")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint("notificationrequest", "request_under_way"),
                migrations.RemoveIndex("notificationrequest", "request_waiting"),
                migrations.RemoveIndex("notificationrequest", "request_key"),
                migrations.RemoveIndex("notificationrequest", "request_message"),
                migrations.AlterModelTable("notificationrequest", "notifications_notificationrequest"),
                migrations.AlterModelOptions("notificationrequest", {"managed": False, "verbose_name": "request"}),
                migrations.CreateModel("OpenRequest", COLUMNS + OPEN, {"default_permissions": ()}),
                migrations.CreateModel(
                    "AnsweredRequest",
                    COLUMNS + ENDED,
                    {
                        "default_permissions": (),
                        "indexes": [
                            models.Index(fields=["received_at"], name="request_received"),
                            models.Index(fields=["request_key"], name="request_key"),
                            models.Index(fields=["message_id"], name="request_message"),
                        ],
                    },
                ),
            ],
            database_operations=[
                SplitOpenRows(
                    "notifications_notificationrequest", "notifications_openrequest", "notifications_answeredrequest"
                ),
                migrations.RunSQL(f"""
                    ALTER TABLE notifications_openrequest DROP COLUMN state, DROP COLUMN answered_at;
                    ALTER TABLE notifications_answeredrequest ALTER ended_on DROP DEFAULT,
                        DROP COLUMN state, DROP COLUMN reply_address, DROP COLUMN decided_names;
                    CREATE VIEW notifications_notificationrequest AS
                        SELECT {BOTH}, 'waiting' AS state, reply_address, decided_names,
                            NULL::timestamptz AS answered_at, date '9999-12-31' AS ended_on
                        FROM notifications_openrequest
                        UNION ALL SELECT {BOTH}, 'answered', NULL::bytea, NULL::bytea, answered_at, ended_on
                        FROM notifications_answeredrequest;
                    CREATE FUNCTION notifications_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                        RAISE undefined_table USING MESSAGE = 'open rows have a table of their own';
                    END $$;
                    CREATE TRIGGER refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON notifications_notificationrequest
                        FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
                """),
            ],
        ),
        migrations.AddIndex("openrequest", models.Index(fields=["reply_due_at"], name="open_request_due")),
        migrations.AddIndex("openrequest", models.Index(fields=["request_key"], name="open_request_key")),
    ]
