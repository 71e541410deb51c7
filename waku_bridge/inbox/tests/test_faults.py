"""Faults: they differ by the kind of error and its location, and never by the contents of the message."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from kit.display import counted
from pushserver.console.waku.operations import process_again
from tests.rig import rows
from waku_bridge.inbox import faults
from waku_bridge.models import EnvelopeFault, InboundEnvelope

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def envelope() -> bytes:
    return bytes(rows.make_envelope().hash)


def fail(text: str) -> Exception:
    nothing: dict[str, str] = {}
    try:
        nothing[text]
    except KeyError as error:
        return error
    raise AssertionError


def break_a_constraint() -> Exception:
    channel = rows.make_channel()
    try:
        with transaction.atomic():
            rows.make_channel((channel.token_type, channel.app_topic))
    except IntegrityError as error:
        return error
    raise AssertionError


def test_a_repeated_fault_is_counted_and_another_fault_has_its_own_row() -> None:
    for text, now in (("secret of one", NOW), ("secret of another", LATER)):
        faults.quarantine(envelope(), fail(text), now=now)
    faults.quarantine(envelope(), break_a_constraint(), now=LATER)
    [first, second] = EnvelopeFault.objects.order_by("pk")
    assert (first.error, first.count, first.first_seen_at, first.last_seen_at) == ("KeyError", 2, NOW, LATER)
    assert first.location == "waku_bridge/inbox/tests/test_faults.py in fail"
    assert str(first).startswith("KeyError at waku_bridge/inbox/tests/test_faults.py:")
    assert second.error == "IntegrityError (one_channel_each)"
    assert InboundEnvelope.objects.filter(state="failed", fault=first).count() == 2
    assert "secret" not in repr(list(EnvelopeFault.objects.values()))


def test_the_location_of_a_fault_in_a_helper_is_its_caller() -> None:
    try:
        counted("no number", "thing")  # type: ignore[arg-type]
    except ValueError as error:
        faults.quarantine(envelope(), error, now=NOW)
    assert EnvelopeFault.objects.get().location.startswith(
        "waku_bridge/inbox/tests/test_faults.py in test_the_location"
    )


def test_an_error_without_a_location_and_a_process_that_died_are_faults() -> None:
    faults.quarantine(envelope(), KeyError(), now=NOW)
    faults.give_up([envelope(), envelope()], now=NOW)
    assert sorted(map(str, EnvelopeFault.objects.all())) == ["KeyError", "process_died"]
    assert EnvelopeFault.objects.get(error="process_died").count == 2


def test_only_the_envelopes_of_a_fault_are_processed_again_with_it() -> None:
    faults.quarantine(envelope(), KeyError(), now=NOW)
    faults.quarantine(envelope(), ValueError(), now=NOW)
    fault = EnvelopeFault.objects.get(error="KeyError")
    assert faults.newest_waiting() is not None
    assert process_again(faults.waiting([fault.pk])) == 1
    assert process_again(faults.waiting([fault.pk])) == 0
    assert InboundEnvelope.objects.filter(state="received", fault=None).count() == 1
    assert str(faults.newest_waiting()) == "ValueError"
