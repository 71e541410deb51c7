from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("registrations", "0001_initial")]
    operations = [
        migrations.AddField("registration", "is_forgettable", models.BooleanField(default=False, db_default=False)),
    ]
