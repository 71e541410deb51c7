"""Each number of docs/limits.md has a test, and each test its number."""

from pushserver.api.tests import test_api
from pushserver.tests import test_console_login
from tests.limits import test_kept, test_waku, test_xmpp
from tests.limits.page import NUMBERS, PAGE, ROWS
from waku_bridge.inbound.tests import test_remains
from waku_bridge.reading.tests import test_dead_letters

# Tests of other folders meet some of the numbers.
MODULES = (test_api, test_console_login, test_dead_letters, test_kept, test_remains, test_waku, test_xmpp)


def shown(place: int) -> str:
    """Return the words around a number of the page."""
    return f"{NUMBERS[place]} in …{PAGE[max(0, place - 60) : place + 40]}…"


def test_each_number_of_the_page_is_met_by_a_test() -> None:
    met = {place for row in ROWS for place in row.found}
    assert [shown(place) for place in NUMBERS if place not in met] == []


def test_each_test_has_its_numbers_on_the_page() -> None:
    assert [row.words for row in ROWS if len(row.found) != row.words.count("{")] == []
