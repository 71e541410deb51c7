from waku_bridge.codec import errors
from waku_bridge.codec.errors import CodecError

REASONS = {
    "bad_frame",
    "bad_public_key",
    "bad_signature",
    "body_not_decryptable",
    "empty_payload",
    "malformed_body",
    "malformed_message",
    "malformed_waku_message",
    "not_decryptable",
    "not_for_servers",
    "segment",
    "too_large",
    "unknown_type",
    "unsigned_frame",
    "unsigned_message",
}


def test_reasons_are_stable_and_distinct():
    classes = CodecError.__subclasses__()
    assert {error.reason for error in classes} == REASONS
    assert len(classes) == len(REASONS)


def test_the_text_of_an_error_is_its_reason_alone():
    assert {str(error()) for error in CodecError.__subclasses__()} == REASONS


def test_the_documented_tree_names_every_reason():
    assert all(f" {error.reason}\n" in errors.__doc__ for error in CodecError.__subclasses__())
