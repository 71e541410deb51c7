from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("xmpp_bridge", "0003_device_by_state")]
    operations = [migrations.AlterField("canaryrun", "started_at", models.DateTimeField())]
