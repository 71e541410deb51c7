from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("xmpp_bridge", "0003_canary"),
    ]

    operations = [
        migrations.AddField("canaryrun", "work_ms", models.PositiveIntegerField(null=True)),
    ]
