import os
import stat

import pytest

from registrations.messages import TokenType
from waku_bridge.client import Address, RegisteringClient, new_identity, new_state
from waku_bridge.client.registration.keeping import KeepingError, Kept, read, read_or_new, write


def a_phone():
    phone = RegisteringClient(
        new_identity(os.urandom), new_state(new_identity(os.urandom).pub33, random_bytes=os.urandom), os.urandom
    )
    phone.change(Address(TokenType.FIREBASE, "a-device"))
    return phone


def test_a_client_is_found_again_as_it_was(tmp_path):
    phone, path = a_phone(), tmp_path / "clients" / "me.json"
    write(path, Kept(phone.identity, phone.state))
    kept = read(path)
    assert kept.identity.pub33 == phone.identity.pub33
    assert kept.state == phone.state


def test_only_the_owner_can_read_the_file(tmp_path):
    path = tmp_path / "clients" / "me.json"
    write(path, read_or_new(path))
    write(path, read_or_new(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["me.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"private_key": "ab", "registration": null}', "not json at all"])
def test_another_file_is_refused_without_quoting_it(tmp_path, text):
    path = tmp_path / "me.json"
    path.write_text(text)
    with pytest.raises(KeepingError, match=r"me\.json does not hold a client$"):
        read_or_new(path)


def test_a_missing_file_cannot_be_read(tmp_path):
    with pytest.raises(KeepingError, match="cannot be read: No such file"):
        read(tmp_path / "nobody.json")


def test_the_repr_of_a_client_has_neither_key_nor_token():
    phone = a_phone()
    shown = repr(Kept(phone.identity, phone.state))
    assert phone.access_token not in shown
    assert phone.identity.private_key.secret.hex() not in shown
