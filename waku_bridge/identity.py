"""The server's identities on the network. No other module reads their private keys from the settings.

There is one identity, except while the server's key is changed. Then clients of the old and of the new key are served,
each by the identity that it addressed. See docs/backup.md, "Changing the server's key".
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
    """Return the identity that new clients address."""
    return Identity(PrivateKey(settings.SERVER_PRIVATE_KEY))


@cache
def server_identities() -> tuple[Identity, ...]:
    """Return all identities that are served. The first is the one that new clients address."""
    others = (Identity(PrivateKey(key)) for key in settings.OTHER_SERVER_PRIVATE_KEYS)
    return tuple(dict.fromkeys((server_identity(), *others)))


def identity_of(public_key: bytes) -> Identity:
    """Return the identity with this key (33 bytes).

    For an empty key, or one that was removed from the settings, it is the server's first identity: an answer that
    another key signed is better than none.
    """
    return next((each for each in server_identities() if each.pub33 == public_key), server_identity())


def canary_identity() -> Identity:
    """Return the identity of the canary's client. It is always the same, so that traces of earlier runs are found."""
    return canary_identities()[0]


@cache
def canary_identities() -> tuple[Identity, ...]:
    """Return the identities that the canary has had, one for each server key in the settings."""
    keys = (settings.SERVER_PRIVATE_KEY, *settings.OTHER_SERVER_PRIVATE_KEYS)
    return tuple(Identity(PrivateKey(hmac.digest(key, b"canary identity", "sha256"))) for key in keys)


@cache
def identities_by_topic() -> Mapping[str, tuple[Identity, ...]]:
    """Return the identities that clients address on each of our own topics.

    Clients send registrations to the personal topic and requests to the partitioned one. The server accepts both on
    either. Two identities may share a partitioned topic.
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
