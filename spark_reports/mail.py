"""Mail of a night's summary to the recipients in REPORT_RECIPIENTS."""

from datetime import date

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string

from spark_reports.console.sections import sections
from spark_reports.nights.summary import summarise


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
