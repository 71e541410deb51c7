"""How a state looks: its word, as in code and tables, on the colour of its family.

The word says everything, and the colour only helps to find it. There is one table for all apps, so that a word looks
the same wherever it stands.
"""

from enum import StrEnum

from django.utils.html import format_html
from django.utils.safestring import SafeString


class Family(StrEnum):
    """Groups of states that look alike. The values are class names of the style sheet `kit/console.css`."""

    GOOD = "good"  # as it should be
    WAITING = "waiting"  # under way: ends by itself, usually soon
    CAUTION = "doubt"  # not well, or not known to be, and nothing is lost by that
    BAD = "bad"  # lost, or somebody has to do something
    QUIET = "quiet"  # over, or out of use, and nobody's fault


_WORDS = {
    Family.GOOD: """active answered confirmed delivered fine passed present processed registered revived running
        succeeded success""",
    Family.WAITING: "in_flight pending postponed published received pending_key waiting",
    Family.CAUTION: """ambiguous dead dead_token deviates disabled drained interrupted paused retrying token_died
        transient unconfirmed""",
    Family.BAD: """abandoned broken config expired failed internal_error missing payload tripped undeliverable
        unreachable wrong_token""",
    Family.QUIET: """coalesced dropped duplicate not_registered off refreshed refused settings_changed suppressed
        token_changed unknown unregistered withdrawn""",
}
FAMILIES = {word: family for family, words in _WORDS.items() for word in words.split()}


def label(word: str) -> SafeString:
    """Return a word in the colour of its family. A word that is not in the table gets the quiet one."""
    return format_html('<span class="state-word {}">{}</span>', FAMILIES.get(word, Family.QUIET), word)
