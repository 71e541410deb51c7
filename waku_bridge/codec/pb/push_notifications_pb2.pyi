from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PushNotificationRegistration(_message.Message):
    __slots__ = ("token_type", "device_token", "installation_id", "access_token", "enabled", "version", "allowed_key_list", "blocked_chat_list", "unregister", "grant", "allow_from_contacts_only", "apn_topic", "block_mentions", "allowed_mentions_chat_list", "muted_chat_list")
    class TokenType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN_TOKEN_TYPE: _ClassVar[PushNotificationRegistration.TokenType]
        APN_TOKEN: _ClassVar[PushNotificationRegistration.TokenType]
        FIREBASE_TOKEN: _ClassVar[PushNotificationRegistration.TokenType]
    UNKNOWN_TOKEN_TYPE: PushNotificationRegistration.TokenType
    APN_TOKEN: PushNotificationRegistration.TokenType
    FIREBASE_TOKEN: PushNotificationRegistration.TokenType
    TOKEN_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_KEY_LIST_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_CHAT_LIST_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FROM_CONTACTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    APN_TOPIC_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MENTIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_MENTIONS_CHAT_LIST_FIELD_NUMBER: _ClassVar[int]
    MUTED_CHAT_LIST_FIELD_NUMBER: _ClassVar[int]
    token_type: PushNotificationRegistration.TokenType
    device_token: str
    installation_id: str
    access_token: str
    enabled: bool
    version: int
    allowed_key_list: _containers.RepeatedScalarFieldContainer[bytes]
    blocked_chat_list: _containers.RepeatedScalarFieldContainer[bytes]
    unregister: bool
    grant: bytes
    allow_from_contacts_only: bool
    apn_topic: str
    block_mentions: bool
    allowed_mentions_chat_list: _containers.RepeatedScalarFieldContainer[bytes]
    muted_chat_list: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, token_type: _Optional[_Union[PushNotificationRegistration.TokenType, str]] = ..., device_token: _Optional[str] = ..., installation_id: _Optional[str] = ..., access_token: _Optional[str] = ..., enabled: _Optional[bool] = ..., version: _Optional[int] = ..., allowed_key_list: _Optional[_Iterable[bytes]] = ..., blocked_chat_list: _Optional[_Iterable[bytes]] = ..., unregister: _Optional[bool] = ..., grant: _Optional[bytes] = ..., allow_from_contacts_only: _Optional[bool] = ..., apn_topic: _Optional[str] = ..., block_mentions: _Optional[bool] = ..., allowed_mentions_chat_list: _Optional[_Iterable[bytes]] = ..., muted_chat_list: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PushNotificationRegistrationResponse(_message.Message):
    __slots__ = ("success", "error", "request_id")
    class ErrorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN_ERROR_TYPE: _ClassVar[PushNotificationRegistrationResponse.ErrorType]
        MALFORMED_MESSAGE: _ClassVar[PushNotificationRegistrationResponse.ErrorType]
        VERSION_MISMATCH: _ClassVar[PushNotificationRegistrationResponse.ErrorType]
        UNSUPPORTED_TOKEN_TYPE: _ClassVar[PushNotificationRegistrationResponse.ErrorType]
        INTERNAL_ERROR: _ClassVar[PushNotificationRegistrationResponse.ErrorType]
    UNKNOWN_ERROR_TYPE: PushNotificationRegistrationResponse.ErrorType
    MALFORMED_MESSAGE: PushNotificationRegistrationResponse.ErrorType
    VERSION_MISMATCH: PushNotificationRegistrationResponse.ErrorType
    UNSUPPORTED_TOKEN_TYPE: PushNotificationRegistrationResponse.ErrorType
    INTERNAL_ERROR: PushNotificationRegistrationResponse.ErrorType
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    success: bool
    error: PushNotificationRegistrationResponse.ErrorType
    request_id: bytes
    def __init__(self, success: _Optional[bool] = ..., error: _Optional[_Union[PushNotificationRegistrationResponse.ErrorType, str]] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class ContactCodeAdvertisement(_message.Message):
    __slots__ = ("push_notification_info",)
    PUSH_NOTIFICATION_INFO_FIELD_NUMBER: _ClassVar[int]
    push_notification_info: _containers.RepeatedCompositeFieldContainer[PushNotificationQueryInfo]
    def __init__(self, push_notification_info: _Optional[_Iterable[_Union[PushNotificationQueryInfo, _Mapping]]] = ...) -> None: ...

class PushNotificationQuery(_message.Message):
    __slots__ = ("public_keys",)
    PUBLIC_KEYS_FIELD_NUMBER: _ClassVar[int]
    public_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, public_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PushNotificationQueryInfo(_message.Message):
    __slots__ = ("access_token", "installation_id", "public_key", "allowed_key_list", "grant", "version", "server_public_key")
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_KEY_LIST_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    access_token: str
    installation_id: str
    public_key: bytes
    allowed_key_list: _containers.RepeatedScalarFieldContainer[bytes]
    grant: bytes
    version: int
    server_public_key: bytes
    def __init__(self, access_token: _Optional[str] = ..., installation_id: _Optional[str] = ..., public_key: _Optional[bytes] = ..., allowed_key_list: _Optional[_Iterable[bytes]] = ..., grant: _Optional[bytes] = ..., version: _Optional[int] = ..., server_public_key: _Optional[bytes] = ...) -> None: ...

class PushNotificationQueryResponse(_message.Message):
    __slots__ = ("info", "message_id", "success")
    INFO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    info: _containers.RepeatedCompositeFieldContainer[PushNotificationQueryInfo]
    message_id: bytes
    success: bool
    def __init__(self, info: _Optional[_Iterable[_Union[PushNotificationQueryInfo, _Mapping]]] = ..., message_id: _Optional[bytes] = ..., success: _Optional[bool] = ...) -> None: ...

class PushNotification(_message.Message):
    __slots__ = ("access_token", "chat_id", "public_key", "installation_id", "message", "type", "author")
    class PushNotificationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN_PUSH_NOTIFICATION_TYPE: _ClassVar[PushNotification.PushNotificationType]
        MESSAGE: _ClassVar[PushNotification.PushNotificationType]
        MENTION: _ClassVar[PushNotification.PushNotificationType]
        REQUEST_TO_JOIN_COMMUNITY: _ClassVar[PushNotification.PushNotificationType]
        CONTACT_REQUEST: _ClassVar[PushNotification.PushNotificationType]
    UNKNOWN_PUSH_NOTIFICATION_TYPE: PushNotification.PushNotificationType
    MESSAGE: PushNotification.PushNotificationType
    MENTION: PushNotification.PushNotificationType
    REQUEST_TO_JOIN_COMMUNITY: PushNotification.PushNotificationType
    CONTACT_REQUEST: PushNotification.PushNotificationType
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHAT_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    access_token: str
    chat_id: bytes
    public_key: bytes
    installation_id: str
    message: bytes
    type: PushNotification.PushNotificationType
    author: bytes
    def __init__(self, access_token: _Optional[str] = ..., chat_id: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., installation_id: _Optional[str] = ..., message: _Optional[bytes] = ..., type: _Optional[_Union[PushNotification.PushNotificationType, str]] = ..., author: _Optional[bytes] = ...) -> None: ...

class PushNotificationRequest(_message.Message):
    __slots__ = ("requests", "message_id")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[PushNotification]
    message_id: bytes
    def __init__(self, requests: _Optional[_Iterable[_Union[PushNotification, _Mapping]]] = ..., message_id: _Optional[bytes] = ...) -> None: ...

class PushNotificationReport(_message.Message):
    __slots__ = ("success", "error", "public_key", "installation_id")
    class ErrorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN_ERROR_TYPE: _ClassVar[PushNotificationReport.ErrorType]
        WRONG_TOKEN: _ClassVar[PushNotificationReport.ErrorType]
        INTERNAL_ERROR: _ClassVar[PushNotificationReport.ErrorType]
        NOT_REGISTERED: _ClassVar[PushNotificationReport.ErrorType]
    UNKNOWN_ERROR_TYPE: PushNotificationReport.ErrorType
    WRONG_TOKEN: PushNotificationReport.ErrorType
    INTERNAL_ERROR: PushNotificationReport.ErrorType
    NOT_REGISTERED: PushNotificationReport.ErrorType
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_ID_FIELD_NUMBER: _ClassVar[int]
    success: bool
    error: PushNotificationReport.ErrorType
    public_key: bytes
    installation_id: str
    def __init__(self, success: _Optional[bool] = ..., error: _Optional[_Union[PushNotificationReport.ErrorType, str]] = ..., public_key: _Optional[bytes] = ..., installation_id: _Optional[str] = ...) -> None: ...

class PushNotificationResponse(_message.Message):
    __slots__ = ("message_id", "reports")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    reports: _containers.RepeatedCompositeFieldContainer[PushNotificationReport]
    def __init__(self, message_id: _Optional[bytes] = ..., reports: _Optional[_Iterable[_Union[PushNotificationReport, _Mapping]]] = ...) -> None: ...
