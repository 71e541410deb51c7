"""The whole way with the real gorush: phone and sender at the Waku node, Apple and Google at the end."""

from collections.abc import Iterator

import psycopg
import pytest
from coincurve import PrivateKey

from notifications.messages import Report, ReportError
from pushserver.embedded.ports import free_port
from pushserver.embedded.postgres import EmbeddedPostgres
from pushserver.embedded.valkey import EmbeddedValkey
from pushserver.supervisor.guard import Guard
from tests.flows import fleet as processes
from tests.flows.fleet import Fleet
from tests.flows.network import APN_TOPIC, Network, android, iphone, new_sender
from tests.interop.servers import Server
from waku_bridge.client.registering import Address
from waku_bridge.client.session import NoAnswer
from waku_bridge.codec.keys import Identity

pytestmark = pytest.mark.peers
DATABASE = "interop"
SERVER = Identity(PrivateKey(b"\x02" * 32))  # SERVER_PRIVATE_KEY of the test session


@pytest.fixture(scope="module")
def network(
    real_gorush: Server,
    postgres: EmbeddedPostgres,
    valkey: EmbeddedValkey,
    guard: Guard,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Network]:
    """Every process of the server, between a node and the gorush under test."""
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
    port = free_port()
    environment = {
        "DATABASE_URL": postgres.url(DATABASE),
        "REDIS_URL": valkey.url.removesuffix("/0") + "/8",
        "WAKU_NODES": f"http://127.0.0.1:{port}",
        "GORUSH_URL": real_gorush.url,
        "REPLY_DEADLINE_SECONDS": "5",
    }
    fleet = Fleet(tmp_path_factory.mktemp("interop-flow"), environment, guard)
    fleet.run(processes.migrate())
    fleet.start(processes.node(port), *processes.services(fleet.folder).values())
    processes.wait_for_http(f"{environment['WAKU_NODES']}/health")
    # The fakes keep the same record as the development gorush does.
    network = Network(environment["WAKU_NODES"], real_gorush.record_url, environment["DATABASE_URL"], SERVER.pub33)
    yield network
    network.close()
    fleet.stop(*fleet.running)


@pytest.mark.parametrize("address", [iphone(), android()], ids=["iOS", "Android"])
def test_a_message_wakes_the_phone_once(network: Network, address: Address) -> None:
    sender, phone = new_sender(), network.phone(address)
    reports = network.notify(sender, network.query(sender, phone))
    assert reports == (Report(phone.identity.key_hash, phone.installation_id, success=True),)
    (push,) = network.pushes_to(address)
    assert (push["error"], push["topic"]) == ("", APN_TOPIC if push["platform"] == "ios" else "")


@pytest.mark.parametrize("address", [iphone("dead-"), android("expired-")], ids=["iOS", "Android"])
def test_a_dead_token_is_told_and_its_phone_is_found_no_more(network: Network, address: Address) -> None:
    sender, phone = new_sender(), network.phone(address)
    (report,) = network.notify(sender, network.query(sender, phone))
    assert (report.success, report.error) == (False, ReportError.NOT_REGISTERED)
    with pytest.raises(NoAnswer):
        network.query(sender, phone, timeout_seconds=1)
    assert len(network.pushes_to(address)) == 1


@pytest.mark.parametrize("address", [iphone("flaky1-"), android("flaky1-")], ids=["iOS", "Android"])
def test_what_apple_and_google_refuse_for_a_moment_arrives_later(network: Network, address: Address) -> None:
    sender, phone = new_sender(), network.phone(address)
    (report,) = network.notify(sender, network.query(sender, phone))
    assert report.success
    refused, accepted = network.pushes_to(address)
    assert (bool(refused["error"]), accepted["error"]) == (True, "")
    assert refused["collapse_id"] == accepted["collapse_id"]
