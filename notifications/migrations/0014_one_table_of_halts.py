from django.db import migrations, models

COPY = """
    INSERT INTO notifications_halt (kind, gateway, token_type, app_topic, since, reason, by, ended_at, ended_by)
    SELECT kind, gateway, token_type, app_topic, since, reason, by, ended_at, ended_by FROM notifications_endedhalt
"""
SUBJECT = ["kind", "gateway", "token_type", "app_topic"]


class Migration(migrations.Migration):
    """Keep the halts that ended in the table of those in force, of which there is one for each subject."""

    dependencies = [("notifications", "0013_attempts_with_results")]
    operations = [
        migrations.AddField("halt", "ended_at", models.DateTimeField(db_index=True, null=True)),
        migrations.AddField("halt", "ended_by", models.TextField(blank=True, default="", db_default="")),
        migrations.RemoveConstraint("halt", "one_halt_each"),
        migrations.AddConstraint(
            "halt",
            models.UniqueConstraint(
                fields=SUBJECT, condition=models.Q(ended_at=None), nulls_distinct=False, name="one_halt_each"
            ),
        ),
        migrations.RunSQL(COPY, migrations.RunSQL.noop),
        migrations.DeleteModel("EndedHalt"),
    ]
