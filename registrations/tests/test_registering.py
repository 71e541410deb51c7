"""Tests of registering and unregistering, on a real database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.forms.models import model_to_dict

from kit.db.sessions import BATCH_WORKER, set_all
from registrations import registering, retention
from registrations.encryption import Purpose, keyring
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Grant, Registration, RegistrationEvent, Route
from registrations.registering import Submission, named
from registrations.rules import Acceptance, Refusal
from tests.rig.rows import apn_token, firebase_token, make_registration
from tests.rig.statements import at_once, beside

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SERVER = b"\x02" + b"\x01" * 32
KEY_HASH = b"\xaa" * 64
UUID = "11111111-1111-4111-8111-111111111111"
ACCESS_TOKEN = "c0ffee00-0000-4000-8000-000000000001"
MESSAGE = RegistrationMessage(
    installation_id=UUID,
    version=1,
    token_type=TokenType.FIREBASE,
    device_token=firebase_token("device-token-1"),
    access_token=ACCESS_TOKEN,
    grant=b"\x09" * 65,
    enabled=True,
    allowed_key_list=(b"\x01" * 64,),
    blocked_chat_list=(b"\x02" * 64,),
    muted_chat_list=(b"\x03" * 64, b"\x04" * 64),
    allowed_mentions_chat_list=(b"\x05" * 64,),
)
Kind = RegistrationEvent.Kind


def submission(*, public_key_hash=KEY_HASH, grant_verified=True, content=None, server=SERVER, **fields):
    message = replace(MESSAGE, **fields)
    return Submission(public_key_hash, content or repr(fields).encode(), message, grant_verified, server)


def unregistration(version, **fields):
    bare = RegistrationMessage(UUID, version=version, unregister=True)
    return Submission(KEY_HASH, repr((version, fields)).encode(), replace(bare, **fields), grant_verified=False)


def register(*submissions, now=NOW, gateway="a gateway"):
    outcomes = registering.register(submissions, bridge="waku", gateway=gateway, now=now)
    return [outcome.decision for outcome in outcomes]


def kinds():
    return list(RegistrationEvent.objects.order_by("pk").values_list("kind", flat=True))


def device_token(route):
    return keyring().decrypt(Purpose.ADDRESS, route.address_encrypted).decode()


def test_a_registration_is_stored_with_route_grant_and_event():
    assert register(submission()) == [Acceptance.REGISTER]
    stored = Registration.objects.get()
    assert (bytes(stored.public_key_hash), stored.installation_id, stored.version) == (KEY_HASH, UUID, 1)
    assert stored.state == Registration.State.ACTIVE
    assert [bytes(entry) for entry in stored.muted_chat_list] == [b"\x03" * 64, b"\x04" * 64]
    assert keyring().decrypt(Purpose.ACCESS_TOKEN, stored.access_token_encrypted) == ACCESS_TOKEN.encode()
    assert device_token(stored.route) == firebase_token("device-token-1")
    assert stored.route.generation == 1
    grant = Grant.objects.get()
    assert (grant.registration, bytes(grant.server_public_key), bytes(grant.signature)) == (
        stored,
        SERVER,
        b"\x09" * 65,
    )
    event = RegistrationEvent.objects.get()
    assert (event.kind, event.pseudonym, event.at) == (Kind.REGISTERED, stored.pseudonym, NOW)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, Kind.REFRESHED),
        ({"muted_chat_list": tuple(reversed(MESSAGE.muted_chat_list))}, Kind.REFRESHED),
        ({"app_topic": "im.status"}, Kind.REFRESHED),
        ({"device_token": firebase_token("device-token-2")}, Kind.TOKEN_CHANGED),
        ({"token_type": TokenType.APN, "app_topic": "im.status", "device_token": apn_token()}, Kind.TOKEN_CHANGED),
        ({"enabled": False}, Kind.SETTINGS_CHANGED),
        ({"muted_chat_list": ()}, Kind.SETTINGS_CHANGED),
        ({"allow_from_contacts_only": True}, Kind.SETTINGS_CHANGED),
        ({"device_token": firebase_token("device-token-2"), "enabled": False}, Kind.TOKEN_CHANGED),
    ],
)
def test_the_event_of_a_new_version_names_the_change(fields, kind):
    register(submission())
    assert register(submission(version=2, **fields), now=NOW + DAY) == [Acceptance.REGISTER]
    assert kinds() == [Kind.REGISTERED, kind]


def test_a_new_version_replaces_everything_and_keeps_the_pseudonym():
    register(submission())
    before = Registration.objects.get()
    register(
        submission(
            version=7,
            device_token=firebase_token("device-token-2"),
            access_token=UUID,
            grant=b"\x08" * 65,
            enabled=False,
        )
    )
    after = Registration.objects.get()
    assert (after.version, after.enabled, after.pseudonym) == (7, False, before.pseudonym)
    assert (after.route_id, device_token(after.route)) == (before.route_id, firebase_token("device-token-2"))
    assert keyring().matches(Purpose.ACCESS_TOKEN, UUID.encode(), after.access_token_digest)
    assert bytes(Grant.objects.get().signature) == b"\x08" * 65
    assert Route.objects.count() == 1


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_retransmission_changes_nothing_and_succeeds_unless_the_version_check_is_strict(settings, is_strict):
    def stored():
        return [model_to_dict(model.objects.get()) for model in (Registration, Route, Grant)]

    settings.STRICT_VERSION_CHECK = is_strict
    register(submission(version=3, content=b"the same bytes"))
    before = stored()
    decision = Refusal.STALE_VERSION if is_strict else Acceptance.RETRANSMISSION
    assert register(submission(version=3, content=b"the same bytes")) == [decision]
    assert (before, kinds()) == (stored(), [Kind.REGISTERED])


def test_hundreds_of_refreshes_make_one_event_and_are_refused_for_this_installation_alone():
    decisions = [register(submission(version=version))[0] for version in range(1, 301)]
    assert 24 <= decisions.count(Acceptance.REGISTER) <= 36
    assert set(decisions[100:]) == {Refusal.TOO_MANY_CHANGES}
    assert kinds() == [Kind.REGISTERED]
    others = submission(installation_id=ACCESS_TOKEN), submission(public_key_hash=b"\xbb" * 64)
    assert register(*others) == [Acceptance.REGISTER] * 2
    assert register(submission(version=301), now=NOW + DAY) == [Acceptance.REGISTER]
    assert kinds() == [Kind.REGISTERED] * 3 + [Kind.REFRESHED]


def test_a_refresh_enables_a_route_whose_token_had_died_and_is_an_event_of_its_own():
    """Without this event, reports would count the phone as gone."""
    register(submission())
    Route.objects.update(state=Route.State.DISABLED, disabled_reason="unregistered", disabled_at=NOW, failing_since=NOW)
    register(submission(version=2))
    route = Route.objects.get()
    assert (route.state, route.disabled_reason, route.disabled_at) == (Route.State.ACTIVE, "", None)
    assert (route.failing_since, route.generation) == (None, 2)
    assert kinds() == [Kind.REGISTERED, Kind.REFRESHED]


def test_repeated_recordings_do_not_use_up_the_quota_of_newer_registrations():
    """Registrations are public: anybody can send a recorded one again with another date, without any key."""
    register(submission(version=3))
    for _ in range(20):
        register(*[submission(version=3)] * 10)
    assert register(submission(version=3)) == [Refusal.TOO_MANY_CHANGES]
    news = [submission(version=4), *[submission(version=3)] * 50, *[submission(version=4)] * 50, submission(version=5)]
    assert [decision for decision in register(*news) if decision is not Refusal.TOO_MANY_CHANGES] == [
        Acceptance.REGISTER,
        Acceptance.REGISTER,
    ]
    assert register(submission(version=6, unregister=True)) == [Acceptance.UNREGISTER]


def test_a_refused_registration_does_not_use_up_the_quota_of_newer_ones():
    register(submission(version=3))
    for _ in range(100):
        assert register(submission(version=5, device_token="no token"))[0] in {
            Refusal.IMPLAUSIBLE_TOKEN,
            Refusal.TOO_MANY_CHANGES,
        }
    assert register(submission(version=6)) == [Acceptance.REGISTER]


def expired(after_days):
    return [retention.expire(step, now=NOW + after_days * DAY, keep=180 * DAY) for step in retention.walk()]


def test_a_registration_that_is_repeated_does_not_expire_and_an_expired_one_is_registered_again():
    register(submission())
    for day in range(1, 200):
        assert register(submission(), now=NOW + day * DAY) == [Acceptance.RETRANSMISSION]
    assert expired(after_days=200) == [[]]
    [[_]] = expired(after_days=199 + 181)
    assert register(submission(), now=NOW + 400 * DAY) == [Acceptance.REGISTER]
    stored = Registration.objects.get()
    assert (stored.state, stored.version) == (Registration.State.ACTIVE, 1)
    assert device_token(stored.route) == firebase_token("device-token-1")
    assert Grant.objects.count() == 1
    assert kinds() == [Kind.REGISTERED, Kind.EXPIRED, Kind.REGISTERED]


@pytest.mark.requirement("SR20")
def test_an_unregistered_installation_leaves_nothing_but_key_hash_installation_and_version():
    register(submission())
    first = Registration.objects.get().pseudonym
    assert register(unregistration(2)) == [Acceptance.UNREGISTER]
    left = Registration.objects.get()
    assert (bytes(left.public_key_hash), left.installation_id, left.version) == (KEY_HASH, UUID, 2)
    assert left.state == Registration.State.UNREGISTERED
    assert (left.route, left.access_token_encrypted, left.access_token_digest, left.pseudonym) == (None,) * 4
    lists = (left.allowed_key_list, left.blocked_chat_list, left.muted_chat_list, left.allowed_mentions_chat_list)
    assert lists == ([], [], [], [])
    assert (left.enabled, left.allow_from_contacts_only, left.block_mentions) == (False, False, False)
    assert not Route.objects.exists()
    assert not Grant.objects.exists()
    assert register(submission(version=3)) == [Acceptance.REGISTER]
    assert Registration.objects.get().pseudonym not in {first, None}
    assert kinds() == [Kind.REGISTERED, Kind.UNREGISTERED, Kind.REGISTERED]


def test_unregistering_an_unknown_installation_leaves_a_tombstone_against_replays():
    assert register(unregistration(5)) == [Acceptance.UNREGISTER]
    assert register(submission(version=4)) == [Refusal.STALE_VERSION]
    assert register(unregistration(5)) == [Acceptance.RETRANSMISSION]
    assert Registration.objects.get().state == Registration.State.UNREGISTERED
    assert kinds() == []


def test_several_registrations_of_one_new_installation_in_one_batch_are_decided_in_order():
    batch = [submission(version=1), submission(version=3), submission(version=2)]
    assert register(*batch) == [Acceptance.REGISTER, Acceptance.REGISTER, Refusal.STALE_VERSION]
    assert Registration.objects.get().version == 3
    assert Route.objects.get().generation == 2
    assert Grant.objects.count() == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_an_installation_that_unregisters_and_registers_in_one_batch_has_one_row_in_each_table(is_known):
    first = [submission(version=1)]
    if is_known:
        register(*first)
    last = submission(version=3, device_token=firebase_token("the-last"))
    register(*([] if is_known else first), unregistration(2), last)
    assert device_token(Route.objects.get()) == firebase_token("the-last")
    assert Registration.objects.get().route == Route.objects.get()
    assert Grant.objects.count() == 1
    assert kinds() == [Kind.REGISTERED, Kind.UNREGISTERED, Kind.REGISTERED]
    register(submission(version=4), unregistration(5))
    assert Registration.objects.get().state == Registration.State.UNREGISTERED
    assert not Route.objects.exists()
    assert not Grant.objects.exists()


@pytest.mark.parametrize("version", [1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_version_has_64_unsigned_bits(version):
    register(submission(version=version))
    assert Registration.objects.get().version == version
    assert register(submission(version=version, content=b"other")) == [Refusal.STALE_VERSION]


@pytest.mark.parametrize("fields", [{"installation_id": f"\0{UUID}\0"}, {"app_topic": "im.status\0"}])
def test_a_text_that_the_database_cannot_store_is_refused_without_affecting_others(fields):
    unreadable = Submission(KEY_HASH, b"?", None, grant_verified=False)
    encrypted = submission(public_key_hash=b"\xbb" * 64, access_token=f"\0{UUID}\0")
    decisions = register(submission(**fields), unreadable, encrypted)
    assert decisions == [Refusal.MALFORMED, Refusal.MALFORMED, Acceptance.REGISTER]


def test_installation_ids_are_compared_as_text():
    assert register(submission(), submission(installation_id=UUID.replace("-", ""))) == [Acceptance.REGISTER] * 2
    assert Registration.objects.count() == 2


def test_a_grant_for_another_server_is_kept_beside_ours():
    register(submission())
    other = b"\x03" + b"\x01" * 32
    register(submission(version=2, server=other))
    assert {bytes(grant.server_public_key) for grant in Grant.objects.all()} == {SERVER, other}


def test_200_registrations_need_as_many_statements_as_one(django_assert_num_queries, django_assert_max_num_queries):
    with django_assert_max_num_queries(12) as one:
        register(submission())
    batch = [submission(public_key_hash=bytes([number]) * 64) for number in range(100)]
    with django_assert_num_queries(len(one)):
        register(*batch)
    with django_assert_max_num_queries(14) as again:
        register(submission(version=2))
    with django_assert_num_queries(len(again)):
        register(*(replace(s, message=replace(s.message, version=2)) for s in batch))


# Batches that meet ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_higher_version_wins_in_any_order_of_two_batches():
    register(submission(version=1))
    for round_number in range(5):
        low, high = 10 * round_number + 2, 10 * round_number + 3
        at_once(lambda v=low: register(submission(version=v)), lambda v=high: register(submission(version=v)))
        assert Registration.objects.get().version == high


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_returning", [True, False])
def test_a_batch_that_waited_for_another_one_uses_the_route_as_that_one_left_it(is_returning):
    """Otherwise the generation would not grow, and the death of the first token would disable the second one."""
    register(unregistration(1) if is_returning else submission(version=1))
    with transaction.atomic():
        register(submission(version=2, device_token=firebase_token("device-token-2")))
        later = beside(lambda: register(submission(version=3, device_token=firebase_token("device-token-3"))))
    assert later.result() == [Acceptance.REGISTER]
    route = Route.objects.get()
    assert (route.generation, device_token(route)) == (2 if is_returning else 3, firebase_token("device-token-3"))
    assert Registration.objects.get().route == route


def test_a_worker_finds_registrations_by_an_index_and_reads_no_others() -> None:
    """The rows are sorted by the order of their locks, which is not the order of the index.

    Many keys share the few installation ids, so that no other index finds only what is asked for.
    """
    for number in range(300):
        make_registration(installation_id=f"{number % 10}")
    rows = Registration.objects.filter(named({(b"a" * 64, "x"), (b"b" * 64, "y")})).order_by("pk")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE registrations_registration")
        cursor.execute(f"SELECT {set_all(BATCH_WORKER)}")
        plan = rows.explain()
        cursor.execute("RESET ALL")
    assert "one_registration_each" in plan
    assert "registrations_registration_pkey" not in plan
