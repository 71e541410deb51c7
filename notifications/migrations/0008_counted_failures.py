from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0007_limits_seen")]
    operations = [
        migrations.AddField("attempt", "is_counted", models.BooleanField(default=False, db_default=False)),
        migrations.AddField("queue", "delivered_at", models.DateTimeField(null=True)),
    ]
