"""Mail of a night's summary to the recipients in REPORT_RECIPIENTS."""

from datetime import datetime, timedelta

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string

from kit.db.base import write
from pushserver.console.reports.panels import night_of
from spark_reports.models import PublishedDay

# Older nights are not owed any more.
OWED = timedelta(days=7)
# A mail server may answer each command as late as EMAIL_TIMEOUT says. If PostgreSQL ended the transaction meanwhile,
# the mail would be sent every few minutes.
LONGEST_MAIL = "10min"


def send_owed(*, now: datetime) -> None:
    """Mail each night that is owed, the oldest first. The rest stays owed after an error.

    A row is locked while its mail is sent, so that no two workers send it. A worker that is killed between the two
    leaves it owed, so it may come twice. Raises SMTPException and OSError.
    """
    owed = PublishedDay.objects.filter(mailed_at=None, day__gt=now - OWED).order_by("day")
    is_left = bool(settings.REPORT_RECIPIENTS)
    while is_left:
        with transaction.atomic():
            write(f"SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_MAIL}'")
            published = owed.select_for_update(skip_locked=True).first()
            is_left = published is not None
            if published:
                message_of(published).send()
                PublishedDay.objects.filter(day=published.day).update(mailed_at=now)


def message_of(published: PublishedDay) -> EmailMultiAlternatives:
    """Return the summary of a night as text and as HTML, which loads no external resources."""
    context = night_of(published.day)
    subject = f"Push server, {published.day}: {context['headline']}"
    text = render_to_string("console/reports/mail.txt", context)
    message = EmailMultiAlternatives(subject, text, to=settings.REPORT_RECIPIENTS)
    message.attach_alternative(render_to_string("console/reports/mail.html", context), "text/html")
    return message
