"""The seven inner messages, from bytes to dataclasses and back. Protobuf objects do not leave this module.

Reading and writing stand side by side for every message. Strings that are not UTF-8 make the whole message malformed.
Unknown fields are skipped, and unknown enum values are kept as numbers, as proto3 requires.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from notifications.messages import PushNotification, PushRequest, Report
from registrations.messages import QueryInfo, RegistrationMessage
from waku_bridge.codec import limits
from waku_bridge.codec.errors import MalformedBody, TooLarge
from waku_bridge.codec.pb import push_notifications_pb2 as pb
from waku_bridge.messages import (
    ContactCodeAdvertisement,
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    RegistrationResponse,
)


def has_more_fields(data: bytes, limit: int) -> bool:
    """Return whether a message has more than ``limit`` fields, without parsing it.

    So a body of a hundred thousand empty entries costs no more than one with the allowed number. Bytes that are not
    well-formed are left to the parser.
    """
    at = count = 0
    try:
        while at < len(data) and count <= limit:
            at = _skip(data, at)
            count += 1
    except (IndexError, ValueError):
        return False
    return count > limit


def _skip(data: bytes, at: int) -> int:
    """Return the end of the field that begins at ``at``.

    The begin and the end of a group count as a field each. If a group were left to the parser, one before a hundred
    thousand entries would hide them from the count.

    Raises IndexError beyond the end of the data, and ValueError for an unknown wire type or an overlong varint.
    """
    tag, at = _varint(data, at)
    match tag & 7:
        case 0:
            return _varint(data, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(data, at)
            return at + length
        case 3 | 4:
            return at
        case 5:
            return at + 4
    raise ValueError("unknown wire type")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("overlong varint")
    return value | byte << shift, at + 1


PlainBody = RegistrationResponse | Query | QueryResponse | PushRequest | PushResponse | ContactCodeAdvertisement
"""Bodies that travel in clear inside the signed message: all but the registration."""

OutgoingBody = RegistrationMessage | PlainBody

# Fields that a message with a list may have beside its entries: the known ones, and some of a later version.
OTHER_FIELDS = 16

_M = TypeVar("_M", bound=Message)


def parse(message_type: MessageType, payload: bytes) -> PlainBody:
    """Read the payload of an ApplicationMetadataMessage of any type but REGISTRATION.

    Raises MalformedBody or TooLarge.
    """
    return _PARSERS[message_type](payload)


def serialize(body: OutgoingBody) -> tuple[MessageType, bytes]:
    """Return the message type of a body, and its bytes with the fields in ascending order.

    A query without keys becomes empty bytes, which no receiver dispatches.
    """
    message_type, build = _BUILDERS[type(body)]
    return message_type, build(body).SerializeToString()


def parse_registration(content: bytes) -> RegistrationMessage:
    """Read a decrypted registration.

    Raises MalformedBody or TooLarge.
    """
    message = _parse(pb.PushNotificationRegistration, content, limits.MAX_BODY_BYTES)
    _check_limits(message)
    return RegistrationMessage(
        installation_id=message.installation_id,
        version=message.version,
        token_type=message.token_type,
        device_token=message.device_token,
        app_topic=message.apn_topic,
        access_token=message.access_token,
        grant=message.grant,
        enabled=message.enabled,
        unregister=message.unregister,
        allow_from_contacts_only=message.allow_from_contacts_only,
        block_mentions=message.block_mentions,
        allowed_key_list=tuple(message.allowed_key_list),
        blocked_chat_list=tuple(message.blocked_chat_list),
        muted_chat_list=tuple(message.muted_chat_list),
        allowed_mentions_chat_list=tuple(message.allowed_mentions_chat_list),
    )


def _build_registration(registration: RegistrationMessage) -> pb.PushNotificationRegistration:
    return pb.PushNotificationRegistration(
        installation_id=registration.installation_id,
        version=registration.version,
        token_type=registration.token_type,  # type: ignore[arg-type]  # open enum
        device_token=registration.device_token,
        apn_topic=registration.app_topic,
        access_token=registration.access_token,
        grant=registration.grant,
        enabled=registration.enabled,
        unregister=registration.unregister,
        allow_from_contacts_only=registration.allow_from_contacts_only,
        block_mentions=registration.block_mentions,
        allowed_key_list=registration.allowed_key_list,
        blocked_chat_list=registration.blocked_chat_list,
        muted_chat_list=registration.muted_chat_list,
        allowed_mentions_chat_list=registration.allowed_mentions_chat_list,
    )


def _check_limits(registration: pb.PushNotificationRegistration) -> None:
    """Raise TooLarge for texts and lists over their limits, before they are copied into objects of ours."""
    texts = (
        registration.installation_id,
        registration.device_token,
        registration.apn_topic,
        registration.access_token,
    )
    lists = (
        registration.allowed_key_list,
        registration.blocked_chat_list,
        registration.muted_chat_list,
        registration.allowed_mentions_chat_list,
    )
    if any(len(text.encode()) > limits.MAX_TOKEN_BYTES for text in texts):
        raise TooLarge
    if any(len(entries) > limits.MAX_LIST_ENTRIES for entries in lists):
        raise TooLarge


def _parse_registration_response(payload: bytes) -> RegistrationResponse:
    message = _parse(pb.PushNotificationRegistrationResponse, payload)
    return RegistrationResponse(message.request_id, message.success, message.error)


def _build_registration_response(response: RegistrationResponse) -> pb.PushNotificationRegistrationResponse:
    return pb.PushNotificationRegistrationResponse(
        request_id=response.request_id,
        success=response.success,
        error=response.error,  # type: ignore[arg-type]  # open enum
    )


def _parse_query(payload: bytes) -> Query:
    message = _parse(pb.PushNotificationQuery, payload, limits.MAX_BODY_BYTES, max_fields=limits.MAX_QUERY_KEYS)
    if len(message.public_keys) > limits.MAX_QUERY_KEYS:
        raise TooLarge
    return Query(tuple(message.public_keys))


def _build_query(query: Query) -> pb.PushNotificationQuery:
    return pb.PushNotificationQuery(public_keys=query.public_key_hashes)


def _parse_query_response(payload: bytes) -> QueryResponse:
    message = _parse(pb.PushNotificationQueryResponse, payload)
    return QueryResponse(message.message_id, message.success, _parse_info(message.info))


def _build_query_response(response: QueryResponse) -> pb.PushNotificationQueryResponse:
    return pb.PushNotificationQueryResponse(
        message_id=response.message_id, success=response.success, info=_build_info(response.info)
    )


def _parse_request(payload: bytes) -> PushRequest:
    message = _parse(pb.PushNotificationRequest, payload, limits.MAX_BODY_BYTES, max_fields=limits.MAX_NOTIFICATIONS)
    if len(message.requests) > limits.MAX_NOTIFICATIONS or len(message.message_id) > limits.MAX_ID_BYTES:
        raise TooLarge
    if any(_is_over_limit(item) for item in message.requests):
        raise TooLarge
    notifications = tuple(
        PushNotification(
            item.public_key,
            item.installation_id,
            item.access_token,
            item.type,
            item.chat_id,
            item.author,
            item.message,
        )
        for item in message.requests
    )
    return PushRequest(message.message_id, notifications)


def _is_over_limit(item: pb.PushNotification) -> bool:
    is_id_too_long = len(item.installation_id.encode()) > limits.MAX_ID_BYTES
    return is_id_too_long or len(item.public_key) > limits.MAX_KEY_HASH_BYTES


def _build_request(request: PushRequest) -> pb.PushNotificationRequest:
    notifications = [
        pb.PushNotification(
            public_key=notification.public_key_hash,
            installation_id=notification.installation_id,
            access_token=notification.access_token,
            type=notification.type,  # type: ignore[arg-type]  # open enum
            chat_id=notification.chat_id,
            author=notification.author,
            message=notification.message,
        )
        for notification in request.notifications
    ]
    return pb.PushNotificationRequest(message_id=request.message_id, requests=notifications)


def _parse_response(payload: bytes) -> PushResponse:
    message = _parse(pb.PushNotificationResponse, payload)
    reports = tuple(Report(item.public_key, item.installation_id, item.success, item.error) for item in message.reports)
    return PushResponse(message.message_id, reports)


def _build_response(response: PushResponse) -> pb.PushNotificationResponse:
    reports = [
        pb.PushNotificationReport(
            public_key=report.public_key_hash,
            installation_id=report.installation_id,
            success=report.success,
            error=report.error,  # type: ignore[arg-type]  # open enum
        )
        for report in response.reports
    ]
    return pb.PushNotificationResponse(message_id=response.message_id, reports=reports)


def _parse_advertisement(payload: bytes) -> ContactCodeAdvertisement:
    return ContactCodeAdvertisement(_parse_info(_parse(pb.ContactCodeAdvertisement, payload).push_notification_info))


def _build_advertisement(advertisement: ContactCodeAdvertisement) -> pb.ContactCodeAdvertisement:
    return pb.ContactCodeAdvertisement(push_notification_info=_build_info(advertisement.info))


def _parse_info(messages: Iterable[pb.PushNotificationQueryInfo]) -> tuple[QueryInfo, ...]:
    return tuple(
        QueryInfo(
            public_key_hash=message.public_key,
            installation_id=message.installation_id,
            version=message.version,
            grant=message.grant,
            access_token=message.access_token,
            allowed_key_list=tuple(message.allowed_key_list),
            server_public_key=message.server_public_key,
        )
        for message in messages
    )


def _build_info(infos: Iterable[QueryInfo]) -> list[pb.PushNotificationQueryInfo]:
    return [
        pb.PushNotificationQueryInfo(
            public_key=info.public_key_hash,
            installation_id=info.installation_id,
            version=info.version,
            grant=info.grant,
            access_token=info.access_token,
            allowed_key_list=info.allowed_key_list,
            server_public_key=info.server_public_key,
        )
        for info in infos
    ]


def _parse(
    message_class: type[_M], payload: bytes, limit: int = limits.MAX_PAYLOAD_BYTES, *, max_fields: int | None = None
) -> _M:
    """Parse a body.

    Raises TooLarge before parsing when it has more bytes than ``limit`` or more entries than ``max_fields``, and
    MalformedBody when it does not parse.
    """
    if len(payload) > limit or (max_fields is not None and has_more_fields(payload, max_fields + OTHER_FIELDS)):
        raise TooLarge
    try:
        return message_class.FromString(payload)
    except DecodeError as error:
        raise MalformedBody from error


_PARSERS: dict[MessageType, Callable[[bytes], PlainBody]] = {
    MessageType.CONTACT_CODE_ADVERTISEMENT: _parse_advertisement,
    MessageType.REGISTRATION_RESPONSE: _parse_registration_response,
    MessageType.QUERY: _parse_query,
    MessageType.QUERY_RESPONSE: _parse_query_response,
    MessageType.REQUEST: _parse_request,
    MessageType.RESPONSE: _parse_response,
}

_BUILDERS: dict[type[OutgoingBody], tuple[MessageType, Callable[[Any], Message]]] = {
    ContactCodeAdvertisement: (MessageType.CONTACT_CODE_ADVERTISEMENT, _build_advertisement),
    RegistrationMessage: (MessageType.REGISTRATION, _build_registration),
    RegistrationResponse: (MessageType.REGISTRATION_RESPONSE, _build_registration_response),
    Query: (MessageType.QUERY, _build_query),
    QueryResponse: (MessageType.QUERY_RESPONSE, _build_query_response),
    PushRequest: (MessageType.REQUEST, _build_request),
    PushResponse: (MessageType.RESPONSE, _build_response),
}
