"""Who this server is on the network: the one place that takes its private key from the settings."""

import hmac
from functools import cache

from coincurve import PrivateKey
from django.conf import settings

from waku_bridge.codec import topics
from waku_bridge.codec.keys import Identity


@cache
def server_identity() -> Identity:
    return Identity(PrivateKey(settings.SERVER_PRIVATE_KEY))


@cache
def canary_identity() -> Identity:
    """Of the client that `waku_bridge.canary` plays, always the same, so that what it leaves behind is found again."""
    return Identity(PrivateKey(hmac.digest(settings.SERVER_PRIVATE_KEY, b"canary identity", "sha256")))


@cache
def own_content_topics() -> frozenset[str]:
    """Where clients address the server itself. Registrations go to the personal topic, requests to the partitioned one;
    either is accepted on either.
    """
    key = server_identity().pub33
    return frozenset(topics.content_topic(name(key)) for name in (topics.personal_name, topics.partitioned_name))
