"""The server's identities on the network. No other module takes their private keys from the settings.

There is one, but while the server's key is being changed: then clients that know either are served, each by the
identity that it addressed. See docs/backup.md, "Changing the server's key".
"""

import hmac
from collections.abc import Mapping
from functools import cache

from coincurve import PrivateKey
from django.conf import settings

from waku_bridge.codec import topics
from waku_bridge.codec.keys import Identity


@cache
def server_identity() -> Identity:
    """Return the identity of this server, by which new clients know it."""
    return Identity(PrivateKey(settings.SERVER_PRIVATE_KEY))


@cache
def server_identities() -> tuple[Identity, ...]:
    """Return all identities that are served, the one that new clients know first."""
    others = (Identity(PrivateKey(key)) for key in settings.OTHER_SERVER_PRIVATE_KEYS)
    return tuple(dict.fromkeys((server_identity(), *others)))


def identity_of(public_key: bytes) -> Identity:
    """Return the identity with this key (33 bytes).

    For a key that was taken out of the settings, or is empty, it is the server's own: an answer signed by another key
    than was asked is better than none.
    """
    return next((each for each in server_identities() if each.pub33 == public_key), server_identity())


@cache
def canary_identity() -> Identity:
    """Return the identity of the client that `waku_bridge.canary` plays.

    It is always the same, so that what the canary leaves behind is found again.
    """
    return Identity(PrivateKey(_canary_key(settings.SERVER_PRIVATE_KEY)))


@cache
def canary_identities() -> tuple[Identity, ...]:
    """Return the identities that the canary has had, as far as the keys they come from are known."""
    keys = (settings.SERVER_PRIVATE_KEY, *settings.OTHER_SERVER_PRIVATE_KEYS)
    return tuple(Identity(PrivateKey(_canary_key(key))) for key in keys)


def _canary_key(server_key: bytes) -> bytes:
    return hmac.digest(server_key, b"canary identity", "sha256")


@cache
def identities_by_topic() -> Mapping[str, tuple[Identity, ...]]:
    """Return the identities that clients address on each of our own topics.

    Registrations go to the personal topic and requests to the partitioned one; either is accepted on either. Two
    identities may share a partitioned topic.
    """
    by_topic: dict[str, tuple[Identity, ...]] = {}
    for identity in server_identities():
        for name in (topics.personal_name(identity.pub33), topics.partitioned_name(identity.pub33)):
            topic = topics.content_topic(name)
            by_topic[topic] = (*by_topic.get(topic, ()), identity)
    return by_topic


@cache
def own_content_topics() -> frozenset[str]:
    """Return the topics on which clients address the server itself."""
    return frozenset(identities_by_topic())
