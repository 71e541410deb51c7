from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0003_ended_halt")]
    # All may be null and have no check, so that PostgreSQL reads no row.
    operations = [
        migrations.AddField("attempt", "began_at", models.DateTimeField(null=True)),
        migrations.AddField("attempt", "ended_at", models.DateTimeField(null=True)),
        migrations.AddField("attempt", "waited_ms", models.IntegerField(null=True)),
        migrations.AddField("notification", "unsent_since", models.DateTimeField(null=True)),
    ]
