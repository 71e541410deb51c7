"""Grants: a client's signature that authorises one server to give one access token to senders.

Source: status-go protocol/pushnotificationclient/client.go, protocol/pushnotificationserver/server.go.
"""

from coincurve import PrivateKey

from waku_bridge.codec.errors import BadSignature
from waku_bridge.codec.keys import recover, sign


def material(client: bytes, server: bytes, access_token: str) -> bytes:
    """Return the signed bytes: both compressed keys (33 bytes each) and the token's text exactly as sent."""
    return client + server + access_token.encode()


def sign_grant(client: PrivateKey, server: bytes, access_token: str) -> bytes:
    """Return the 65-byte grant for a server's compressed key. It is deterministic."""
    return sign(material(client.public_key.format(), server, access_token), client)


def verify_grant(grant: bytes, *, client: bytes, server: bytes, access_token: str) -> bool:
    """Return whether the client (33 bytes) granted this token to this server (33 bytes).

    It never raises, and costs one recovery.
    """
    try:
        return recover(grant, material(client, server, access_token)).format() == client
    except BadSignature:
        return False
