"""Errors of the codec: the faults that a peer's bytes can have.

CodecError
├── NotDecryptable          not_decryptable
├── BadFrame                bad_frame
├── UnsignedFrame           unsigned_frame
├── BadSignature            bad_signature
├── MalformedMessage        malformed_message
├── Segment                 segment
├── UnknownType             unknown_type
├── NotAccepted             not_for_servers
├── UnsignedMessage         unsigned_message
├── EmptyPayload            empty_payload
├── BodyNotDecryptable      body_not_decryptable
├── MalformedBody           malformed_body
├── TooLarge                too_large
├── BadPublicKey            bad_public_key
└── MalformedWakuMessage    malformed_waku_message

``reason`` is stable: it is stored with an envelope and counted as a metric label. Neither ``reason`` nor the message of
the exception ever contains bytes of the peer or of ours. Mistakes of the caller (a key of the wrong length, no
recipient) are ValueErrors.
"""
# ruff: noqa: N818 -- each name is the fault of the bytes, and the base class says that it is an error

from typing import ClassVar


class CodecError(Exception):
    """The peer's bytes cannot be used. The same bytes will fail again."""

    reason: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(self.reason)


class NotDecryptable(CodecError):
    """None of the keys opens the Waku payload: usually a message for somebody else on a shared content topic."""

    reason = "not_decryptable"


class BadFrame(CodecError):
    """The decrypted v1 frame contradicts its own lengths."""

    reason = "bad_frame"


class UnsignedFrame(CodecError):
    """The v1 frame carries no signature; status-go drops such messages too."""

    reason = "unsigned_frame"


class BadSignature(CodecError):
    """No public key can be recovered: wrong length, recovery id above 3, or r and s out of range."""

    reason = "bad_signature"


class MalformedMessage(CodecError):
    """The data of the frame is no ApplicationMetadataMessage, wrapped or not."""

    reason = "malformed_message"


class Segment(CodecError):
    """A piece of a message above 768 KiB. No push message needs one."""

    reason = "segment"


class UnknownType(CodecError):
    """A Status message of a type that does not concern push notifications."""

    reason = "unknown_type"


class NotAccepted(CodecError):
    """A push message of a type that the caller does not accept: a server takes only messages for servers."""

    reason = "not_for_servers"


class UnsignedMessage(CodecError):
    """The ApplicationMetadataMessage carries no signature, so it has no author."""

    reason = "unsigned_message"


class EmptyPayload(CodecError):
    """The ApplicationMetadataMessage has no payload. status-go dispatches nothing and answers nothing."""

    reason = "empty_payload"


class BodyNotDecryptable(CodecError):
    """A registration or an access token that was not sealed with the shared key of its author and its reader."""

    reason = "body_not_decryptable"


class MalformedBody(CodecError):
    """The inner message does not parse, or one of its strings is not UTF-8."""

    reason = "malformed_body"


class TooLarge(CodecError):
    """Over one of the limits in ``limits``."""

    reason = "too_large"


class BadPublicKey(CodecError):
    """Not a point of secp256k1 in one of the forms we read."""

    reason = "bad_public_key"


class MalformedWakuMessage(CodecError):
    """Not the protobuf of 14/WAKU2-MESSAGE."""

    reason = "malformed_waku_message"
