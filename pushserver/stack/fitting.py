"""Whether the secrets of the settings are those that the rows were written with. Asked before the first message.

A server with other field keys would read no address and write rows that the right ones do not open. One with another
private key would be a stranger to every client. Only the newest rows are asked about, so while keys are being changed
those that are listed are enough.
"""

from collections.abc import Iterator

from registrations.encryption import DecryptionError, Purpose
from registrations.keyring import keyring
from registrations.models import Grant, Route
from waku_bridge.identity import server_identities

NEWEST = 20
OTHER_FIELD_KEYS = (
    "FIELD_ENCRYPTION_KEYS do not open what is stored: add the key that the server ran with before, "
    "or nobody is reached."
)
OTHER_PRIVATE_KEY = (
    "SERVER_PRIVATE_KEY is not the one that clients registered with: list the one of before in "
    "OTHER_SERVER_PRIVATE_KEYS, or they must all register anew."
)


def foreign_field_keys() -> Iterator[str]:
    """Yield what is wrong when none of the newest addresses can be opened. Nothing may start then."""
    newest = Route.objects.order_by("-pk").values_list("address_encrypted", flat=True)
    sealed = list(newest[:NEWEST])
    if sealed and not any(map(_opens, sealed)):
        yield OTHER_FIELD_KEYS


def _opens(sealed: bytes) -> bool:
    try:
        keyring().decrypt(Purpose.ADDRESS, sealed)
    except DecryptionError:
        return False
    return True


def foreign_private_key() -> Iterator[str]:
    """Yield what is odd when none of the newest grants is for us. An operator may want that, after a key has leaked."""
    newest = set(Grant.objects.order_by("-pk").values_list("server_public_key", flat=True)[:NEWEST])
    ours = {identity.pub33 for identity in server_identities()}
    if newest and not ours & {bytes(key) for key in newest}:
        yield OTHER_PRIVATE_KEY
