from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0011_canary_started_at")]
    operations = [
        migrations.RemoveIndex("endedreply", "reply_type"),
        migrations.RemoveIndex("deadletter", "dead_letter_reason"),
    ]
