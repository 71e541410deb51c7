"""What senders are told about their notifications, read from what is stored."""

from collections.abc import Iterable

from notifications.messages import Report, ReportError
from notifications.models import Notification

# The one table between what is stored and what goes over the wire.
REPORT_ERRORS = {
    Notification.Reports.SUCCESS: ReportError.NONE,
    Notification.Reports.WRONG_TOKEN: ReportError.WRONG_TOKEN,
    Notification.Reports.NOT_REGISTERED: ReportError.NOT_REGISTERED,
    Notification.Reports.INTERNAL_ERROR: ReportError.INTERNAL_ERROR,
}


def report_of(public_key_hash: bytes, installation_id: str, report: str | None) -> Report:
    """The report of a notification whose answer is fixed."""
    error = REPORT_ERRORS[Notification.Reports(report or "")]
    return Report(public_key_hash, installation_id, success=error is ReportError.NONE, error=error)


def load_reports(request_ids: Iterable[int]) -> dict[int, list[Report]]:
    """The fixed reports of each request, in its own order."""
    reports: dict[int, list[Report]] = {request_id: [] for request_id in request_ids}
    fixed = Notification.objects.filter(request__in=reports.keys(), report__isnull=False).order_by("position")
    rows = fixed.values_list("request", "public_key_hash", "installation_id", "report")
    for request_id, public_key_hash, installation_id, report in rows:
        reports[request_id].append(report_of(public_key_hash, installation_id, report))
    return reports
