from django.db import migrations, models

from kit.db.concurrently import AddIndexAnew


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("waku_bridge", "0012_envelope_faults"),
    ]

    operations = [
        AddIndexAnew(
            model_name="inboundenvelope",
            index=models.Index(
                condition=models.Q(("state", "failed")), fields=["fault", "received_at"], name="envelope_fault"
            ),
        ),
    ]
