"""Outgoing stanzas, compared as parsed trees."""

import pytest

from xmpp_bridge.codec import answers
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.pushes.forms import FormField
from xmpp_bridge.codec.tests.recorded import same_tree
from xmpp_bridge.messages import Origin, StanzaError

ID = "a+b/c=@-'\"<&" + "x" * 64
ORIGIN = Origin("iq", ID, "user's&server.test", "app@push.test")
HEAD = "id='a+b/c=@-&apos;&quot;&lt;&amp;" + "x" * 64 + "' from='app@push.test' to='user&apos;s&amp;server.test'"
COMMANDS = "http://jabber.org/protocol/commands"


def assert_is(ours: bytes, expected: str) -> None:
    assert same_tree(parse(ours), parse(expected.encode()))


def test_a_result_echoes_the_id_and_answers_from_where_it_was_asked() -> None:
    assert_is(answers.write_result_iq(ORIGIN), f"<iq type='result' {HEAD}/>")


@pytest.mark.requirement("XB12", "X12")
def test_an_error_has_no_namespace_of_a_client() -> None:
    error = StanzaError("modify", "bad-request", "token: <missing>")
    stanzas = "urn:ietf:params:xml:ns:xmpp-stanzas"
    ours = answers.write_error(ORIGIN, error, by="push.test")
    assert_is(
        ours,
        f"<iq type='error' {HEAD}><error type='modify' by='push.test'><bad-request xmlns='{stanzas}'/>"
        f"<text xmlns='{stanzas}'>token: &lt;missing&gt;</text></error></iq>",
    )
    assert b"jabber:client" not in ours


def test_an_answer_to_a_message_without_an_id_has_none() -> None:
    origin = Origin("message", "", "a.test", "push.test")
    assert b" id=" not in answers.write_error(origin, StanzaError("cancel", "item-not-found"), by="push.test")


@pytest.mark.requirement("XB3", "X3")
def test_disco() -> None:
    query = parse(answers.write_disco_info(ORIGIN, name="Push"))[0]
    assert [each.attrib for each in query if each.tag.endswith("identity")] == [
        {"category": "pubsub", "type": "push", "name": "Push"}
    ]
    assert [each.get("var") for each in query if each.tag.endswith("feature")] == [
        "http://jabber.org/protocol/disco#info",
        "http://jabber.org/protocol/disco#items",
        "http://jabber.org/protocol/commands",
        "urn:xmpp:ping",
        "urn:xmpp:push:0",
        "urn:xmpp:push2:0",
    ]
    assert_is(
        answers.write_items(ORIGIN, COMMANDS, {"do-it": "Do it"}),
        f"<iq type='result' {HEAD}><query xmlns='http://jabber.org/protocol/disco#items' node='{COMMANDS}'>"
        "<item jid='app@push.test' node='do-it' name='Do it'/></query></iq>",
    )


def test_a_form_of_a_command_and_its_result() -> None:
    fields = [FormField("token", "Token", is_required=True), FormField("app", "App", "list-single", options=("a", "b"))]
    ours = answers.write_command_form(ORIGIN, "do-it", "s1", title="T", instructions="I", fields=fields)
    assert_is(
        ours,
        f"<iq type='result' {HEAD}><command xmlns='{COMMANDS}' node='do-it' sessionid='s1' status='executing'>"
        "<actions execute='complete'><complete/></actions>"
        "<x xmlns='jabber:x:data' type='form'><title>T</title><instructions>I</instructions>"
        "<field var='token' type='text-single' label='Token'><required/></field>"
        "<field var='app' type='list-single' label='App'><option label='a'><value>a</value></option>"
        "<option label='b'><value>b</value></option></field></x></command></iq>",
    )
    assert_is(
        answers.write_command_result(ORIGIN, "do-it", "s1", {"client": "c"}),
        f"<iq type='result' {HEAD}><command xmlns='{COMMANDS}' node='do-it' sessionid='s1' status='completed'>"
        "<x xmlns='jabber:x:data' type='result'><field var='client'><value>c</value></field></x></command></iq>",
    )
    assert_is(
        answers.write_command_canceled(ORIGIN, "do-it", "s1"),
        f"<iq type='result' {HEAD}><command xmlns='{COMMANDS}' node='do-it' sessionid='s1' status='canceled'/></iq>",
    )


def test_our_ping() -> None:
    assert_is(
        answers.write_ping("p1", sender="push.test", to="test"),
        "<iq type='get' id='p1' from='push.test' to='test'><ping xmlns='urn:xmpp:ping'/></iq>",
    )
