import django.db.models.deletion
from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    """Find pushes that were decided at once by their primary key. Their id, to which nothing refers, goes."""

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
                ),
            ],
            database_operations=[
                migrations.RunSQL("""
                    DROP INDEX decided_recipient;
                    ALTER TABLE notifications_decidedatonce DROP COLUMN id,
                        ADD PRIMARY KEY (recipient, decided_on, request_id, position);
                """),
            ],
        ),
    ]
