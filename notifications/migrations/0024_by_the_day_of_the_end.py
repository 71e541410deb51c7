import datetime

import django.db.models.deletion
from django.db import migrations, models

import kit.db.fields
from kit.db.partitions import PartitionByDay
from notifications.retention import NOTIFICATIONS, REQUESTS

UNDER_WAY = datetime.date.max
ENDED_ON = """
    UPDATE notifications_notification SET ended_on = (coalesce(finished_at, created_at) AT TIME ZONE 'UTC')::date
        WHERE state NOT IN ('pending', 'in_flight', 'retrying', 'ambiguous');
    UPDATE notifications_notificationrequest SET ended_on = (coalesce(answered_at, received_at) AT TIME ZONE 'UTC')::date
        WHERE state <> 'waiting';
"""
DIGESTS = r"""
    INSERT INTO notifications_requestdigest (digest, received_at)
    SELECT substring(sha256(convert_to(front_door, 'UTF8') || '\x00' || request_key) FOR 16), received_at
    FROM notifications_notificationrequest WHERE length(request_key) <= 32
    ON CONFLICT DO NOTHING;
"""


class Migration(migrations.Migration):
    dependencies = [("notifications", "0023_attempts_by_day")]

    operations = [
        migrations.RemoveConstraint(model_name="notificationrequest", name="one_request_per_key"),
        migrations.AddIndex(
            model_name="notificationrequest", index=models.Index(fields=["request_key"], name="request_key")
        ),
        migrations.AlterField(
            model_name="notification",
            name="request",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="notifications",
                to="notifications.notificationrequest",
            ),
        ),
        migrations.AlterField(
            model_name="notification", name="dedup_key", field=kit.db.fields.BytesField(null=True)
        ),
        *(
            migrations.AddField(
                model_name=model, name="ended_on", field=models.DateField(default=UNDER_WAY, db_default=UNDER_WAY)
            )
            for model in ("notification", "notificationrequest")
        ),
        migrations.RunSQL(ENDED_ON + DIGESTS, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="notificationrequest",
            constraint=models.CheckConstraint(
                condition=~models.Q(state="waiting") | models.Q(ended_on=UNDER_WAY), name="request_under_way"
            ),
        ),
        migrations.AddConstraint(
            model_name="notification",
            constraint=models.CheckConstraint(
                condition=~models.Q(state__in=["pending", "in_flight", "retrying", "ambiguous"])
                | models.Q(ended_on=UNDER_WAY),
                name="notification_under_way",
            ),
        ),
        migrations.RemoveIndex(model_name="notification", name="notification_by_route"),
        migrations.AddIndex(
            model_name="notification",
            index=models.Index(
                condition=models.Q(route__gte=0, state__in=["pending", "retrying", "ambiguous"]),
                fields=["route"],
                name="notification_by_route",
            ),
        ),
        migrations.RemoveIndex(model_name="notification", name="notification_by_recipient"),
        migrations.AddIndex(
            model_name="notification",
            index=models.Index(
                condition=models.Q(public_key_hash__gt=b""),
                fields=["public_key_hash", "id"],
                name="notification_by_recipient",
            ),
        ),
        PartitionByDay(NOTIFICATIONS),
        PartitionByDay(REQUESTS),
        migrations.AddConstraint(
            model_name="notification",
            constraint=models.UniqueConstraint(
                condition=models.Q(dedup_key__isnull=False),
                fields=["dedup_key", "ended_on"],
                name="one_notification_under_way",
            ),
        ),
    ]
