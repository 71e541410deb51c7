from django.db import migrations

# A bridge of the release before moves a watermark and notes its windows in one statement. That statement fails once the
# table is gone, so its watermark stays where it is.
FOLD = [
    "LOCK TABLE waku_bridge_storewindow IN ACCESS EXCLUSIVE MODE",
    """
        UPDATE waku_bridge_storewatermark AS mark SET watermark_at = least(mark.watermark_at, noted.start_at)
        FROM (
            SELECT watermark_id, min(start_at) AS start_at FROM waku_bridge_storewindow GROUP BY watermark_id
        ) AS noted WHERE noted.watermark_id = mark.id
    """,
    "DROP TABLE waku_bridge_storewindow",
]


class Migration(migrations.Migration):
    """What was to be read once more is read from the watermark, which goes back to where the first window began."""

    dependencies = [("waku_bridge", "0005_reply_due_at")]
    operations = [migrations.RunSQL(FOLD)]
