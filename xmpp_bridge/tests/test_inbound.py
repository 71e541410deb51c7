"""Pushes as users' servers send them: authorisation, storing, merging, and the answer to each push."""

from base64 import b64encode
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from kit.buckets.bucket import Limit
from kit.db.clock import clock
from notifications.messages import Content
from notifications.models import BeyondLimit, Notification, OpenNotification
from pushserver.console.xmpp.part import XMPP
from registrations.models import Route
from tests.rig.rows import end_open
from tests.rig.statements import statements
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.inbound import MAX_CONTENT_BYTES, Item, _key
from xmpp_bridge.limits import DeviceLimit, Rates
from xmpp_bridge.messages import NOBODY, PushNotification
from xmpp_bridge.models import App, Device
from xmpp_bridge.rules import Decision, Domains, Verdict
from xmpp_bridge.tests.talking import (
    CALL_TOKEN,
    FORWARDED,
    SERVER,
    SERVICE,
    Registered,
    Service,
    disabled_client,
    encrypted,
    error_of,
    publish,
    push2,
    rfc8291,
    summary,
    tigase,
)

pytestmark = pytest.mark.django_db
NOT_FOUND = ("cancel", "item-not-found")
BUSY = ("wait", "resource-constraint")


@pytest.fixture
def phone(service: Service) -> Registered:
    return service.register()


def stored() -> list[Notification]:
    return list(Notification.objects.order_by("pk"))


def content(notification: Notification) -> Content:
    return Content.decode(notification.message or notification.wake or b"")


def seconds_to_live(notification: Notification) -> int:
    return round((notification.expires_at - notification.created_at).total_seconds())


def text(number: int) -> str:
    return b64encode(bytes([number])).decode()


def pass_time(monkeypatch: pytest.MonkeyPatch, **time: float) -> None:
    later = clock.now() + timedelta(**time)
    monkeypatch.setattr(type(clock), "now", lambda _: later)


# Authorisation --------------------------------------------------------------------------------------------------------


def test_a_push_is_stored_and_a_message_has_no_answer(service: Service, phone: Registered) -> None:
    assert service.receive(push2(phone.client)) is None
    [notification] = stored()
    assert (notification.state, notification.grade, notification.report) == ("pending", "normal", "success")
    assert seconds_to_live(notification) == 3600
    assert notification.unsent_since is not None  # the first push is measured from the arrival of its message
    assert timedelta() <= notification.created_at - notification.unsent_since < timedelta(minutes=1)
    assert (notification.request.bridge, notification.request.state) == ("xmpp", "answered")
    assert notification.route == Route.objects.get()
    tag = sha256(Device.objects.get().pk.bytes).digest()[:8]
    assert content(notification).data == {"v": "1", "k": "wake", "a": tag.hex()}
    assert bytes(notification.collapse_id or b"") == tag


def test_a_push_without_an_id_keeps_its_key_when_it_is_stored_again(phone: Registered) -> None:
    """The answer to a commit may be lost, and the push is stored again."""
    shown = push2(phone.client, encrypted(), stanza_id="gone").replace(" id='gone'", "")
    push, other = (decode(parse(shown.encode())) for _ in range(2))
    assert isinstance(push, PushNotification)
    assert isinstance(other, PushNotification)
    assert push == other
    names = [_key(Item(each, NOBODY, Decision(Verdict.ACCEPTED), None)) for each in (push, push, other)]
    assert names[0] == names[1] != names[2]


@pytest.mark.requirement("XB14", "X14")
def test_an_iq_is_answered_with_a_result_once_it_is_stored(service: Service, phone: Registered) -> None:
    answer = service.ask(publish(phone.node, phone.secret, summary(last_message_body="x"), stanza_id="a+/=@-" * 20))
    assert (answer.get("type"), answer.get("id"), len(answer)) == ("result", "a+/=@-" * 20, 0)
    assert (answer.get("from"), answer.get("to")) == (SERVICE, SERVER)
    assert [n.grade for n in stored()] == ["normal"]


def unknown_messages(phone: Registered, other: Registered) -> dict[str, str]:
    return {
        "unknown": push2("nope"),
        "forged": push2(phone.client[:-1] + ("A" if phone.client[-1] != "A" else "B")),
        "foreign": push2(phone.client, sender="montague.test"),
        "foreign subdomain": push2(phone.client, sender="x.capulet.test"),
        "unknown node": publish("nope", phone.secret),
        "wrong secret": publish(phone.node, other.secret),
        "no secret": publish(phone.node, ""),
        "foreign node": publish(phone.node, phone.secret, sender="montague.test"),
    }


@pytest.mark.requirement("XB9", "X9")
def test_a_sender_that_is_not_allowed_learns_nothing(service: Service, phone: Registered) -> None:
    other = service.register(device_id="other")
    answers = {name: service.receive(stanza) for name, stanza in unknown_messages(phone, other).items()}
    assert {name: error_of(answer) for name, answer in answers.items()} == dict.fromkeys(answers, NOT_FOUND)
    assert [disabled_client(answer) for answer in answers.values() if answer is not None] == [None] * len(answers)
    Device.objects.all().delete()
    again = {name: service.receive(stanza) for name, stanza in unknown_messages(phone, other).items()}
    assert {name: error_of(answer) for name, answer in again.items()} == dict.fromkeys(answers, NOT_FOUND)
    for domains in (Domains(denied={SERVER}), Domains(allowed={"montague.test"})):  # a domain that is not served
        pushes = (push2(other.client), publish(other.node, other.secret))
        assert [error_of(Service(domains=domains).receive(push)) for push in pushes] == [NOT_FOUND] * 2
    assert stored() == []


@pytest.mark.requirement("XB9", "X9")
def test_a_client_may_not_push(service: Service, phone: Registered) -> None:
    assert error_of(service.receive(push2(phone.client, sender="romeo@capulet.test/desk"))) == ("auth", "forbidden")
    by_resource = publish(phone.node, phone.secret, sender="capulet.test/x")
    assert error_of(service.receive(by_resource)) == ("auth", "forbidden")
    assert stored() == []


def test_a_server_may_push_in_the_name_of_an_account_and_in_any_spelling_of_its_domain(
    service: Service, phone: Registered
) -> None:
    assert service.receive(push2(phone.client, encrypted("AAAA"), sender="juliet@capulet.test")) is None
    assert service.receive(push2(phone.client, encrypted("BBBB"), sender="CAPULET.test.")) is None
    assert len(stored()) == 2


def test_a_malformed_push_is_a_bad_request_and_an_answer_comes_from_the_address_that_was_written_to(
    service: Service, phone: Registered
) -> None:
    assert error_of(service.receive(push2(phone.client, encrypted("not base64")))) == ("modify", "bad-request")
    assert error_of(service.receive(publish("", phone.secret))) == ("modify", "bad-request")
    answer = service.ask(push2("nope", to=f"5891b5b522@{SERVICE}", stanza_id="n-unknown"))
    assert (answer.get("from"), answer.get("id")) == (f"5891b5b522@{SERVICE}", "n-unknown")


# Routes that are gone -------------------------------------------------------------------------------------------------


def end_by_disabling(_service: Service) -> None:
    Route.objects.update(state="disabled", disabled_reason="Unregistered")


def end_by_unregistering(service: Service) -> None:
    service.command("unregister-push-apns", {"device-id": "phone"})


def end_by_retiring(_service: Service) -> None:
    App.objects.update(is_retired=True)


@pytest.mark.requirement("XB10", "X10")
@pytest.mark.parametrize("end", [end_by_disabling, end_by_unregistering, end_by_retiring])
def test_a_server_gets_the_error_gone_once_a_minute(
    service: Service, phone: Registered, end, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(service)
    answer = service.ask(push2(phone.client))
    assert (error_of(answer), disabled_client(answer)) == (("cancel", "gone"), phone.client)
    assert service.receive(push2(phone.client)) is None
    assert error_of(service.receive(publish(phone.node, phone.secret))) == NOT_FOUND
    pass_time(monkeypatch, seconds=61)
    assert disabled_client(service.ask(push2(phone.client))) == phone.client
    assert error_of(service.receive(push2(phone.client, sender="montague.test"))) == NOT_FOUND
    assert stored() == []


# Repetitions and merged wake-ups --------------------------------------------------------------------------------------


def test_a_repeated_stanza_is_answered_like_the_first_and_stored_once_also_by_another_process(
    service: Service, phone: Registered
) -> None:
    repeated = publish(phone.node, phone.secret, summary(last_message_body="x"), stanza_id="one")
    answers = service.receive_all(repeated, repeated) + service.receive_all(repeated)
    assert [answer.get("type") for answer in answers] == ["result"] * 3
    named = push2(phone.client, encrypted(), stanza_id="one")
    assert [each.receive(named) for each in (service, Service())] == [None, None]
    assert len(stored()) == 2


# The push of an older mod_cloud_notify, which gives all IQs to a device one id.
CONSTANT_ID = Path(__file__).with_name("constant_iq_id.xml").read_text()


@pytest.mark.parametrize(
    "inside",
    [
        CONSTANT_ID,
        *(
            publish("NODE", "SECRET", inside, stanza_id="constant-per-device")
            for inside in (summary(), summary(last_message_body="x"), tigase("AAAA"), tigase("AAAA", voip=True))
        ),
    ],
    ids=["recorded", "empty", "text", "ciphertext", "call"],
)
def test_a_later_push_under_the_same_stanza_id_counts(
    service: Service, phone: Registered, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = inside.replace("NODE", phone.node).replace("SECRET", phone.secret)
    for seconds in (0, 60, 3, 1):
        end_open("delivered")
        pass_time(monkeypatch, seconds=seconds)
        assert service.ask(push).get("type") == "result"
    assert len(stored()) == 3  # the last one, a second later, is a repetition


def test_a_stanza_that_was_not_answered_is_a_repetition_on_the_next_connection(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = publish(phone.node, phone.secret, tigase("AAAA"), stanza_id="one")
    service.receive(push)
    service.connect()
    for _ in range(2):
        pass_time(monkeypatch, minutes=1)
        assert service.ask(push).get("type") == "result"
    assert len(stored()) == 1
    service.receive(publish(phone.node, phone.secret, tigase("BBBB"), stanza_id="one"))
    assert len(stored()) == 2


@pytest.mark.requirement("XB15", "X15")
@pytest.mark.parametrize("inside", ["", encrypted("AAAA"), rfc8291("AAAA")])
def test_three_identical_pushes_at_once_are_one_delivery(service: Service, phone: Registered, inside: str) -> None:
    assert service.receive_all(*(push2(phone.client, inside) for _ in range(3))) == []
    assert len(stored()) == 1


@pytest.mark.parametrize(
    ("state", "seconds_left", "is_merged"),
    [
        ("pending", 1800, True),  # and lives as long as the later one does
        ("pending", 30, False),  # a worker may be closing it at this moment
        ("ambiguous", 1800, False),  # it may have reached the device before the later push came
    ],
)
def test_a_wake_up_that_waits_serves_later_ones_if_it_is_certain_to_come_after_them(
    service: Service,
    phone: Registered,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    seconds_left: int,
    is_merged: bool,
) -> None:
    service.receive(push2(phone.client))
    OpenNotification.objects.update(state=state)
    [waiting] = stored()
    left = (waiting.expires_at - waiting.created_at).total_seconds() - seconds_left
    pass_time(monkeypatch, seconds=left)
    assert service.receive(push2(phone.client)) is None
    same, *later = stored()
    assert len(later) == (not is_merged)
    assert round((same.expires_at - waiting.expires_at).total_seconds() / 60) == is_merged * left // 60
    assert {each.collapse_id for each in later} <= {same.collapse_id}


def test_a_payload_that_is_too_large_is_not_stored(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client, encrypted(b64encode(bytes(3 * MAX_CONTENT_BYTES)).decode())))
    [notification] = stored()
    assert notification.message is None
    assert content(notification).data == {"v": "1", "k": "wake", "a": content(notification).data["a"], "x": "truncated"}


@pytest.mark.requirement("XB21")
def test_a_push_that_was_answered_with_wait_may_come_again(service: Service, phone: Registered, monkeypatch) -> None:
    service = Service(Rates(calls_per_minute=1))
    first, second = (push2(phone.client, encrypted(text, voip=True), stanza_id=text) for text in ("AAAA", "BBBB"))
    service.receive(first)
    assert error_of(service.receive(second)) == BUSY
    pass_time(monkeypatch, seconds=61)
    assert service.receive(second) is None
    assert len(stored()) == 2


def beyond_limits() -> dict[tuple[str, str], int]:
    """Return the numbers of pushes beyond each limit, by effect and limit, as they stand in the last minutes."""
    rows = BeyondLimit.objects.filter(installation_id="").values_list("effect", "push_limit", "count")
    return {(effect, limit): number for effect, limit, number in rows}


@pytest.mark.requirement("XB15", "X15")
def test_pushes_beyond_each_limit_are_counted_for_their_device(service: Service, phone: Registered) -> None:
    service = Service(Rates(payloads_per_minute=2, calls_per_minute=1, pushes_of_domain=(Limit(8, 60.0),)))
    messages = [push2(phone.client, encrypted(text(n))) for n in range(4)]
    calls = [push2(phone.client, encrypted(text(n), voip=True)) for n in range(3)]
    answers = service.receive_all(*messages, *calls)
    answers += service.receive_all(push2(phone.client)) + service.receive_all(push2(phone.client))
    assert [error_of(answer) for answer in answers] == [BUSY] * 3
    assert beyond_limits() == {
        ("shortened", DeviceLimit.PAYLOADS): 2,
        ("merged", DeviceLimit.WAKE_UPS): 1,
        ("refused", DeviceLimit.CALLS): 2,
        ("refused", DeviceLimit.DOMAIN): 1,
    }
    shortened = Notification.objects.exclude(shortened_by="")
    assert {(row.shortened_by, row.message) for row in shortened} == {(DeviceLimit.PAYLOADS, None)}
    of_device = BeyondLimit.objects.exclude(installation_id="")
    assert {row.installation_id for row in of_device} == {str(Device.objects.get().pk)}
    assert sum(row.count for row in of_device) == 5  # the domain was refused without a look at its device
    assert set(XMPP.push_limits) == set(DeviceLimit)


def test_a_ciphertext_that_may_not_wait_for_its_phone_is_shortened(
    service: Service, phone: Registered, settings: LazySettings
) -> None:
    settings.MAX_OPEN_PER_ROUTE = 1
    for number in range(2):
        assert service.receive(push2(phone.client, encrypted(text(number)))) is None
    assert beyond_limits() == {("shortened", "waiting"): 1}


# Content for the device -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("XB8", "X8")
def test_an_app_may_have_calls_shown_as_messages(service: Service) -> None:
    App.objects.update(calls_as_alerts=True)
    apple = service.register(voip_token=CALL_TOKEN)
    google = service.register(platform="fcm", device_id="another")
    service.receive_all(push2(apple.client, "<voip/>"), push2(google.client, "<voip/>"))
    assert sorted(n.grade for n in stored()) == ["high", "voip"]
    assert {seconds_to_live(n) for n in stored()} == {30}


@pytest.mark.parametrize(
    ("style", "keys"),
    [
        ("generic", {"v", "k", "a", "e", "f", "i"}),
        ("tigase", {"encrypted", "iv"}),
        ("rfc8291", {"rfc8291", "iv"}),
        ("conversations", {"account"}),
    ],
)
def test_payload_styles(service: Service, phone: Registered, style: str, keys: set[str]) -> None:
    App.objects.update(style=style)
    service.receive(push2(phone.client, encrypted("AAAA")))
    [notification] = stored()
    assert content(notification).data.keys() == keys
    assert content(notification).text == "New message"


# Privacy --------------------------------------------------------------------------------------------------------------


def test_the_text_of_a_forwarded_message_is_dropped_unless_the_app_passes_texts_on_or_refuses_them(
    service: Service, phone: Registered
) -> None:
    service.receive(push2(phone.client, FORWARDED))
    App.objects.update(passes_texts=True, style="conversations")
    service.receive(push2(service.register(device_id="other").client, FORWARDED))
    assert [n.message for n in stored()] == [None, None]
    assert all(b"Wherefore" not in (n.wake or b"") for n in stored())
    App.objects.update(style="generic")
    service.receive(push2(phone.client, FORWARDED))
    assert (content(stored()[-1]).text, content(stored()[-1]).data["b"]) == ("Wherefore art thou?",) * 2
    App.objects.update(passes_texts=False, refuses_texts=True)
    assert error_of(service.receive(push2(phone.client, FORWARDED))) == ("cancel", "policy-violation")


def test_the_row_of_a_device_keeps_the_announcing_address_and_no_account(service: Service, phone: Registered) -> None:
    def remembered() -> str | None:
        return Device.objects.get().announced_from

    service.receive(push2(phone.client, encrypted("AAAA"), to=f"5891b5b522@{SERVICE}"))
    assert remembered() == "5891b5b522"
    service.receive(push2(phone.client, encrypted("BBBB")))
    assert remembered() == ""
    service.receive(push2(phone.client, encrypted("CCCC"), sender="juliet@capulet.test"))
    assert remembered() is None
    assert Device.objects.get().pushed_at >= timezone.now() - timedelta(minutes=1)


def test_a_batch_takes_a_handful_of_statements_whatever_its_size(service: Service, phone: Registered) -> None:
    pushes = [push2(phone.client, encrypted(b64encode(bytes([n])).decode())) for n in range(50)]
    service.receive(pushes[0])
    with statements() as sent:
        service.receive_all(*pushes[1:])
    assert len(stored()) == 50
    assert len([each for each in sent if "SAVEPOINT" not in each]) <= 7
