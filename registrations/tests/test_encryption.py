"""Tests of encrypted fields and digests under keys that may rotate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registrations.encryption import DecryptionError, Keyring, Purpose

OLD, NEW = b"\x01" * 32, b"\x02" * 32
VALUE = b"the device token"


@given(st.sampled_from(Purpose), st.sampled_from(Purpose), st.binary(max_size=200))
def test_a_field_decrypts_for_its_own_purpose_only_and_no_part_of_it(purpose, other, value):
    keyring = Keyring([OLD])
    field = keyring.encrypt(purpose, value)
    assert keyring.decrypt(purpose, field) == value
    wrong = [(purpose, field[:end]) for end in range(len(field))] + [(other, field)] * (other is not purpose)
    for each in wrong:
        with pytest.raises(DecryptionError):
            keyring.decrypt(*each)


@given(st.data())
def test_a_field_with_an_altered_byte_does_not_decrypt(data):
    field = bytearray(Keyring([OLD]).encrypt(Purpose.ADDRESS, VALUE))
    position = data.draw(st.integers(0, len(field) - 1))
    field[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DecryptionError):
        Keyring([OLD, NEW]).decrypt(Purpose.ADDRESS, bytes(field))


def test_the_error_of_a_failed_decryption_does_not_reveal_the_value():
    with pytest.raises(DecryptionError) as caught:
        Keyring([NEW]).decrypt(Purpose.ADDRESS, Keyring([OLD]).encrypt(Purpose.ADDRESS, VALUE))
    assert VALUE.decode() not in repr(caught.value)
    assert caught.value.__context__ is None


def test_each_encryption_uses_twelve_random_bytes():
    drawn, usual = [], Keyring([OLD])
    assert usual.encrypt(Purpose.CONTENT, VALUE) != usual.encrypt(Purpose.CONTENT, VALUE)
    keyring = Keyring([OLD], random_bytes=lambda size: drawn.append(size) or b"\x07" * size)
    assert keyring.encrypt(Purpose.CONTENT, VALUE)[4:16] == b"\x07" * 12
    assert drawn == [12]


def test_after_a_rotation_the_old_key_decrypts_and_the_new_key_encrypts():
    before, after = Keyring([OLD]), Keyring([NEW, OLD])
    field = before.encrypt(Purpose.ACCESS_TOKEN, VALUE)
    assert after.decrypt(Purpose.ACCESS_TOKEN, field) == VALUE
    assert Keyring([NEW]).decrypt(Purpose.ACCESS_TOKEN, after.encrypt(Purpose.ACCESS_TOKEN, VALUE)) == VALUE
    with pytest.raises(DecryptionError):
        before.decrypt(Purpose.ACCESS_TOKEN, after.encrypt(Purpose.ACCESS_TOKEN, VALUE))


def test_after_a_rotation_old_digests_still_match():
    digest = Keyring([OLD]).digest(Purpose.ACCESS_TOKEN, VALUE)
    after = Keyring([NEW, OLD])
    assert after.matches(Purpose.ACCESS_TOKEN, VALUE, digest)
    assert not after.matches(Purpose.ACCESS_TOKEN, b"another", digest)
    assert after.digest(Purpose.ACCESS_TOKEN, VALUE) != digest
    assert not Keyring([NEW]).matches(Purpose.ACCESS_TOKEN, VALUE, digest)


def test_digests_differ_by_purpose_and_key():
    digests = {Keyring([key]).digest(purpose, VALUE)[4:] for key in (OLD, NEW) for purpose in Purpose}
    assert len(digests) == 2 * len(Purpose)


@given(st.none() | st.just(b"") | st.binary(max_size=60), st.sampled_from([b"", VALUE]))
def test_a_missing_digest_and_random_bytes_match_nothing(garbage, value):
    assert not Keyring([OLD]).matches(Purpose.CONTENT, value, garbage)
