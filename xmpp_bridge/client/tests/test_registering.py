"""Registration by ad-hoc commands: the requests of an app, and its reading of the answers."""

from xml.etree.ElementTree import Element, fromstring

import pytest

from xmpp_bridge.client import registering
from xmpp_bridge.client.elements import COMMANDS, FORMS, Refused, element, error, submitted, values_of
from xmpp_bridge.client.registering import Cancelled, Device, FormAsked, Platform, Registered, Unregistered
from xmpp_bridge.client.tests.test_notifying import FOLDER, shape

SERVICE = "push.montague.test"
DEVICE = Device(Platform.FCM, "token", "device-1", app="messenger")


def answer(status: str, *children: Element, node: str = "register-push-fcm", session: str = "") -> Element:
    attributes = {"node": node, "status": status, "sessionid": session}
    return element("iq", "", {"type": "result"}, element("command", COMMANDS, attributes, *children))


def test_the_command_is_that_of_a_recorded_client() -> None:
    recorded = fromstring((FOLDER / "prosody13-adhoc-register-set.xml").read_text())[0]  # noqa: S314 - our own file
    values = values_of(recorded.find(f"{{{FORMS}}}x"))
    device = Device(Platform.FCM, values.pop("token"), values.pop("device-id", ""))
    command = registering.register(SERVICE, device, "1")[0]
    assert not values
    assert (command.tag, command.attrib) == (recorded.tag, recorded.attrib)
    assert sorted(map(str, shape(command)[3])) == sorted(map(str, shape(recorded)[3]))


@pytest.mark.parametrize(
    ("stanza", "shown"),
    [
        (
            answer("completed", submitted({"jid": SERVICE, "client": "c", "node": "n", "secret": "s"})),
            Registered(SERVICE, "c", "n", "s"),
        ),
        (answer("completed", node="unregister-push-fcm"), Unregistered()),
        (
            answer("executing", submitted({"token": "", "device-id": ""}), session="7"),
            FormAsked(("token", "device-id"), "7"),
        ),
        (answer("canceled"), Cancelled()),
        (element("iq", "", {"type": "error"}, error("auth", "forbidden")), Refused("auth", "forbidden")),
        (element("iq", "", {"type": "result"}), Refused("", "", "no command in the answer")),
    ],
)
def test_reads_every_answer(stanza: Element, shown: registering.Answer) -> None:
    assert registering.read_answer(stanza) == shown


def test_shows_no_token_and_no_secret() -> None:
    assert "token" not in repr(DEVICE)
    assert "device-1" not in repr(DEVICE)
    assert repr(Registered(SERVICE, "c", "n", "s")) == f"Registered(service='{SERVICE}')"
