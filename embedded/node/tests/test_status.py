"""Answers of a node about itself, and about paths that it lacks, as measured on nwaku v0.38.1."""

import pytest

from embedded.node.settings import Settings


def test_health_names_the_node_and_each_protocol(run):
    async def scenario(client):
        report = await (await client.get("/health")).json()
        assert (report["nodeHealth"], report["connectionStatus"]) == ("READY", "PartiallyConnected")
        states = {name: state for each in report["protocolsHealth"] for name, state in each.items() if name != "desc"}
        assert (states["Relay"], states["Store"], states["Filter"]) == ("READY", "READY", "NOT_MOUNTED")
        assert sum(name.endswith(" Client") for name in states) == 4
        assert "Legacy Store" not in states

    run(scenario)


def test_a_node_with_four_peers_is_connected(run):
    async def scenario(client):
        assert (await (await client.get("/health")).json())["connectionStatus"] == "Connected"

    run(scenario, Settings(peers=("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")))


@pytest.mark.parametrize("path", ["/info", "/debug/v1/info"])
def test_info_has_addresses_and_a_record(run, path):
    async def scenario(client):
        assert list(await (await client.get(path)).json()) == ["listenAddresses", "enrUri"]

    run(scenario)


@pytest.mark.parametrize("path", ["/version", "/debug/v1/version"])
def test_version_is_plain_text(run, path):
    async def scenario(client):
        reply = await client.get(path)
        assert (reply.content_type, (await reply.text())[:2]) == ("text/plain", "v0")

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing/here"),
        ("PUT", "/health"),
        ("HEAD", "/health"),
        ("HEAD", "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32"),
        ("GET", "/admin/v1/peers"),
        ("GET", "/store/v1/messages"),
    ],
)
def test_answers_404_and_nothing_else_to_unknown_paths_and_methods(run, method, path):
    async def scenario(client):
        reply = await client.request(method, path)
        assert (reply.status, await reply.read()) == (404, b"")

    run(scenario, Settings(shards=("/waku/2/rs/16/32",)))


@pytest.mark.parametrize("path", ["/health", "/version", "/store/v3/messages", "/nothing/here"])
def test_every_answer_ends_its_connection(run, path):
    async def scenario(client):
        assert (await client.get(path)).headers["Connection"] == "close"

    run(scenario)
