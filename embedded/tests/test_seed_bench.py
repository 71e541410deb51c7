"""Tests that the made-up database is one that the server itself could have written."""

import re

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Count, F, Q
from pytest_django import Settings

from embedded.management.commands import seed_bench
from notifications.models import WAITING, Attempt, Notification, NotificationRequest
from registrations.encryption import Purpose, keyring
from registrations.models import Registration, Route
from tests.rig import rows
from waku_bridge.codec.keys import key_hash
from waku_bridge.models import InboundEnvelope, OutboundReply
from xmpp_bridge.models import Device

pytestmark = pytest.mark.django_db


@pytest.fixture
def filled() -> None:
    seed_bench.fill(1000, 2000, lambda _: None)


def structure() -> set[tuple[str, ...]]:
    """Return indexes and constraints by table, but not those of partitions, which follow their table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'")
        indexes = set(cursor.fetchall())
        cursor.execute("SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint")
        found = indexes | set(cursor.fetchall())
    return {row for row in found if not re.search(r"_(d\d{8}|default)$", row[0])}


def test_a_made_up_month_is_one_that_the_server_could_have_written_and_more_can_be_added() -> None:
    before = structure()

    seed_bench.fill(1000, 2000, lambda _: None)

    assert structure() == before
    assert Registration.objects.count() == 1000
    assert 2000 <= Attempt.objects.count() <= 2400
    routes_and_tokens_are_those_of_active_registrations_and_devices()
    notifications_have_ended_or_have_a_next_step()
    a_request_leads_to_its_envelope_and_its_reply()
    the_first_users_are_found_by_their_chat_keys()
    rows.make_attempt(rows.make_notification(route=rows.make_registration().route))


def routes_and_tokens_are_those_of_active_registrations_and_devices() -> None:
    active = Q(state=Registration.State.ACTIVE)
    whole = Q(route__isnull=False, access_token_encrypted__isnull=False, pseudonym__isnull=False)
    assert not Registration.objects.filter(active & ~whole | ~active & Q(route__isnull=False)).exists()
    token = Route.objects.values_list("address_encrypted", flat=True).first()
    assert keyring().decrypt(Purpose.ADDRESS, token).startswith(b"of no device")
    assert Device.objects.count() == 100
    active = Q(state=Device.State.ACTIVE)
    is_ended = ~active & Q(route=None, ended_at__isnull=False)
    assert not Device.objects.exclude(active & Q(route__isnull=False, ended_at=None) | is_ended).exists()
    assert not Route.objects.filter(registration=None, device=None).exists()


def notifications_have_ended_or_have_a_next_step() -> None:
    is_open, rows = Q(state__in=[*WAITING, "in_flight"]), Notification.objects
    assert rows.filter(is_open).exists()
    assert not rows.filter(is_open, finished_at__isnull=False).exists()
    assert not rows.filter(is_open, due_at=None).exists()
    assert not rows.filter(~is_open & (Q(finished_at=None) | Q(report=None) | Q(message__isnull=False))).exists()
    assert not rows.annotate(found=Count("attempts")).exclude(found=F("attempt_count")).exists()


def a_request_leads_to_its_envelope_and_its_reply() -> None:
    request = NotificationRequest.objects.filter(state="answered").latest("pk")
    assert InboundEnvelope.objects.get(pk=request.source_key).message_id == request.request_key
    assert OutboundReply.objects.filter(envelope_hash=request.source_key).count() == 1
    assert request.notifications.exists()


def the_first_users_are_found_by_their_chat_keys() -> None:
    hashes = [key_hash(key) for key in seed_bench.chat_keys()]
    assert set(hashes) <= set(Registration.objects.values_list("public_key_hash", flat=True))
    heaviest = Registration.objects.values("public_key_hash").annotate(number=Count("pk")).order_by("-number").first()
    assert heaviest is not None
    assert heaviest["public_key_hash"] == hashes[0]


@pytest.mark.parametrize(("urls", "reason"), [([], "not empty"), (["http://gorush.test:8088"], "GORUSH_URL")])
def test_a_database_with_data_and_a_server_with_a_gorush_are_left_alone(
    settings: Settings, urls: list[str], reason: str
) -> None:
    settings.GORUSH_URLS = urls
    if not urls:
        rows.make_dead_letter()

    with pytest.raises(CommandError, match=reason):
        call_command("seed_bench", registrations=1000, attempts=2000)

    assert not Registration.objects.exists()
