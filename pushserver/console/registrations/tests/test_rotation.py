from collections.abc import Iterator
from io import StringIO

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.utils import timezone

from pushserver.console.registrations.rotation import COLUMNS, rotate
from registrations.encryption import Keyring, Purpose, keyring
from registrations.models import Grant, Registration, Route, TopicKey
from tests.rig import rows
from tests.rig.statements import other_session

OLD, NEW, LOST = b"o" * 32, b"n" * 32, b"l" * 32
BOTH = Keyring([NEW, OLD])
ONLY_NEW = Keyring([NEW])
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _old_key(settings: LazySettings) -> Iterator[None]:
    use(settings, OLD)
    yield
    keyring.cache_clear()


def use(settings: LazySettings, *keys: bytes) -> None:
    settings.FIELD_ENCRYPTION_KEYS = list(keys)
    keyring.cache_clear()


def run(settings: LazySettings, *keys: bytes) -> str:
    use(settings, *keys)
    output = StringIO()
    call_command("rotate_field_keys", stdout=output, stderr=output)
    return output.getvalue()


def test_everything_encrypted_and_every_digest_of_it_is_readable_with_the_new_key_alone(settings: LazySettings) -> None:
    registration = rows.make_registration(access_token="the-access-token", device_token="the-device-token")
    rows.make_grant(registration)
    rows.make_topic_key(key=b"k" * 32)
    run(settings, NEW, OLD)
    registration, route, topic_key = Registration.objects.get(), Route.objects.get(), TopicKey.objects.get()
    assert ONLY_NEW.decrypt(Purpose.ACCESS_TOKEN, registration.access_token_encrypted) == b"the-access-token"
    assert ONLY_NEW.decrypt(Purpose.ADDRESS, route.address_encrypted) == b"the-device-token"
    assert ONLY_NEW.decrypt(Purpose.TOPIC_KEY, topic_key.key_encrypted) == b"k" * 32
    for row in (registration, Grant.objects.get()):
        assert ONLY_NEW.matches(Purpose.ACCESS_TOKEN, b"the-access-token", row.access_token_digest)
    assert ONLY_NEW.matches(Purpose.ADDRESS, b"the-device-token", route.address_digest)


def test_an_address_stays_proven_and_another_one_stays_unproven(settings: LazySettings) -> None:
    proven = rows.make_route(token_type=1, app_topic="im.status", last_success_at=timezone.now())
    changed = rows.make_route(delivered_digest=keyring().digest(Purpose.ADDRESS, b"the token before"))
    run(settings, NEW, OLD)
    proven.refresh_from_db()
    changed.refresh_from_db()
    assert (proven.is_proven, changed.is_proven) == (True, False)
    assert (bytes(proven.delivered_digest[:4]), changed.delivered_digest) == (ONLY_NEW.current_id, b"")


def test_the_command_shows_how_many_content_digests_need_the_old_key_and_changes_nothing_twice(
    settings: LazySettings,
) -> None:
    rows.make_registration()
    use(settings, NEW, OLD)
    rows.make_registration()
    output = run(settings, NEW, OLD)
    before = stored()
    assert "1 content digests still need an old key." in output
    assert "Keep the old keys listed." in output
    Registration.objects.update(content_digest=BOTH.digest(Purpose.CONTENT, b"content"))
    assert "Nothing needs an old key any more" in run(settings, NEW, OLD)
    assert stored() == before


def test_a_row_whose_key_is_lost_is_reported_and_left_alone(settings: LazySettings) -> None:
    use(settings, LOST)
    rows.make_registration()
    use(settings, OLD)
    rows.make_registration()
    lost = stored()[0]
    output = run(settings, NEW, OLD)
    assert "access-token: 1 cannot be read with any listed key." in output
    assert stored()[0] == lost
    assert ONLY_NEW.decrypt(Purpose.ACCESS_TOKEN, stored()[1])


def test_rotation_works_in_batches() -> None:
    for _ in range(5):
        rows.make_registration()
    rows.make_registration(state="unregistered", route=None, access_token_encrypted=None, access_token_digest=None)
    assert [batch.changed for batch in rotate(COLUMNS[0], BOTH, batch_size=2)] == [2, 2, 1]


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_left_for_the_next_pass() -> None:
    held, free = rows.make_registration(), rows.make_registration()
    with other_session() as other:
        other.execute("SELECT 1 FROM registrations_registration WHERE id = %s FOR UPDATE", [held.pk])
        assert [batch.changed for batch in rotate(COLUMNS[0], BOTH)] == [1]
    assert [batch.changed for batch in rotate(COLUMNS[0], BOTH)] == [1]
    for registration in (held, free):
        registration.refresh_from_db()
        assert ONLY_NEW.decrypt(Purpose.ACCESS_TOKEN, registration.access_token_encrypted)


@pytest.mark.parametrize("first_byte", [b"\x00", b"\xff"])
def test_rows_with_an_old_key_are_found_for_any_id_of_the_new_key(
    first_byte: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.make_registration()
    ring = Keyring([NEW, OLD])
    old_id, ring.current_id = ring.current_id, first_byte * 4
    ring._ciphers[ring.current_id] = ring._ciphers[old_id]
    ring._digest_keys[ring.current_id] = ring._digest_keys[old_id]
    assert [batch.changed for batch in rotate(COLUMNS[0], ring)] == [1]
    assert [batch.changed for batch in rotate(COLUMNS[0], ring)] == []


def stored() -> list[bytes]:
    rows = Registration.objects.order_by("pk").values_list("access_token_encrypted", flat=True)
    return [bytes(value) for value in rows]
