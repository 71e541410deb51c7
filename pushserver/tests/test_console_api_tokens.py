"""A token of the API is shown once, and is nowhere else."""

import re

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client

from pushserver.models import ApiToken

ADD = "/admin/pushserver/apitoken/add/"
FORM = {"name": "status page", "scopes": ["status"], "expires_at_0": "", "expires_at_1": ""}


@pytest.fixture
def shown(admin_client: Client) -> str:
    """The text of a token from the console."""
    response = admin_client.post(ADD, FORM)
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    (text,) = re.findall(r"psk_[\w-]{43}", response.content.decode())
    return text


@pytest.mark.django_db
def test_the_answer_shows_it_and_no_cookie_or_row_holds_it(admin_client: Client, shown: str) -> None:
    assert shown not in str(admin_client.cookies)
    assert [session.session_key for session in Session.objects.all() if shown in str(session.get_decoded())] == []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            sql = f'SELECT count(*) FROM "{table}" AS row WHERE row::text LIKE %s'
            cursor.execute(sql, [f"%{shown}%"])
            assert cursor.fetchone() == (0,), table


@pytest.mark.django_db
def test_it_is_not_shown_again(admin_client: Client, shown: str) -> None:
    again = admin_client.post(ADD, FORM, follow=True)  # the page is loaded again
    assert "There is a token of this name already" in again.content.decode()
    assert shown not in again.content.decode()
    assert ApiToken.objects.count() == 1


@pytest.mark.django_db
def test_the_message_after_an_operation_is_in_no_cookie(admin_client: Client, shown: str) -> None:
    admin_client.post(ADD, FORM)
    assert "messages" not in admin_client.cookies
