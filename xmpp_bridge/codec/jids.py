"""JIDs: the address of a server, of an account, or of one client of an account."""

import re
import unicodedata
from dataclasses import dataclass

import idna

from xmpp_bridge.codec.limits import MAX_JID_CHARACTERS

_PLAIN_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class Jid:
    """An address in the form in which addresses are compared: case-folded, the domain as ASCII."""

    local: str
    domain: str
    resource: str

    @property
    def bare(self) -> str:
        """The address without the resource: that of the account or the server."""
        return f"{self.local}@{self.domain}" if self.local else self.domain


NOBODY = Jid("", "", "")


def parse_jid(text: str) -> Jid | None:
    """Return the parts of a JID, or None for a text that is no JID."""
    if len(text) > MAX_JID_CHARACTERS:
        return None
    bare, slash, resource = text.partition("/")
    local, at, domain = bare.rpartition("@")
    folded = parse_domain(domain)
    if not folded or (at and not local) or (slash and not resource):
        return None
    return Jid(unicodedata.normalize("NFC", local.casefold()), folded, resource)


def parse_domain(text: str) -> str:
    """Return a domain in the form in which domains are compared, or an empty text if it is no domain."""
    if not text.isascii():  # UTS 46 also folds the case, and maps letters with two forms, such as ß
        try:
            text = idna.encode(text, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            return ""
    folded = text.lower().removesuffix(".")
    return folded if _PLAIN_DOMAIN.fullmatch(folded) and ".." not in folded else ""
