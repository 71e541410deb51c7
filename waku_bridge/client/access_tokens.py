"""Access tokens for contacts only: a list with one sealed copy for each contact, which does not reveal the contacts.

Entry = nonce (12) ‖ AES-256-GCM under the shared key of registering client and contact; 64 bytes for a UUID. The server
returns the list unchanged and never opens an entry.
Source: status-go protocol/pushnotificationclient/client.go (encryptToken, handleAllowedKeyList).
"""

from collections.abc import Iterable

from coincurve import PrivateKey

from registrations.messages import is_uuid
from waku_bridge.codec.errors import BodyNotDecryptable
from waku_bridge.codec.keys import RandomBytes, parse_public_key, seal_body, shared_key, unseal_body


def seal_access_token(access_token: str, client: PrivateKey, contact: bytes, random_bytes: RandomBytes) -> bytes:
    """Return the entry of ``allowed_key_list`` for a contact (33-byte key). It draws a nonce (12 bytes).

    Raises BadPublicKey when the contact is no point of the curve.
    """
    return seal_body(access_token.encode(), shared_key(client, parse_public_key(contact)), random_bytes)


def find_access_token(allowed_key_list: Iterable[bytes], sender: PrivateKey, client: bytes) -> str | None:
    """Return the token that a registered client (33-byte key) sealed for this sender, or None.

    Every entry is attempted, because their order means nothing. A plaintext that is no UUID is skipped, which status-go
    does not check. Raises BadPublicKey when the client is no point of the curve.
    """
    shared = shared_key(sender, parse_public_key(client))
    tokens = (_unseal(entry, shared) for entry in allowed_key_list)
    return next((token for token in tokens if is_uuid(token)), None)


def _unseal(entry: bytes, shared: bytes) -> str:
    """Return the text of an entry, empty when it is for somebody else."""
    try:
        return unseal_body(entry, shared).decode(errors="replace")
    except BodyNotDecryptable:
        return ""
