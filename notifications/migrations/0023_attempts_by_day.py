import django.db.models.deletion
from django.db import migrations, models

from kit.db.partitions import PartitionByDay
from notifications.retention import ATTEMPTS


class Migration(migrations.Migration):
    dependencies = [("notifications", "0022_by_route")]

    operations = [
        migrations.RemoveConstraint(model_name="attempt", name="one_attempt_per_number"),
        migrations.AlterField(
            model_name="attempt",
            name="notification",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="attempts",
                to="notifications.notification",
            ),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(fields=["notification", "number"], name="attempt_of_notification"),
        ),
        PartitionByDay(ATTEMPTS),
    ]
