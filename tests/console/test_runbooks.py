"""Runbooks inside of the console, reached from the indicators of the dashboard."""

import pytest
from django.test import Client
from django.urls import reverse

from pushserver.console.documentation import contents
from pushserver.tests.test_runbooks import PAGES
from tests.console.test_dashboard import make_old_envelope

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("alive")]


def test_each_of_the_worst_indicators_leads_to_its_runbook(admin_client: Client) -> None:
    make_old_envelope()
    address = reverse("documentation", args=["runbooks/PushServerInboxOld"])
    board = admin_client.get(reverse("admin:index")).content.decode()
    assert f'<a id="runbook-inbox" href="{address}">Step by step</a>' in board
    page = admin_client.get(address)
    assert page.status_code == 200
    assert "How to be sure" in page.content.decode()


def test_the_documentation_lists_every_runbook() -> None:
    [pages] = [pages for part, pages in contents() if part == "Runbooks"]
    assert {page.name for page in pages} == {f"runbooks/{name}" for name in PAGES}
