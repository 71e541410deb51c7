"""What can be wrong with a stanza. Neither exception holds anything of what the peer sent."""


class MalformedStanza(Exception):  # noqa: N818 - says what is wrong
    """The stanza is about something that we serve, and says it wrongly. It is answered with bad-request."""


class BrokenStream(Exception):  # noqa: N818 - says what is wrong
    """The bytes are no XML stream, or hold what is forbidden on one: DTDs and entities. The connection is of no use."""
