"""Namespaces and names of the protocols, as they are written in stanzas."""

COMPONENT = "jabber:component:accept"
STREAMS = "http://etherx.jabber.org/streams"
STREAM_ERRORS = "urn:ietf:params:xml:ns:xmpp-streams"
STANZA_ERRORS = "urn:ietf:params:xml:ns:xmpp-stanzas"

PUSH2 = "urn:xmpp:push2:0"
SCE_RFC8291 = "urn:xmpp:sce:rfc8291:0"
FORWARD = "urn:xmpp:forward:0"

PUSH = "urn:xmpp:push:0"
PUSH_SUMMARY = "urn:xmpp:push:summary"
PUBSUB = "http://jabber.org/protocol/pubsub"
PUBLISH_OPTIONS = "http://jabber.org/protocol/pubsub#publish-options"
TIGASE_ENCRYPT = "tigase:push:encrypt:0"
TIGASE_PRIORITY = "tigase:push:priority:0"

DISCO_INFO = "http://jabber.org/protocol/disco#info"
DISCO_ITEMS = "http://jabber.org/protocol/disco#items"
COMMANDS = "http://jabber.org/protocol/commands"
DATA_FORM = "jabber:x:data"
PING = "urn:xmpp:ping"
