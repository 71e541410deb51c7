"""Lost replies are searched from memory now. A row that is left is covered by the first pass of the next bridge."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0008_lost_replies")]

    operations = [
        migrations.RunSQL("DELETE FROM waku_bridge_storewindow WHERE reason = 'lost_reply'", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="storewindow",
            name="reason",
            field=models.TextField(choices=[("outage", "Outage"), ("late", "Late")]),
        ),
    ]
