"""The stanzas of the canary: commands of an app, and a push of its user's server. Pure."""

from collections.abc import Mapping

from xmpp_bridge.codec.elements import write
from xmpp_bridge.codec.names import COMMANDS, PUBLISH_OPTIONS, PUBSUB, PUSH, PUSH_SUMMARY
from xmpp_bridge.codec.pushes.forms import FORM_TYPE, write_values

REGISTER, UNREGISTER = "register-push-apns", "unregister-push-apns"


def write_command(stanza_id: str, node: str, fields: Mapping[str, str], *, account: str, service: str) -> str:
    """Return an ad-hoc command of the app of an account, with its form."""
    command = write("command", write_values(fields, "submit"), xmlns=COMMANDS, node=node)
    return write("iq", command, type="set", id=stanza_id, from_=f"{account}/canary", to=service)


def write_push(stanza_id: str, node: str, secret: str, *, server: str, service: str) -> str:
    """Return a push of XEP-0357, as a user's server sends it for a message whose text it withholds."""
    summary = write_values({FORM_TYPE: PUSH_SUMMARY, "message-count": "1"}, "submit")
    item = write("item", write("notification", summary, xmlns=PUSH))
    options = write_values({FORM_TYPE: PUBLISH_OPTIONS, "secret": secret}, "submit")
    pubsub = write("pubsub", write("publish", item, node=node), write("publish-options", options), xmlns=PUBSUB)
    return write("iq", pubsub, type="set", id=stanza_id, from_=server, to=service)
