from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0003_channels")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="late_code",
            field=models.TextField(blank=True, db_default="", default=""),
        ),
    ]
