"""The contact code: a client's advertisement of the servers that it is registered with.

It is published on the client's own contact-code topic, which everybody who has its key can read, as in status-go. It
has one entry for each server that accepted the registration, with the grant that a reader verifies.
"""

from collections.abc import Iterable

from registrations.messages import QueryInfo, RegistrationMessage
from waku_bridge.codec.crypto.grants import sign_grant
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import ContactCodeAdvertisement


def advertisement(
    registration: RegistrationMessage | None, servers: Iterable[bytes], identity: Identity
) -> ContactCodeAdvertisement | None:
    """Return the contact code of a registration that these servers (33 bytes each) have accepted, or None.

    The access token is left out where it is sealed for contacts. A device with pushes switched off names no server.
    """
    if registration is None or registration.unregister or not registration.enabled:
        return None
    infos = tuple(_info(registration, server, identity) for server in servers)
    return ContactCodeAdvertisement(infos) if infos else None


def _info(registration: RegistrationMessage, server: bytes, identity: Identity) -> QueryInfo:
    is_open = not registration.allow_from_contacts_only
    return QueryInfo(
        public_key_hash=identity.key_hash,
        installation_id=registration.installation_id,
        version=registration.version,
        grant=sign_grant(identity.private_key, server, registration.access_token),
        access_token=registration.access_token if is_open else "",
        allowed_key_list=registration.allowed_key_list,
        server_public_key=server,
    )
