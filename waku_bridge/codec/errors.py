"""Errors of the codec: the faults that a peer's bytes can have.

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
    reason = "not_decryptable"  # none of the keys opens it: usually a message for somebody else on a shared topic


class BadFrame(CodecError):
    reason = "bad_frame"  # the decrypted frame contradicts its own lengths


class UnsignedFrame(CodecError):
    reason = "unsigned_frame"  # status-go drops such messages, too


class BadSignature(CodecError):
    reason = "bad_signature"  # no key can be recovered: wrong length, recovery id above 3, or r and s out of range


class MalformedMessage(CodecError):
    reason = "malformed_message"  # the data of the frame is no ApplicationMetadataMessage, wrapped or not


class Segment(CodecError):
    reason = "segment"  # a piece of a message above 768 KiB; no push message needs one


class UnknownType(CodecError):
    reason = "unknown_type"  # a Status message that does not concern push notifications


class NotAccepted(CodecError):
    reason = "not_for_servers"  # a push message of a type that the caller does not accept


class UnsignedMessage(CodecError):
    reason = "unsigned_message"  # the ApplicationMetadataMessage has no author


class EmptyPayload(CodecError):
    reason = "empty_payload"  # status-go dispatches no such message, and answers nothing


class BodyNotDecryptable(CodecError):
    reason = "body_not_decryptable"  # not sealed with the shared key of its author and its reader


class MalformedBody(CodecError):
    reason = "malformed_body"  # the inner message does not parse, or one of its strings is not UTF-8


class TooLarge(CodecError):
    reason = "too_large"  # over one of the limits in `wire`


class BadPublicKey(CodecError):
    reason = "bad_public_key"  # not a point of secp256k1 in one of the forms that we read
