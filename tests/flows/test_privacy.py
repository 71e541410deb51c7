"""The promise of design and documentation: the server keeps hashes, not identities, and no secret in plain."""

import os
from base64 import b64encode
from collections.abc import Iterator

import psycopg
from psycopg import sql

from tests.flows.fleet import Fleet
from tests.flows.network import Network, android, iphone, new_identity, new_sender
from waku_bridge.client import Preferences


def test_no_token_key_or_message_is_in_a_log_or_in_plain_in_the_database(fleet: Fleet, network: Network) -> None:
    contact, message = new_identity(), os.urandom(48)
    sender = new_sender(contact)
    apple, google, dead = iphone(), android("flaky1-"), iphone("dead-")
    phones = [
        network.phone(apple),
        network.phone(google, Preferences(contacts_only=True, contacts=(contact.pub33,))),
        network.phone(dead),
    ]
    for phone in phones:
        network.notify(sender, network.query(sender, phone), sender.one_to_one(message))
    network.wait_until_delivered()
    network.wait_until_answered()
    identities = [contact, sender.ephemeral, *(phone.identity for phone in phones)]
    secrets = {
        "message": message,
        **{f"device token {number}": a.device_token.encode() for number, a in enumerate((apple, google, dead))},
        **{f"access token {number}": phone.access_token.encode() for number, phone in enumerate(phones)},
        **{f"private key {number}": identity.private_key.secret for number, identity in enumerate(identities)},
        **{f"public key {number}": identity.pub33[1:] for number, identity in enumerate(identities)},
    }
    places = {**_tables(fleet), **{f"log of {name}": text for name, text in fleet.logs().items()}}
    in_registrations = places["table registrations_registration"]
    assert list(_found({"key hash": phones[0].identity.key_hash}, "stored on purpose", in_registrations))
    assert [found for place, text in places.items() for found in _found(secrets, place, text)] == []


def test_what_is_meant_for_a_phone_is_forgotten_once_it_is_there(network: Network) -> None:
    address, sender = android(), new_sender()
    network.notify(sender, network.query(sender, network.phone(address)), sender.one_to_one(b"for the phone"))
    assert len(network.pushes_to(address)) == 1
    network.wait_until_answered()
    kept = """
        SELECT count(*) FROM notifications_notification WHERE finished_at IS NOT NULL
           AND (chat_id IS NOT NULL OR message IS NOT NULL)
        UNION ALL SELECT count(*) FROM notifications_notificationrequest
           WHERE state = 'answered' AND reply_to IS NOT NULL
        UNION ALL SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state <> 'received' AND payload IS NOT NULL
        UNION ALL SELECT count(*) FROM waku_bridge_outboundreply
           WHERE state NOT IN ('pending', 'published') AND payload IS NOT NULL  -- published: until a store has it
    """
    assert network.rows(kept) == [(0,)] * 4


def _tables(fleet: Fleet) -> dict[str, str]:
    """Every table as text; bytes are in hex."""
    with psycopg.connect(fleet.environment["DATABASE_URL"], autocommit=True) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {f"table {name}": _text(connection, name) for (name,) in names}


def _text(connection: psycopg.Connection, table: str) -> str:
    rows = connection.execute(sql.SQL("SELECT row::text FROM {} AS row").format(sql.Identifier(table)))
    return "\n".join(text for (text,) in rows)


def _found(secrets: dict[str, bytes], place: str, text: str) -> Iterator[str]:
    for name, secret in secrets.items():
        for form, spelling in _spellings(secret):
            if spelling in text:
                yield f"{name} as {form} in {place}"


def _spellings(secret: bytes) -> Iterator[tuple[str, str]]:
    yield "text", secret.decode("latin-1")
    yield "hex", secret.hex()
    yield "hex", secret.hex().upper()
    # Base64 of something longer depends on where in it the secret begins; the characters at the seams are left out.
    for offset in range(3):
        whole = b64encode(bytes(offset) + secret).decode()
        inner = whole[4 if offset else 0 : -4]
        yield "base64", inner
        yield "base64", inner.replace("+", "-").replace("/", "_")
