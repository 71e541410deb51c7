from django.db import migrations, models

from kit.db.operations import AddIndexAnew


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("xmpp_bridge", "0001_initial")]
    operations = [
        AddIndexAnew(
            "device",
            models.Index(
                fields=["ended_at"],
                condition=~models.Q(state="active") & models.Q(announced_from__isnull=False),
                name="device_to_announce",
            ),
        ),
    ]
