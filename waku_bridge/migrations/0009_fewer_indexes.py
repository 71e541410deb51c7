from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0008_open_envelopes")]
    operations = [
        migrations.RemoveIndex("endedenvelope", "envelope_path"),
        migrations.RemoveIndex("endedreply", "reply_abandoned"),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveIndex("endedreply", "reply_created")],
            database_operations=[migrations.RunSQL("DROP INDEX waku_bridge_outboundreply_created_at_de1c01bc")],
        ),
    ]
