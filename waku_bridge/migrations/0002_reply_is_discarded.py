from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0001_initial")]
    operations = [
        migrations.AddField("outboundreply", "is_discarded", models.BooleanField(db_default=False, default=False)),
    ]
