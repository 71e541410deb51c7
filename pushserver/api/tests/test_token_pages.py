"""Tokens of the API in the console and on the command line: one is shown once, and is nowhere else."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from pushserver.models import ApiToken
from tests.rig.rows import make_staff

ADD = "/admin/pushserver/apitoken/add/"
TEXT = r"psk_[\w-]{43}"
FORM = {"name": "monitoring", "scopes": ["status"]}
pytestmark = pytest.mark.django_db


def test_an_admin_makes_a_token_sees_it_once_and_revokes_it(client: Client) -> None:
    client.force_login(make_staff("admin"))
    assert b'name="_save"' in client.get(ADD).content
    made = client.post(ADD, FORM)
    (text,) = re.findall(TEXT, made.content.decode())
    token = ApiToken.objects.get()
    call = {"authorization": f"Bearer {text}"}

    assert (token.created_by, token.scopes) == ("admin", ["status"])
    assert Client(headers=call).get("/api/v1/channels/").status_code == 200
    page = client.get(f"/admin/pushserver/apitoken/{token.pk}/change/").content.decode()
    assert text not in page
    # No cookie, session or row holds it.
    assert "no-store" in made["Cache-Control"]
    assert text not in str(client.cookies)
    assert [session.session_key for session in Session.objects.all() if text in str(session.get_decoded())] == []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT count(*) FROM "{table}" AS row WHERE row::text LIKE %s', [f"%{text}%"])
            assert cursor.fetchone() == (0,), table

    (revoke,) = re.findall(r'href="([^"]+/operate/revoke/[^"]+)"', page)
    assert b"cannot be undone" in client.get(revoke).content
    sent = {"id": token.pk, "why": "no longer monitored", "confirmed": "1"}
    assert [client.post(revoke, sent).status_code for _ in range(2)] == [302, 302]

    assert Client(headers=call).get("/api/v1/channels/").status_code == 401
    revoked = LogEntry.objects.get(action_flag=2)
    assert revoked.change_message == "Revoked tokens: 1. Why: no longer monitored"
    assert LogEntry.objects.filter(action_flag=1).get().object_repr == str(token)


@pytest.mark.parametrize("role", ["support", "operator"])
def test_nobody_else_makes_or_revokes_tokens(client: Client, role: str) -> None:
    call_command("api_token", "create", "x", "--scope", "status")
    client.force_login(make_staff(role))

    assert client.get(ADD).status_code == 403
    sent = {"id": ApiToken.objects.get().pk, "why": "x", "confirmed": "1"}
    assert client.post("/admin/pushserver/apitoken/operate/revoke/", sent).status_code == 403
    assert ApiToken.objects.get().revoked_at is None


def test_a_form_that_is_sent_twice_makes_one_token_which_is_not_shown_again(client: Client) -> None:
    client.force_login(make_staff("admin"))

    (text,) = re.findall(TEXT, client.post(ADD, FORM).content.decode())
    again = client.post(ADD, FORM)
    page = client.get(again.url).content.decode()

    assert "There is a token of this name already" in page
    assert text not in page
    assert "messages" not in client.cookies
    assert (ApiToken.objects.count(), LogEntry.objects.count()) == (1, 1)
    with pytest.raises(CommandError, match="of this name"):
        call_command("api_token", "create", "monitoring", "--scope", "status")
    ApiToken.objects.update(revoked_at=timezone.now())
    client.post(ADD, FORM)
    assert ApiToken.objects.count() == 2


def test_the_command_line_makes_lists_and_revokes(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("api_token", "create", "monitoring", "--scope", "status", "--scope", "reports", "--days", "30")
    assert re.fullmatch(f"{TEXT}\n", capsys.readouterr().out)
    token = ApiToken.objects.get()

    call_command("api_token", "list")
    assert f"{token.pk}\tmonitoring" in capsys.readouterr().out
    call_command("api_token", "revoke", str(token.pk))
    with pytest.raises(CommandError, match="no token"):
        call_command("api_token", "revoke", str(token.pk))
