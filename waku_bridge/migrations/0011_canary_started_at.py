from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0010_envelopes_due_at")]
    operations = [migrations.AlterField("canaryrun", "started_at", models.DateTimeField())]
