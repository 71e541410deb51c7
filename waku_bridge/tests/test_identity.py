"""The server's identity: it is read from the settings, once."""

from coincurve import PrivateKey

from waku_bridge.codec import topics
from waku_bridge.identity import own_content_topics, server_identity


def test_the_servers_identity_has_the_key_of_the_settings(settings):
    assert server_identity().pub33 == PrivateKey(settings.SERVER_PRIVATE_KEY).public_key.format()
    assert server_identity() is server_identity()


def test_the_server_has_its_personal_and_its_partitioned_topic():
    key = server_identity().pub33
    names = {f"contact-discovery-{server_identity().pub65.hex()}", topics.partitioned_name(key)}
    assert own_content_topics() == {topics.content_topic(name) for name in names}


def test_the_repr_of_the_identity_shows_no_private_key(settings):
    assert settings.SERVER_PRIVATE_KEY.hex() not in repr(server_identity())
    assert settings.SERVER_PRIVATE_KEY.hex() not in repr(vars(type(server_identity())))
