import django.db.models.deletion
from django.db import migrations, models

import kit.db.fields
from kit.db.operations import PartitionByDay
from notifications.retention import DECIDED


class Migration(migrations.Migration):
    dependencies = [("notifications", "0004_times_of_attempts")]
    operations = [
        migrations.CreateModel(
            name="DecidedAtOnce",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("recipient", kit.db.fields.BytesField()),
                ("position", models.SmallIntegerField()),
                ("decided_on", models.DateField()),
                (
                    "request",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="notifications.notificationrequest",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["recipient", "decided_on", "request"], name="decided_recipient")],
            },
        ),
        PartitionByDay(DECIDED),
    ]
