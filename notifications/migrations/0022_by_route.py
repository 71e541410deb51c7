import django.db.models.deletion
from django.db import migrations, models

from kit.db.concurrently import AddIndexAnew


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("notifications", "0021_all_attempts"), ("registrations", "0013_tombstones")]

    operations = [
        migrations.AlterField(
            model_name="notification",
            name="route",
            field=models.ForeignKey(
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                to="registrations.route",
            ),
        ),
        migrations.RemoveIndex(model_name="notification", name="notification_for_route"),
        migrations.RemoveIndex(model_name="notification", name="notification_by_route"),
        AddIndexAnew(
            model_name="notification",
            index=models.Index(
                condition=models.Q(("state__in", ["pending", "retrying", "ambiguous"])),
                fields=["route"],
                name="notification_by_route",
            ),
        ),
    ]
