"""Decoding of stanzas beyond the recorded ones: tolerated forms, malformed requests, stanzas without an answer; and the
stanzas that we write.
"""

from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.messages import Grade
from xmpp_bridge.codec import answers
from xmpp_bridge.codec.answers import FormField
from xmpp_bridge.codec.elements import NS, BrokenStream, parse
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.codec.tests.test_recorded import STANZAS, same_tree, stanza_bytes
from xmpp_bridge.messages import Command, Errors, Ignored, IqAnswer, Origin, PushNotification, Refused, StanzaError

IV = "ZGVmZ2hpamtsbW5v"
DATA_FORM = "<x xmlns='jabber:x:data' type='submit'>%s</x>"


def decoded(xml: str) -> object:
    return decode(parse(xml.encode()))


def message(inside: str, attributes: str = "from='a.test' to='push.test' id='1'") -> object:
    return decoded(f"<message {attributes}>{inside}</message>")


def iq(inside: str, attributes: str = "type='set' from='a.test' to='push.test' id='1'") -> object:
    return decoded(f"<iq {attributes}>{inside}</iq>")


def push2(inside: str, attributes: str = "") -> object:
    return message(f"<notification xmlns='urn:xmpp:push2:0' {attributes}>{inside}</notification>")


def publish(notification: str, options: str = "", node: str = "node='n'") -> object:
    item = f"<item>{notification}</item>" if notification else ""
    return iq(f"<pubsub xmlns='http://jabber.org/protocol/pubsub'><publish {node}>{item}</publish>{options}</pubsub>")


def secret_form(value: str = "s") -> str:
    form_type = "<field var='FORM_TYPE'><value>http://jabber.org/protocol/pubsub#publish-options</value></field>"
    fields = f"{form_type}<field var='secret'><value>{value}</value></field>"
    return f"<publish-options xmlns='http://jabber.org/protocol/pubsub'>{DATA_FORM % fields}</publish-options>"


CLIENT = "<client>c</client>"
PUBLISHED = "<notification xmlns='urn:xmpp:push:0'/>"


@pytest.mark.requirement("XB8", "X8")
@pytest.mark.parametrize(
    ("inside", "attributes", "grade"),
    [
        (CLIENT, "", Grade.NORMAL),
        (CLIENT, "priority='high'", Grade.HIGH),
        (CLIENT, "priority='urgent'", Grade.NORMAL),
        (f"{CLIENT}<encrypted iv='{IV}' type='voip'>AAAA</encrypted>", "priority='high'", Grade.VOIP),
        (f"{CLIENT}<encrypted iv='{IV}'>AAAA</encrypted>", "", Grade.NORMAL),
        (f"{CLIENT}<priority>low</priority>", "", Grade.LOW),
        (f"{CLIENT}<priority>high</priority>", "", Grade.HIGH),
        (f"{CLIENT}<priority>whatever</priority>", "", Grade.NORMAL),
        (f"{CLIENT}<voip/>", "", Grade.VOIP),
        (f"{CLIENT}<priority>low</priority><voip/>", "", Grade.VOIP),
        (f"{CLIENT}<unknown xmlns='urn:example'/><other>x</other>", "future='1'", Grade.NORMAL),
    ],
)
def test_the_grade_of_push2(inside: str, attributes: str, grade: Grade) -> None:
    shown = push2(inside, attributes)
    assert isinstance(shown, PushNotification)
    assert shown.grade is grade


def test_space_around_client_string_and_ciphertext_is_stripped_and_nothing_else_changed() -> None:
    longest = push2(f"<client>{'c' * 1024}</client><encrypted>AAAA</encrypted>")
    assert isinstance(longest, PushNotification)
    assert longest.payload is not None
    assert longest.payload.iv == ""
    shown = push2(f"<client>\n a&amp;b c \n</client><encrypted iv='{IV}'>\n AA\nAA \n</encrypted>")
    assert isinstance(shown, PushNotification)
    assert shown.payload is not None
    assert (shown.client, shown.payload.text, shown.payload.iv) == ("a&b c", "AA\nAA", IV)


@pytest.mark.requirement("XB19")
@pytest.mark.parametrize(
    "inside",
    [
        "",
        "<client/>",
        "<client>  </client>",
        "<client>a</client><client>a</client>",
        f"<client>{'c' * 1025}</client>",
        f"{CLIENT}<encrypted iv='{IV}'/>",
        f"{CLIENT}<encrypted iv='{IV}'>not base64!</encrypted>",
        f"{CLIENT}<encrypted iv='{IV}'>AAA</encrypted>",
        f"{CLIENT}<encrypted iv='AAAA'>AAAA</encrypted>",
        f"{CLIENT}<encrypted iv=''>AAAA</encrypted>",
        f"{CLIENT}<encrypted iv='%%%'>AAAA</encrypted>",
        f"{CLIENT}<encrypted xmlns='urn:xmpp:sce:rfc8291:0'/>",
        f"{CLIENT}<encrypted xmlns='urn:xmpp:sce:rfc8291:0'><payload>é</payload></encrypted>",
    ],
)
def test_a_push_that_is_wrong_is_malformed(inside: str) -> None:
    assert push2(inside) == Refused(Origin("message", "1", "a.test", "push.test"), Errors.BAD_REQUEST)
    one = f"<notification xmlns='urn:xmpp:push2:0'>{CLIENT}</notification>"
    assert isinstance(message(one + one), Refused)


@pytest.mark.parametrize(
    ("notification", "node"),
    [
        ("", "node='n'"),
        ("<notification xmlns='urn:other'/>", "node='n'"),
        *((PUBLISHED, node) for node in ("", "node=''", f"node='{'n' * 1025}'")),
    ],
)
def test_a_publication_without_a_push_or_a_usable_node_is_malformed(notification: str, node: str) -> None:
    assert isinstance(publish(notification, secret_form(), node), Refused)


def test_options_are_found_inside_and_outside_of_pubsub() -> None:
    inside, none = publish(PUBLISHED, secret_form("in")), publish(PUBLISHED)
    outside = iq(
        "<pubsub xmlns='http://jabber.org/protocol/pubsub'><publish node='n'><item>"
        f"{PUBLISHED}</item></publish></pubsub>{secret_form('out')}"
    )
    assert [each.secret for each in (inside, outside, none)] == ["in", "out", ""]  # type: ignore[attr-defined]
    assert [each.grade for each in (inside, outside, none)] == [Grade.LOW] * 3  # type: ignore[attr-defined]


def test_a_forwarded_stanza_without_a_message_or_a_body_is_a_forward_without_text() -> None:
    for forwarded in ("", "<message xmlns='jabber:client'/>", "<presence xmlns='jabber:client'/>"):
        shown = push2(f"{CLIENT}<forwarded xmlns='urn:xmpp:forward:0'>{forwarded}</forwarded>")
        assert isinstance(shown, PushNotification)
        assert (shown.is_forward, shown.body) == (True, "")


@pytest.mark.parametrize(
    ("iq_type", "inside", "condition"),
    [
        ("get", "<query xmlns='jabber:iq:version'/>", "service-unavailable"),
        ("set", "<query xmlns='jabber:iq:roster'/>", "service-unavailable"),
        ("set", "", "service-unavailable"),
        (
            "get",
            "<pubsub xmlns='http://jabber.org/protocol/pubsub'><items node='x'/></pubsub>",
            "feature-not-implemented",
        ),
        ("set", "<pubsub xmlns='http://jabber.org/protocol/pubsub'><subscribe/></pubsub>", "feature-not-implemented"),
        ("set", "<pubsub xmlns='http://jabber.org/protocol/pubsub#owner'/>", "feature-not-implemented"),
    ],
)
def test_a_request_that_we_do_not_serve_is_answered(iq_type: str, inside: str, condition: str) -> None:
    shown = iq(inside, f"type='{iq_type}' from='a.test' to='push.test' id='1'")
    assert shown == Refused(Origin("iq", "1", "a.test", "push.test"), StanzaError("cancel", condition))


@pytest.mark.requirement("XB13", "X13")
@pytest.mark.parametrize(
    "xml",
    [
        "<presence from='a.test' to='push.test'/>",
        "<presence from='a.test' to='push.test' type='subscribe'/>",
        "<message from='a.test' to='push.test' id='1'><body>hello</body></message>",
        "<message from='a.test' to='push.test' id='1'/>",
        (
            "<message type='error' from='a.test' to='push.test' id='1'>"
            "<notification xmlns='urn:xmpp:push2:0'><client>c</client></notification></message>"
        ),
        "<message to='push.test'><notification xmlns='urn:xmpp:push2:0'/></message>",
        "<message from='a.test'><notification xmlns='urn:xmpp:push2:0'/></message>",
        "<iq type='set' from='a.test' to='push.test'><ping xmlns='urn:xmpp:ping'/></iq>",
        f"<iq type='get' from='a.test' to='push.test' id='{'i' * 1025}'/>",
        "<something/>",
    ],
)
def test_a_stanza_that_needs_no_answer_is_ignored(xml: str) -> None:
    assert isinstance(decoded(xml), Ignored)


@pytest.mark.requirement("XB13", "X13")
@pytest.mark.parametrize(("iq_type", "is_error"), [("result", False), ("error", True)])
def test_an_answer_is_not_answered(iq_type: str, is_error: bool) -> None:
    shown = iq("", f"type='{iq_type}' from='a.test' to='push.test' id='ours'")
    assert shown == IqAnswer("ours", "a.test", is_error)
    for no_type in ("type='odd'", ""):
        assert isinstance(iq("", f"{no_type} from='a.test' to='push.test' id='1'"), Refused)


@pytest.mark.parametrize(
    ("name", "attributes", "is_answered"),
    [
        ("message", {"from": "a", "to": "b"}, True),
        ("iq", {"from": "a", "to": "b", "id": "1", "type": "set"}, True),
        ("iq", {"from": "a", "to": "b", "id": "1", "type": "result"}, False),
        ("iq", {"from": "a", "to": "b", "type": "set"}, False),
        ("message", {"from": "a", "to": "b", "type": "error"}, False),
        ("message", {"to": "b"}, False),
        ("presence", {"from": "a", "to": "b"}, False),
    ],
)
def test_a_stanza_that_is_too_large_is_malformed_if_it_is_a_request(name: str, attributes, is_answered: bool) -> None:
    assert isinstance(decode(Element(name, attributes), is_too_large=True), Refused) is is_answered


def test_commands_are_decoded_with_their_submitted_form() -> None:
    fields = "<field var='token'><value>t</value></field><field var='empty'/><field><value>x</value></field>"
    commands = "xmlns='http://jabber.org/protocol/commands'"
    shown = iq(f"<command {commands} node='n' action='complete' sessionid='s'>{DATA_FORM % fields}</command>")
    assert isinstance(shown, Command)
    assert (shown.node, shown.action, shown.session) == ("n", "complete", "s")
    assert shown.fields == {"token": "t", "empty": "", "": "x"}
    unsubmitted = iq(f"<command {commands} node='n'><x xmlns='jabber:x:data' type='cancel'/></command>")
    assert isinstance(unsubmitted, Command)
    assert (unsubmitted.action, unsubmitted.fields) == ("execute", None)
    assert isinstance(iq(f"<command {commands}/>"), Refused)
    assert isinstance(iq(f"<command {commands} node='n' sessionid='{'s' * 1025}'/>"), Refused)


def test_a_stanza_of_a_live_stream_is_decoded_like_a_recorded_one() -> None:
    for entry in STANZAS:
        data = stanza_bytes(entry["file"])
        live = data.replace(b"<" + entry["stanza"].encode(), f"<{entry['stanza']} xmlns='{NS.COMPONENT}'".encode(), 1)
        assert decode(parse(live)) == decode(parse(data))


@pytest.mark.requirement("XB19")
@given(st.sampled_from([e["file"] for e in STANZAS]), st.integers(0, 5000), st.binary(min_size=1, max_size=3))
def test_a_recorded_stanza_with_changed_bytes_is_decoded_or_is_no_xml(name: str, at: int, other: bytes) -> None:
    data = stanza_bytes(name)
    at %= len(data)
    try:
        tree = parse(data[:at] + other + data[at + len(other) :])
    except BrokenStream:
        return
    decode(tree)


def test_no_word_of_a_broken_stanza_is_in_its_error() -> None:
    with pytest.raises(BrokenStream) as caught:
        parse(b"<message><body>secret text</message>")
    assert (str(caught.value), caught.value.__cause__) == ("", None)


# Outgoing stanzas, compared as parsed trees ---------------------------------------------------------------------------

ID = "a+b/c=@-'\"<&" + "x" * 64
ORIGIN = Origin("iq", ID, "user's&server.test", "app@push.test")
HEAD = "id='a+b/c=@-&apos;&quot;&lt;&amp;" + "x" * 64 + "' from='app@push.test' to='user&apos;s&amp;server.test'"
COMMANDS = "http://jabber.org/protocol/commands"


def assert_is(ours: bytes, expected: str) -> None:
    assert same_tree(parse(ours), parse(expected.encode()))


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


def test_a_form_of_a_command_and_its_result() -> None:
    fields = [FormField("token", "Token", is_required=True), FormField("app", "App", "list-single", options=("a", "b"))]
    ours = answers.write_command(ORIGIN, "do-it", "s1", "executing", answers.write_form("T", "I", fields))
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
        answers.write_command(ORIGIN, "do-it", "s1", "completed", answers.write_values({"client": "c"}, "result")),
        f"<iq type='result' {HEAD}><command xmlns='{COMMANDS}' node='do-it' sessionid='s1' status='completed'>"
        "<x xmlns='jabber:x:data' type='result'><field var='client'><value>c</value></field></x></command></iq>",
    )
    assert_is(
        answers.write_command(ORIGIN, "do-it", "s1", "canceled"),
        f"<iq type='result' {HEAD}><command xmlns='{COMMANDS}' node='do-it' sessionid='s1' status='canceled'/></iq>",
    )
