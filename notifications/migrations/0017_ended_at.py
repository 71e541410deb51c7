from django.db import migrations, models

from kit.db.concurrently import AddIndexAnew

ENDED = ["dead_token", "undeliverable", "unconfirmed", "expired", "withdrawn", "coalesced"]


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("notifications", "0016_attempt_error"),
    ]

    operations = [
        AddIndexAnew(
            model_name="notification",
            index=models.Index(
                condition=models.Q(("state__in", ENDED)),
                fields=["state", "finished_at"],
                name="notification_ended_at",
            ),
        ),
    ]
