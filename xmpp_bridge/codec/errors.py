"""Exceptions of the codec. Neither holds anything of what the peer sent."""


class MalformedStanza(Exception):  # noqa: N818 - says what is wrong
    """The stanza is a request that we serve, in a wrong form. Its answer is bad-request."""


class BrokenStream(Exception):  # noqa: N818 - says what is wrong
    """The bytes are no XML stream, or hold a DTD, which XMPP forbids. The connection cannot be used any more."""
