"""JIDs: whose domain it is, and whether it is a server, an account or one client of an account."""

import re
import unicodedata
from dataclasses import dataclass

import idna

from xmpp_bridge.codec.limits import MAX_JID_CHARACTERS

_PLAIN_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class Jid:
    """An address in the one form in which it is compared: case-folded, the domain as ASCII."""

    local: str
    domain: str
    resource: str

    @property
    def bare(self) -> str:
        """Return the address of the account, without the client."""
        return f"{self.local}@{self.domain}" if self.local else self.domain


NOBODY = Jid("", "", "")


def parse_jid(text: str) -> Jid | None:
    """Return what a JID says, or None for a text that is none."""
    if len(text) > MAX_JID_CHARACTERS:
        return None
    bare, slash, resource = text.partition("/")
    local, at, domain = bare.rpartition("@")
    folded = parse_domain(domain)
    if not folded or (at and not local) or (slash and not resource):
        return None
    return Jid(unicodedata.normalize("NFC", local.casefold()), folded, resource)


def parse_domain(text: str) -> str:
    """Return a domain in the form in which it is compared, or an empty text when it is none."""
    if not text.isascii():  # UTS 46 also folds the case, and knows letters that have two forms, as ß
        try:
            text = idna.encode(text, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            return ""
    folded = text.lower().removesuffix(".")
    return folded if _PLAIN_DOMAIN.fullmatch(folded) and ".." not in folded else ""
