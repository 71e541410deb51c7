"""The SQL of reading stores, by name. It runs on the connection of the bridge: see `reading.intake.Session`."""

LOAD_MARKS = """
    INSERT INTO waku_bridge_storewatermark AS mark (node, pubsub_topic, watermark_at, late_searched_at)
    VALUES (%b, %b, %b, %b)
    ON CONFLICT (node, pubsub_topic) DO UPDATE SET watermark_at = mark.watermark_at
    RETURNING watermark_at, late_searched_at
"""
SAVE_WATERMARK = "UPDATE waku_bridge_storewatermark SET watermark_at = %b WHERE node = %b AND pubsub_topic = %b"
SAVE_LATE_MARK = "UPDATE waku_bridge_storewatermark SET late_searched_at = %b WHERE node = %b AND pubsub_topic = %b"
