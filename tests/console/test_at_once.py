"""Operations that two operators confirm at the same moment: each is done once and logged once, and the second operator
gets a warning.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone

from pushserver.api import tokens
from pushserver.models import ApiToken
from spark_reports.models import RequestedRun
from spark_reports.nights.closing import last_closed_day
from tests.console.test_operations import CASES, WHY, Case, confirmed, staff

pytestmark = pytest.mark.django_db(transaction=True)
OPERATORS = 2


def make_token() -> ApiToken:
    return tokens.issue("test", ["status"], by="ann", now=timezone.now())[0]


OTHERS = [
    Case(
        "revoke",
        make_token,
        lambda _row: "/admin/pushserver/apitoken/operate/revoke/",
        lambda: ApiToken.objects.get().revoked_at is not None,
    ),
    Case(
        "make reports",
        lambda: None,
        lambda _row: f"/admin/reports/run/?from={last_closed_day(timezone.now())}",
        lambda: RequestedRun.objects.count() == 1,
    ),
]


@pytest.mark.parametrize("case", [*CASES, *OTHERS], ids=lambda case: case.name)
def test_an_operation_that_two_operators_confirm_at_once_is_done_once(case: Case) -> None:
    row = case.make()
    sent = confirmed(case, row)
    clients = [staff("admin") for _ in range(OPERATORS)]

    levels = post_at_once(clients, case.url(row), sent)

    assert case.is_done()
    assert sorted(levels) == ["success", "warning"]
    assert LogEntry.objects.count() == 1
    assert WHY in LogEntry.objects.get().change_message


def post_at_once(clients: list[Client], url: str, sent: dict[str, Any]) -> list[str]:
    """Post at once over separate connections. Return the levels of the messages on the pages that come next."""
    start = Barrier(len(clients))

    def post(client: Client) -> str:
        start.wait()
        try:
            return str(client.post(url, sent)["Location"])
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as pool:
        pages = list(pool.map(post, clients))
    shown = [client.get(page, follow=True) for client, page in zip(clients, pages, strict=True)]
    return [message.level_tag for page in shown for message in page.context["messages"]]
