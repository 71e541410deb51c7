"""The promise of docs/xmpp.md: no JID, no sender and no text of a user is anywhere but in the stanza."""

import logging

import pytest
from django.db import connection
from prometheus_client import REGISTRY, generate_latest

from notifications.models import Notification
from tests.delivering import DeliveryProcess
from xmpp_bridge.tests.talking import APN_TOKEN, CALL_TOKEN, Service, encrypted, make_app, publish, push2, summary
from xmpp_bridge.tests.test_delivery import Gorush

pytestmark = pytest.mark.django_db
TEXT = "Wherefore-art-thou"
FORWARDED = (
    "<forwarded xmlns='urn:xmpp:forward:0'><message xmlns='jabber:client' from='romeo@capulet.test/desk' "
    f"to='juliet@capulet.test'><body>{TEXT}</body></message></forwarded>"
)
USERS = ("juliet", "romeo", "balcony", "desk", "name-of-the-phone", TEXT)
CIPHERTEXT = "c2VjcmV0" * 8


def tables() -> str:
    """Return every value of every table, as text. Bytes are in hexadecimal digits."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        rows = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT row_to_json(t)::text FROM "{table}" AS t')
            rows += [row for (row,) in cursor.fetchall()]
    return "\n".join(rows)


def found(words, text: str) -> list[str]:
    return [word for word in words if word in text or word.encode().hex() in text]


@pytest.mark.requirement("XB17", "X17")
def test_no_user_is_in_tables_logs_metrics_or_pushes(caplog, capsys) -> None:
    make_app()
    service, gorush = Service(), Gorush()
    with caplog.at_level(logging.DEBUG):
        phone = service.register(device_id="name-of-the-phone", voip_token=CALL_TOKEN)
        reported = summary(last_message_body=TEXT, last_message_sender="romeo@capulet.test/desk")
        service.receive_all(
            push2(phone.client, FORWARDED, sender="juliet@capulet.test"),
            push2(phone.client, encrypted(CIPHERTEXT)),
            publish(phone.node, phone.secret, reported),
            push2(phone.client, sender="romeo@capulet.test/desk"),
            push2(phone.client, encrypted("juliet@capulet.test")),
            publish("juliet@capulet.test", "romeo", reported),
        )
        waiting = tables()
        DeliveryProcess(gorush).process_backlog()
    logged = caplog.text + "".join(capsys.readouterr())
    sent, kept, counted = str(gorush.sent), tables(), generate_latest(REGISTRY).decode()
    assert [found(USERS, text) for text in (waiting, kept, logged, sent, counted)] == [[]] * 5
    secrets = (phone.client, phone.secret, APN_TOKEN, CALL_TOKEN)
    assert [found(secrets, text) for text in (waiting, kept, logged, counted)] == [[]] * 4
    assert "capulet" not in logged + counted
    assert found([CIPHERTEXT], waiting) == found([CIPHERTEXT], sent) == [CIPHERTEXT]
    assert found([CIPHERTEXT], kept + logged + counted) == []
    assert Notification.objects.filter(message__isnull=False).count() == 0
