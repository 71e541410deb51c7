"""Mail of a night's summary to the recipients in REPORT_RECIPIENTS."""

from datetime import date, datetime

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string

from pushserver.console.reports.sections import sections
from spark_reports.models import PublishedDay
from spark_reports.nights.summary import summarise


def send_owed(*, now: datetime) -> None:
    """Mail each night that is owed, the oldest first. The rest stays owed after an error.

    A row is locked while its mail is sent, so that no two workers send it. Raises SMTPException and OSError.
    """
    owed = PublishedDay.objects.filter(mailed_at=None).select_for_update(skip_locked=True).order_by("day")
    is_left = bool(settings.REPORT_RECIPIENTS)
    while is_left:
        with transaction.atomic():
            is_left = (published := owed.first()) is not None
            if published:
                send_summary(published.day)
                PublishedDay.objects.filter(day=published.day).update(mailed_at=now)


def send_summary(day: date) -> None:
    """Send the summary as text and as HTML, which loads no external resources.

    Raises SMTPException and OSError.
    """
    night = summarise(day)
    context = {"night": night, "sections": sections(night)}
    message = EmailMultiAlternatives(
        subject=f"Push server, {day}: {night.verdict}",
        body=render_to_string("console/reports/mail.txt", context),
        to=settings.REPORT_RECIPIENTS,
    )
    message.attach_alternative(render_to_string("console/reports/mail.html", context), "text/html")
    message.send()
