from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    """Envelopes that wait have a due time, and one index by it for all states. What waits now is due now."""

    dependencies = [("waku_bridge", "0009_fewer_indexes")]
    operations = [
        migrations.AddField("openenvelope", "due_at", models.DateTimeField(db_default=Now())),
        migrations.AddField("openenvelope", "attempt_count", models.PositiveSmallIntegerField(db_default=0, default=0)),
        migrations.AddIndex("openenvelope", models.Index(fields=["state", "due_at", "timestamp_ns"], name="envelope_due")),
        migrations.RemoveIndex("openenvelope", "envelope_waiting"),
        migrations.RemoveIndex("openenvelope", "envelope_postponed"),
        migrations.RemoveIndex("openenvelope", "envelope_pending_key"),
    ]
