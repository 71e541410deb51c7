"""The parts: what each gateway and bridge adds to the console, health, metrics and reports. One line each."""

from collections.abc import Sequence

from pushserver.console.gorush.part import GORUSH
from pushserver.console.part import Part
from pushserver.console.waku.part import WAKU
from pushserver.console.xmpp.part import XMPP

PARTS = [WAKU, XMPP, GORUSH]


def parts() -> Sequence[Part]:
    """Return all parts."""
    return PARTS


def parts_in_use() -> list[Part]:
    """Return the parts that the settings enable."""
    return [part for part in PARTS if part.is_in_use()]
