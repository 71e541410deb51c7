from django.db import migrations, models


class Migration(migrations.Migration):
    """The table of windows stays for processes of the release before, until they are replaced. The next release removes it."""

    dependencies = [("waku_bridge", "0003_reply_needs_confirmation")]
    operations = [
        migrations.AlterField(
            "storewindow",
            "watermark",
            models.ForeignKey("waku_bridge.storewatermark", models.CASCADE, "windows", db_constraint=False),
        ),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("storewindow")]),
    ]
