from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0018_failure_count")]
    operations = [migrations.AlterField("halt", "ended_at", models.DateTimeField(null=True))]
