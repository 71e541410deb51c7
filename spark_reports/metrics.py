"""The metrics of this app. `waku_bridge/metrics.py` explains the rules for them."""

from kit.metrics.kinds import StoredGauge

NEWEST_DAY_TIMESTAMP_SECONDS = StoredGauge(
    "pushserver_reports_newest_day_timestamp_seconds",
    "Begin of the newest day that has reports, in Unix time; nothing before the first night. "
    "When it moves: it grows by a day each night; when it does not, the console says why under Reports, Runs.",
    sql="SELECT extract(epoch FROM day) FROM spark_reports_publishedday ORDER BY day DESC LIMIT 1",
)
