import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from pushserver.models import ApiToken

ADD = "/admin/pushserver/apitoken/add/"
pytestmark = pytest.mark.django_db


def somebody(client: Client, role: str) -> Client:
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    return client


def test_an_admin_makes_a_token_sees_it_once_and_revokes_it(client: Client) -> None:
    somebody(client, "admin")
    assert b'name="_save"' in client.get(ADD).content
    page = client.post(ADD, {"name": "monitoring", "scopes": ["status"]}, follow=True).content.decode()
    (text,) = re.findall(r"psk_[\w-]{43}", page)
    token = ApiToken.objects.get()
    call = {"authorization": f"Bearer {text}"}

    assert (token.created_by, token.scopes) == ("admin", ["status"])
    assert Client(headers=call).get("/api/v1/channels/").status_code == 200
    page = client.get(f"/admin/pushserver/apitoken/{token.pk}/change/").content.decode()
    assert text not in page

    (revoke,) = re.findall(r'href="([^"]+/operate/revoke/[^"]+)"', page)
    assert b"cannot be undone" in client.get(revoke).content
    sent = {"id": token.pk, "why": "no longer monitored", "confirmed": "1"}
    assert [client.post(revoke, sent).status_code for _ in range(2)] == [302, 302]

    assert Client(headers=call).get("/api/v1/channels/").status_code == 401
    assert [entry.change_message for entry in LogEntry.objects.filter(action_flag=2)] == [
        "Revoked tokens: 1. Why: no longer monitored"
    ]
    assert LogEntry.objects.filter(action_flag=1).get().object_repr == str(token)


@pytest.mark.parametrize("role", ["support", "operator"])
def test_nobody_else_makes_or_revokes_tokens(client: Client, role: str) -> None:
    call_command("api_token", "create", "x", "--scope", "status")
    somebody(client, role)

    assert client.get(ADD).status_code == 403
    sent = {"id": ApiToken.objects.get().pk, "why": "x", "confirmed": "1"}
    assert client.post("/admin/pushserver/apitoken/operate/revoke/", sent).status_code == 403
    assert ApiToken.objects.get().revoked_at is None


def test_a_form_that_is_sent_twice_makes_one_token(client: Client) -> None:
    somebody(client, "admin")
    sent = {"name": "monitoring", "scopes": ["status"]}

    client.post(ADD, sent)
    page = client.post(ADD, sent, follow=True).content.decode()

    assert "There is a token of this name already" in page
    assert (ApiToken.objects.count(), LogEntry.objects.count()) == (1, 1)
    with pytest.raises(CommandError, match="of this name"):
        call_command("api_token", "create", "monitoring", "--scope", "status")
    ApiToken.objects.update(revoked_at=timezone.now())
    client.post(ADD, sent)
    assert ApiToken.objects.count() == 2


def test_the_command_line_makes_lists_and_revokes(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("api_token", "create", "monitoring", "--scope", "status", "--scope", "reports", "--days", "30")
    assert re.fullmatch(r"psk_[\w-]{43}\n", capsys.readouterr().out)
    token = ApiToken.objects.get()

    call_command("api_token", "list")
    assert f"{token.pk}\tmonitoring" in capsys.readouterr().out
    call_command("api_token", "revoke", str(token.pk))
    with pytest.raises(CommandError, match="no token"):
        call_command("api_token", "revoke", str(token.pk))
