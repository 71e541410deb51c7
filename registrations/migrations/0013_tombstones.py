from django.db import migrations, models

from kit.db.concurrently import AddIndexAnew


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("registrations", "0012_delivered_digest"),
    ]

    operations = [
        AddIndexAnew(
            model_name="registration",
            index=models.Index(
                condition=models.Q(("state", "unregistered")), fields=["id"], name="registration_tombstone"
            ),
        ),
    ]
