from django.db import migrations


class Migration(migrations.Migration):
    """Replies become work rows: the partition of those under way is the work table, with an index of its own."""

    dependencies = [("waku_bridge", "0004_without_windows")]

    operations = [
        migrations.RemoveIndex("outboundreply", "reply_pending"),
        migrations.RemoveIndex("outboundreply", "reply_published"),
        migrations.RenameField("outboundreply", "next_attempt_at", "due_at"),
        migrations.RunSQL(
            "CREATE INDEX reply_due ON waku_bridge_outboundreply_under_way (due_at)", migrations.RunSQL.noop
        ),
    ]
