"""A request belongs to a front door, and rows are the queue: nothing notes when a row was put into another one.

The tables that every message changes keep room in their pages, so that a change stays where the row is.
"""

from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    dependencies = [("notifications", "0007_console_filters")]

    operations = [
        migrations.RemoveField("notification", "enqueued_at"),
        migrations.RenameField("notificationrequest", "amm_message_id", "request_key"),
        migrations.RenameField("notificationrequest", "envelope_hash", "source_key"),
        migrations.RenameField("notificationrequest", "reply_to", "reply_address"),
        migrations.AddField(
            "notificationrequest", "front_door", models.TextField(default="waku"), preserve_default=False
        ),
        migrations.AlterField("notificationrequest", "request_key", kit.db.fields.BytesField()),
        migrations.AddConstraint(
            "notificationrequest",
            models.UniqueConstraint(fields=["request_key", "front_door"], name="one_request_per_key"),
        ),
        migrations.RunSQL(
            """
            ALTER TABLE notifications_notificationrequest SET (fillfactor = 80);
            ALTER TABLE notifications_notification SET (fillfactor = 80);
            ALTER TABLE notifications_attempt SET (fillfactor = 80);
            """,
            migrations.RunSQL.noop,
        ),
    ]
