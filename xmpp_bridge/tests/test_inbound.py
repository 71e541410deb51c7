"""Pushes as users' servers send them: authorisation, storing, merging, and the answer to each push."""

from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from kit.buckets.bucket import Limit
from kit.db.clock import clock
from notifications.messages import Content
from notifications.models import BeyondLimit, Notification
from registrations.models import Route
from tests.statements import statements
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.jids import NOBODY
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.identity import route_tag
from xmpp_bridge.inbound import MAX_CONTENT_BYTES, Item, _key
from xmpp_bridge.messages import PushNotification
from xmpp_bridge.models import App, Device
from xmpp_bridge.operations import XmppOperations
from xmpp_bridge.rules.decisions import Decision, Domains, Verdict
from xmpp_bridge.rules.limits import DeviceLimit, Rates
from xmpp_bridge.tests.talking import (
    CALL_TOKEN,
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
FORWARDED = (
    "<forwarded xmlns='urn:xmpp:forward:0'><message xmlns='jabber:client' from='romeo@capulet.test/desk' "
    "to='juliet@capulet.test'><body>Wherefore art thou?</body></message></forwarded>"
)


@pytest.fixture
def phone(service: Service) -> Registered:
    return service.register()


def stored() -> list[Notification]:
    return list(Notification.objects.order_by("pk"))


def content(notification: Notification) -> Content:
    return Content.decode(notification.message or notification.wake or b"")


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
    assert (notification.request.bridge, notification.request.state) == ("xmpp", "answered")
    assert notification.route == Route.objects.get()
    device = Device.objects.get()
    assert content(notification).data == {"v": "1", "k": "wake", "a": route_tag(device.pk).hex()}
    assert bytes(notification.collapse_id or b"") == route_tag(device.pk)


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
    answer = service.receive(publish(phone.node, phone.secret, summary(last_message_body="x"), stanza_id="a+/=@-" * 20))
    assert answer is not None
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
    assert stored() == []


@pytest.mark.parametrize("domains", [Domains(denied={SERVER}), Domains(allowed={"montague.test"})])
def test_a_domain_that_is_not_served_learns_nothing_either(phone: Registered, domains: Domains) -> None:
    service = Service(domains=domains)
    assert error_of(service.receive(push2(phone.client))) == NOT_FOUND
    assert error_of(service.receive(publish(phone.node, phone.secret))) == NOT_FOUND


@pytest.mark.requirement("XB9", "X9")
def test_a_client_may_not_push(service: Service, phone: Registered) -> None:
    assert error_of(service.receive(push2(phone.client, sender="romeo@capulet.test/desk"))) == ("auth", "forbidden")
    assert error_of(service.receive(publish(phone.node, phone.secret, sender="capulet.test/x"))) == (
        "auth",
        "forbidden",
    )
    assert stored() == []


def test_a_server_may_push_in_the_name_of_an_account_and_in_any_spelling_of_its_domain(
    service: Service, phone: Registered
) -> None:
    assert service.receive(push2(phone.client, encrypted("AAAA"), sender="juliet@capulet.test")) is None
    assert service.receive(push2(phone.client, encrypted("BBBB"), sender="CAPULET.test.")) is None
    assert len(stored()) == 2


def test_an_answer_comes_from_the_address_that_was_written_to(service: Service) -> None:
    answer = service.receive(push2("nope", to=f"5891b5b522@{SERVICE}", stanza_id="n-unknown"))
    assert answer is not None
    assert (answer.get("from"), answer.get("id")) == (f"5891b5b522@{SERVICE}", "n-unknown")


def test_a_malformed_push_is_a_bad_request(service: Service, phone: Registered) -> None:
    assert error_of(service.receive(push2(phone.client, encrypted("not base64")))) == ("modify", "bad-request")
    assert error_of(service.receive(publish("", phone.secret))) == ("modify", "bad-request")


def test_too_many_unknown_clients_of_a_domain_get_no_answer_for_an_hour(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(Rates(unknown_per_hour=2))
    answers = [service.receive(push2(f"nope{n}")) for n in range(4)]
    assert [answer is not None for answer in answers] == [True, True, False, False]
    assert error_of(service.receive(publish("nope", "x"))) == NOT_FOUND
    assert error_of(service.receive(push2("nope", sender="montague.test"))) == NOT_FOUND
    assert service.receive(push2(phone.client)) is None
    assert len(stored()) == 1
    pass_time(monkeypatch, minutes=61)
    assert error_of(service.receive(push2("nope"))) == NOT_FOUND


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
    answer = service.receive(push2(phone.client))
    assert answer is not None
    assert (error_of(answer), disabled_client(answer)) == (("cancel", "gone"), phone.client)
    assert service.receive(push2(phone.client)) is None
    assert error_of(service.receive(publish(phone.node, phone.secret))) == NOT_FOUND
    pass_time(monkeypatch, seconds=61)
    answer = service.receive(push2(phone.client))
    assert answer is not None
    assert disabled_client(answer) == phone.client
    assert error_of(service.receive(push2(phone.client, sender="montague.test"))) == NOT_FOUND
    assert stored() == []


# Repetitions and merged wake-ups --------------------------------------------------------------------------------------


def test_a_repeated_stanza_is_answered_like_the_first_and_stored_once(service: Service, phone: Registered) -> None:
    repeated = publish(phone.node, phone.secret, summary(last_message_body="x"), stanza_id="one")
    answers = service.receive_all(repeated, repeated) + service.receive_all(repeated)
    assert [answer.get("type") for answer in answers] == ["result"] * 3
    assert len(stored()) == 1


def test_a_repeated_stanza_is_known_to_another_process_too(service: Service, phone: Registered) -> None:
    repeated = push2(phone.client, encrypted(), stanza_id="one")
    service.receive(repeated)
    assert Service().receive(repeated) is None
    assert len(stored()) == 1


# The push of an older mod_cloud_notify, which gives all IQs to a device one id.
CONSTANT_ID = Path(__file__).with_name("constant_iq_id.xml").read_text()


@pytest.mark.parametrize(
    "inside",
    [summary(), summary(last_message_body="x"), tigase("AAAA"), tigase("AAAA", voip=True)],
    ids=["empty", "text", "ciphertext", "call"],
)
def test_a_later_push_under_the_same_stanza_id_counts(
    service: Service, phone: Registered, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = publish(phone.node, phone.secret, inside, stanza_id="constant-per-device")
    for seconds in (0, 60, 3, 1):
        Notification.objects.filter(state="pending").update(state="delivered")
        pass_time(monkeypatch, seconds=seconds)
        answer = service.receive(push)
        assert answer is not None
        assert answer.get("type") == "result"
    assert len(stored()) == 3  # the last one, a second later, is a repetition


def test_a_server_with_one_stanza_id_for_a_device_wakes_it_every_time(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = CONSTANT_ID.replace("NODE", phone.node).replace("SECRET", phone.secret)
    for _ in range(2):
        assert service.receive(push) is not None
        Notification.objects.update(state="delivered")
        pass_time(monkeypatch, minutes=1)
    assert len(stored()) == 2


def test_a_stanza_that_was_not_answered_is_a_repetition_on_the_next_connection(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = publish(phone.node, phone.secret, tigase("AAAA"), stanza_id="one")
    service.receive(push)
    service.connect()
    for _ in range(2):
        pass_time(monkeypatch, minutes=1)
        assert service.receive(push) is not None
    assert len(stored()) == 1
    service.receive(publish(phone.node, phone.secret, tigase("BBBB"), stanza_id="one"))
    assert len(stored()) == 2


def test_two_calls_are_two_calls_whatever_they_contain(service: Service, phone: Registered) -> None:
    service.receive_all(*(push2(phone.client, inside) for inside in ("<voip/>", "<voip/>")))
    assert [n.grade for n in stored()] == ["voip", "voip"]


@pytest.mark.requirement("XB15", "X15")
@pytest.mark.parametrize("inside", ["", encrypted("AAAA"), rfc8291("AAAA")])
def test_three_identical_pushes_at_once_are_one_delivery(service: Service, phone: Registered, inside: str) -> None:
    assert service.receive_all(*(push2(phone.client, inside) for _ in range(3))) == []
    assert len(stored()) == 1


@pytest.mark.requirement("XB15", "X15")
def test_wake_ups_are_merged_into_one_at_once_and_one_for_all_that_follow(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.receive(push2(phone.client))
    Notification.objects.update(state="delivered")  # the wake-up has gone to the device
    for seconds in (2.5, 3, 3.5):
        pass_time(monkeypatch, seconds=2.5 if seconds == 2.5 else 0.5)
        assert service.receive(push2(phone.client)) is None
    first, trailing = stored()
    assert (first.state, trailing.state) == ("delivered", "retrying")
    assert trailing.next_attempt_at is not None
    assert timedelta(seconds=4.5) < trailing.next_attempt_at - first.created_at < timedelta(seconds=5.5)
    assert first.collapse_id == trailing.collapse_id


def test_a_wake_up_that_waits_serves_later_ones_and_lives_as_long_as_they_do(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.receive(push2(phone.client))
    [waiting] = stored()
    pass_time(monkeypatch, minutes=30)
    assert service.receive(push2(phone.client)) is None
    [same] = stored()
    assert same.expires_at - waiting.expires_at >= timedelta(minutes=30)


def test_a_wake_up_that_is_about_to_expire_serves_no_later_one(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be closing it at this moment."""
    service.receive(push2(phone.client))
    [waiting] = stored()
    left = waiting.expires_at - waiting.created_at
    pass_time(monkeypatch, seconds=left.total_seconds() - 30)
    assert service.receive(push2(phone.client)) is None
    old, later = stored()
    assert (old.expires_at, old.collapse_id) == (waiting.expires_at, later.collapse_id)


def test_a_wake_up_that_may_have_reached_its_device_before_serves_no_later_one(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.receive(push2(phone.client))
    Notification.objects.update(state="ambiguous")
    pass_time(monkeypatch, seconds=20)
    service.receive(push2(phone.client))
    pass_time(monkeypatch, seconds=20)
    service.receive(push2(phone.client))
    is_ambiguous, later = stored()
    assert (is_ambiguous.state, later.state) == ("ambiguous", "pending")
    assert is_ambiguous.collapse_id == later.collapse_id


def test_a_wake_up_that_was_planned_and_sent_early_serves_no_later_one(
    service: Service, phone: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        service.receive(push2(phone.client))
        Notification.objects.update(state="delivered")  # an operator sent the second one early
        pass_time(monkeypatch, seconds=2.1)
    service.receive(push2(phone.client))
    first, early, later = stored()
    assert (early.state, later.state) == ("delivered", "retrying")
    assert later.next_attempt_at is not None
    assert timedelta(seconds=4.5) < later.next_attempt_at - first.created_at < timedelta(seconds=5.5)


def test_a_background_wake_up_serves_none_that_is_to_be_shown(service: Service, phone: Registered) -> None:
    service.receive(publish(phone.node, phone.secret, summary()))
    service.receive(publish(phone.node, phone.secret, summary(last_message_body="x")))
    assert [n.grade for n in stored()] == ["low", "normal"]
    assert len({n.collapse_id for n in stored()}) == 2


def test_ciphertexts_are_never_merged(service: Service, phone: Registered) -> None:
    service.receive_all(*(push2(phone.client, encrypted(b64encode(bytes([n])).decode())) for n in range(5)))
    assert len({n.collapse_id for n in stored()}) == 5


def test_beyond_the_limit_a_ciphertext_is_a_wake_up(service: Service, phone: Registered) -> None:
    service = Service(Rates(payloads_per_minute=2))
    pushes = [push2(phone.client, encrypted(b64encode(bytes([n])).decode())) for n in range(5)]
    assert service.receive_all(*pushes) == []
    assert [bool(n.message) for n in stored()] == [True, True, False, False][: len(stored())]
    assert [content(n).data["k"] for n in stored()] == ["msg", "msg", "wake", "wake"][: len(stored())]


def test_a_payload_that_is_too_large_is_not_stored(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client, encrypted(b64encode(bytes(3 * MAX_CONTENT_BYTES)).decode())))
    [notification] = stored()
    assert notification.message is None
    assert content(notification).data == {"v": "1", "k": "wake", "a": content(notification).data["a"], "x": "truncated"}


def test_an_app_of_conversations_gets_no_text_either(service: Service) -> None:
    App.objects.update(passes_texts=True, style="conversations")
    phone = service.register()
    service.receive(push2(phone.client, FORWARDED))
    [notification] = stored()
    assert notification.message is None
    assert b"Wherefore" not in (notification.wake or b"")


@pytest.mark.requirement("XB15", "X15")
def test_a_call_is_never_merged_and_beyond_its_limit_the_server_waits(service: Service, phone: Registered) -> None:
    service = Service(Rates(calls_per_minute=2))
    calls = [push2(phone.client, encrypted(b64encode(bytes([n])).decode(), voip=True)) for n in range(3)]
    assert [error_of(answer) for answer in service.receive_all(*calls)] == [BUSY]
    assert [n.grade for n in stored()] == ["voip", "voip"]


HOSTILE = "evil.test"


def test_a_domain_uses_up_no_call_payload_or_wake_up_of_another_one_to_the_same_phone(
    service: Service, phone: Registered
) -> None:
    """A user may have a second account on a hostile server, and its device has the token of the same phone."""
    theirs = [service.register(sender=f"juliet{number}@{HOSTILE}/x") for number in range(20)]
    flood = [
        *(push2(theirs[0].client, encrypted(text(n), voip=True), sender=HOSTILE) for n in range(30)),
        *(push2(theirs[0].client, encrypted(text(n)), sender=HOSTILE) for n in range(100)),
        *(push2(device.client, sender=HOSTILE) for device in theirs),
    ]
    service.receive_all(*flood)
    Notification.objects.all().delete()
    honest = push2(phone.client, encrypted(voip=True)), push2(phone.client, encrypted()), push2(phone.client)
    assert service.receive_all(*honest) == []
    assert [(n.grade, bool(n.message)) for n in stored()] == [("voip", True), ("normal", True), ("normal", False)]
    assert stored()[-1].next_attempt_at <= clock.now()


@pytest.mark.requirement("XB21")
def test_a_push_that_was_answered_with_wait_may_come_again(service: Service, phone: Registered, monkeypatch) -> None:
    service = Service(Rates(calls_per_minute=1))
    first, second = (push2(phone.client, encrypted(text, voip=True), stanza_id=text) for text in ("AAAA", "BBBB"))
    service.receive(first)
    assert error_of(service.receive(second)) == BUSY
    pass_time(monkeypatch, seconds=61)
    assert service.receive(second) is None
    assert len(stored()) == 2


@pytest.mark.requirement("XB15", "X15")
def test_a_domain_beyond_its_limit_is_answered_with_wait_and_others_are_not(
    service: Service, phone: Registered
) -> None:
    other = service.register(sender="romeo@montague.test/x")
    service = Service(Rates(pushes_of_domain=(Limit(2, 2.0),)))
    pushes = [push2(phone.client, encrypted(b64encode(bytes([n])).decode())) for n in range(3)]
    assert [error_of(answer) for answer in service.receive_all(*pushes)] == [BUSY]
    assert service.receive(push2(other.client, sender="montague.test")) is None


def test_pushes_without_valid_credentials_use_up_no_limit_of_their_domain(service: Service, phone: Registered) -> None:
    service = Service(Rates(pushes_of_domain=(Limit(2, 2.0),)))
    forged = [error_of(service.receive(push2(f"nope{number}"))) for number in range(4)]
    assert forged == [NOT_FOUND, NOT_FOUND, BUSY, BUSY]
    assert service.receive(push2(phone.client)) is None
    assert len(stored()) == 1


def test_while_the_queue_is_full_pushes_are_answered_with_wait(
    service: Service, phone: Registered, monkeypatch
) -> None:
    monkeypatch.setattr("xmpp_bridge.inbound.own_admission", Full)
    assert error_of(service.receive(push2(phone.client, encrypted()))) == BUSY
    assert stored() == []
    assert beyond_limits() == {("refused", "queue"): 1}


def beyond_limits() -> dict[tuple[str, str], int]:
    """Return the numbers of pushes beyond each limit, by effect and limit, as they stand in the last minutes."""
    rows = BeyondLimit.objects.filter(installation_id="").values_list("effect", "push_limit", "count")
    return {(effect, limit): number for effect, limit, number in rows}


def test_pushes_beyond_each_limit_are_counted_for_their_device(service: Service, phone: Registered) -> None:
    service = Service(Rates(payloads_per_minute=2, calls_per_minute=1, pushes_of_domain=(Limit(8, 60.0),)))
    messages = [push2(phone.client, encrypted(text(n))) for n in range(4)]
    calls = [push2(phone.client, encrypted(text(n), voip=True)) for n in range(3)]
    service.receive_all(*messages, *calls)
    service.receive(push2(phone.client))
    service.receive(push2(phone.client))
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


def test_a_ciphertext_that_may_not_wait_for_its_device_is_shortened(
    service: Service, phone: Registered, settings: LazySettings
) -> None:
    settings.MAX_OPEN_PER_ROUTE = 1
    for number in range(2):
        service.receive(push2(phone.client, encrypted(text(number))))
    assert beyond_limits() == {("shortened", "waiting"): 1}


def test_every_limit_of_pushes_has_words() -> None:
    assert set(XmppOperations.push_limits) == set(DeviceLimit)


class Full:
    def refresh(self) -> None:
        pass

    def is_full(self, *_args: object, **_facts: object) -> bool:
        return True


# Content for the device -----------------------------------------------------------------------------------------------


def test_a_ciphertext_goes_on_as_it_came(service: Service, phone: Registered) -> None:
    text = b64encode(bytes(range(256))).decode()
    service.receive(push2(phone.client, encrypted(text)))
    service.receive(push2(phone.client, rfc8291("AAAA" + text)))
    first, second = stored()
    tag = route_tag(Device.objects.get().pk).hex()
    assert content(first).data == {"v": "1", "k": "msg", "a": tag, "e": text, "f": "j", "i": "ZGVmZ2hpamtsbW5v"}
    assert content(second).data == {"v": "1", "k": "msg", "a": tag, "e": "AAAA" + text, "f": "w"}
    assert Content.decode(first.wake or b"").data == {"v": "1", "k": "wake", "a": tag, "x": "truncated"}


@pytest.mark.requirement("XB8", "X8")
@pytest.mark.parametrize(
    ("inside", "attributes", "grade", "seconds"),
    [
        (encrypted(voip=True), "priority='high'", "voip", 30),
        ("", "priority='high'", "high", 3600),
        ("", "", "normal", 3600),
        ("<priority>low</priority>", "", "low", 3600),
        (encrypted(), "", "normal", 86400),
        ("<voip/>" + rfc8291(), "", "voip", 30),
    ],
)
def test_grade_and_time_to_live(
    service: Service, phone: Registered, inside: str, attributes: str, grade: str, seconds: int
) -> None:
    service.receive(push2(phone.client, inside, attributes=attributes))
    [notification] = stored()
    assert notification.grade == grade
    assert abs((notification.expires_at - notification.created_at).total_seconds() - seconds) < 1


def test_an_app_may_have_calls_shown_as_messages(service: Service) -> None:
    App.objects.update(calls_as_alerts=True)
    apple = service.register(voip_token=CALL_TOKEN)
    google = service.register(platform="fcm", device_id="another")
    service.receive_all(push2(apple.client, "<voip/>"), push2(google.client, "<voip/>"))
    assert sorted(n.grade for n in stored()) == ["high", "voip"]


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


def test_a_forwarded_message_is_a_wake_up_and_counted(service: Service, phone: Registered) -> None:
    service.receive(push2(phone.client, FORWARDED))
    [notification] = stored()
    assert notification.message is None
    assert content(notification).data["k"] == "wake"


def test_an_app_may_have_texts_passed_on_or_refused(service: Service, phone: Registered) -> None:
    App.objects.update(passes_texts=True)
    service.receive(push2(phone.client, FORWARDED))
    [notification] = stored()
    assert (content(notification).text, content(notification).data["b"]) == ("Wherefore art thou?",) * 2
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
