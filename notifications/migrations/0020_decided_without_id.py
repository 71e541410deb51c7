import django.db.models.deletion
from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    """Remove the id of pushes that were decided at once, and its index. Nothing refers to them."""

    dependencies = [("notifications", "0019_halt_ended_at")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.DeleteModel("DecidedAtOnce"),
                migrations.CreateModel(
                    "DecidedAtOnce",
                    [
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                *("recipient", "decided_on", "request", "position"),
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
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
                    {
                        "indexes": [
                            models.Index(fields=["recipient", "decided_on", "request"], name="decided_recipient")
                        ]
                    },
                ),
            ],
            database_operations=[migrations.RunSQL("ALTER TABLE notifications_decidedatonce DROP COLUMN id")],
        ),
    ]
