"""Export of the facts of closed days from PostgreSQL into the lake: pseudonymous, by table, in bounded memory.

See docs/reports.md.
"""

from spark_reports.export.days import ExportError, closed_days, export_day, oldest_day_of_lake
from spark_reports.nights.closing import last_closed_day

__all__ = ["ExportError", "closed_days", "export_day", "last_closed_day", "oldest_day_of_lake"]
