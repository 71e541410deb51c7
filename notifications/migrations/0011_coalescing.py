from django.db import migrations, models

STATES = [
    ("pending", "Pending"),
    ("in_flight", "In Flight"),
    ("retrying", "Retrying"),
    ("ambiguous", "Ambiguous"),
    ("delivered", "Delivered"),
    ("dead_token", "Dead Token"),
    ("undeliverable", "Undeliverable"),
    ("unconfirmed", "Unconfirmed"),
    ("expired", "Expired"),
    ("withdrawn", "Withdrawn"),
    ("coalesced", "Coalesced"),
    ("suppressed", "Suppressed"),
    ("duplicate", "Duplicate"),
    ("refused", "Refused"),
]
ENDED = [
    *("dead_token", "undeliverable", "unconfirmed", "expired"),
    *("withdrawn", "coalesced", "suppressed", "duplicate", "refused"),
]


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0010_decided"),
    ]

    operations = [
        migrations.AlterField(
            model_name="notification",
            name="state",
            field=models.TextField(choices=STATES),
        ),
        migrations.RemoveIndex(
            model_name="notification",
            name="notification_ended",
        ),
        migrations.AddIndex(
            model_name="notification",
            index=models.Index(
                fields=["state", "id"], condition=models.Q(state__in=ENDED), name="notification_ended"
            ),
        ),
        migrations.AddIndex(
            model_name="notification",
            index=models.Index(
                fields=["route"], condition=models.Q(state__in=["pending", "retrying"]), name="notification_by_route"
            ),
        ),
    ]
