from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0002_reply_is_discarded")]
    operations = [
        migrations.AddField("outboundreply", "needs_confirmation", models.BooleanField(db_default=True, default=True)),
    ]
