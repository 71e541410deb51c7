import pytest


def test_health_names_the_node_and_each_protocol(run):
    async def scenario(client):
        report = await (await client.get("/health")).json()
        assert (report["nodeHealth"], report["connectionStatus"]) == ("READY", "Connected")
        assert {"Relay": "READY"} in report["protocolsHealth"]
        assert {"Filter": "NOT_MOUNTED"} in report["protocolsHealth"]

    run(scenario)


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
    ("method", "path", "status"),
    [
        ("GET", "/nothing/here", 400),
        ("PUT", "/health", 400),
        ("GET", "/filter/v2/messages/x", 404),
        ("GET", "/admin/v1/peers", 404),
    ],
)
def test_answers_400_to_unknown_paths_and_404_to_unmounted_protocols(run, method, path, status):
    async def scenario(client):
        assert (await client.request(method, path)).status == status

    run(scenario)
