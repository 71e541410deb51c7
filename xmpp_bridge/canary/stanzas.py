"""The stanzas of the canary: commands of an app, and a push of its user's server. Pure."""

from collections.abc import Mapping

from xmpp_bridge.codec.elements import write
from xmpp_bridge.codec.names import COMMANDS, DATA_FORM, PUBLISH_OPTIONS, PUBSUB, PUSH, PUSH_SUMMARY

REGISTER, UNREGISTER = "register-push-apns", "unregister-push-apns"


def write_command(stanza_id: str, node: str, fields: Mapping[str, str], *, account: str, service: str) -> str:
    """Return an ad-hoc command of the app of an account, with its form."""
    command = write("command", _submitted(fields), xmlns=COMMANDS, node=node)
    return write("iq", command, type="set", id=stanza_id, from_=f"{account}/canary", to=service)


def write_push(stanza_id: str, node: str, secret: str, *, server: str, service: str) -> str:
    """Return a push of XEP-0357, as a user's server sends it for a message whose text it withholds."""
    summary = _submitted({"FORM_TYPE": PUSH_SUMMARY, "message-count": "1"})
    item = write("item", write("notification", summary, xmlns=PUSH))
    options = write("publish-options", _submitted({"FORM_TYPE": PUBLISH_OPTIONS, "secret": secret}))
    pubsub = write("pubsub", write("publish", item, node=node), options, xmlns=PUBSUB)
    return write("iq", pubsub, type="set", id=stanza_id, from_=server, to=service)


def _submitted(values: Mapping[str, str]) -> str:
    fields = [write("field", write("value", text=value), var=name) for name, value in values.items()]
    return write("x", *fields, xmlns=DATA_FORM, type="submit")
