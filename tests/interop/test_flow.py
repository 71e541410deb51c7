"""Whole way with two real nodes, the server at the one and phones and senders at the other, the real gorush, and the
fakes of Apple and Google at its end.
"""

from collections.abc import Callable, Iterator

import pytest

from notifications.messages import Report, ReportError
from tests.interop.conftest import StartServer
from tests.interop.nodes import Pair, RelayReader
from tests.rig.network import APP_TOPIC, Network, android, iphone, new_sender
from tests.rig.peers import Server
from tests.rig.server import SERVER
from waku_bridge.client.session import NoAnswer
from waku_bridge.client.state import Address

pytestmark = pytest.mark.peers
Platform = Callable[..., Address]


@pytest.fixture(scope="module")
def network(real_pair: Pair, real_gorush: Server, start_server: StartServer) -> Iterator[Network]:
    with start_server(real_pair.here) as running:
        # The fakes keep the same record as the development gorush.
        record, database = real_gorush.record_url, running.environment["DATABASE_URL"]
        network = Network(real_pair.there, record, database, SERVER.pub33, node_type=RelayReader)
        yield network
        network.close()


@pytest.mark.parametrize("platform", [iphone, android], ids=["iOS", "Android"])
def test_a_message_wakes_the_phone_once(network: Network, platform: Platform) -> None:
    address = platform()
    sender, phone = new_sender(), network.phone(address)
    reports = network.notify(sender, network.query(sender, phone))
    assert reports == (Report(phone.identity.key_hash, phone.installation_id, success=True),)
    (push,) = network.pushes_to(address)
    assert (push["error"], push["topic"]) == ("", APP_TOPIC if push["platform"] == "ios" else "")


@pytest.mark.parametrize(("platform", "fate"), [(iphone, "dead-"), (android, "expired-")], ids=["iOS", "Android"])
def test_a_dead_token_is_reported_and_its_phone_is_found_no_more(
    network: Network, platform: Platform, fate: str
) -> None:
    address = platform(fate)
    sender, phone = new_sender(), network.phone(address)
    (report,) = network.notify(sender, network.query(sender, phone))
    assert (report.success, report.error) == (False, ReportError.NOT_REGISTERED)
    with pytest.raises(NoAnswer):
        network.query(sender, phone, timeout_seconds=1)
    assert len(network.pushes_to(address)) == 1


@pytest.mark.parametrize("platform", [iphone, android], ids=["iOS", "Android"])
def test_a_push_that_apple_and_google_refuse_for_a_moment_arrives_later(network: Network, platform: Platform) -> None:
    address = platform("flaky1-")
    sender, phone = new_sender(), network.phone(address)
    (report,) = network.notify(sender, network.query(sender, phone))
    assert report.success
    refused, accepted = network.pushes_to(address)
    assert (bool(refused["error"]), accepted["error"]) == (True, "")
    assert refused["collapse_id"] == accepted["collapse_id"]
