"""The summary of a night as a mail, to those whom the settings name."""

from datetime import date

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string

from spark_reports.console.sections import sections
from spark_reports.summary import summarise


def send_summary(day: date) -> None:
    """As text and as HTML, with nothing to be fetched from anywhere. Raises SMTPException and OSError."""
    night = summarise(day)
    context = {"night": night, "sections": sections(night)}
    message = EmailMultiAlternatives(
        subject=f"Push server, {day}: {night.verdict}",
        body=render_to_string("console/reports/mail.txt", context),
        to=settings.REPORT_RECIPIENTS,
    )
    message.attach_alternative(render_to_string("console/reports/mail.html", context), "text/html")
    message.send()
