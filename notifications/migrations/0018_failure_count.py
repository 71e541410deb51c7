from django.db import migrations, models


class Migration(migrations.Migration):
    """Count the failures of an open push in its row. Those from before the migration do not count."""

    dependencies = [("notifications", "0017_due_times")]
    operations = [
        migrations.AddField("opennotification", "failure_count", models.PositiveSmallIntegerField(default=0, db_default=0))
    ]
