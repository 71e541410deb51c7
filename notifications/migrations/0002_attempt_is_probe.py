from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0001_initial")]
    operations = [
        migrations.AddField(
            model_name="attempt",
            name="is_probe",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
