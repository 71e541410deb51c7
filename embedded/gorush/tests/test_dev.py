from embedded.gorush.gateway import Settings

REQUEST = {"notifications": [{"platform": 1, "topic": "im.status", "tokens": ["ok-1"], "message": "m"}]}


async def listed(client, **parameters: object) -> dict:
    return await (await client.get("/dev/pushes", params=parameters)).json()


def test_pushes_are_read_step_by_step(run):
    async def scenario(client):
        for _ in range(3):
            await client.post("/api/push", json=REQUEST)
        first = await listed(client, limit=2)
        assert ([each["id"] for each in first["pushes"]], first["last_id"]) == ([1, 2], 2)
        rest = await listed(client, since=first["last_id"])
        assert ([each["id"] for each in rest["pushes"]], rest["last_id"]) == ([3], 3)
        assert (await listed(client, since=3)) == rest | {"pushes": []}
        assert rest["counts"] == {"ok-1": {"accepted": 3, "refused": 0}}

    run(scenario)


def test_pushes_can_be_forgotten(run):
    async def scenario(client):
        await client.post("/api/push", json=REQUEST)
        assert (await client.delete("/dev/pushes")).status == 204
        assert await listed(client) == {"pushes": [], "last_id": 0, "counts": {}}

    run(scenario)


def test_pushes_outlive_the_server_when_it_has_a_file(run, tmp_path):
    settings = Settings(data=tmp_path / "pushes.sqlite3")

    async def before(client):
        await client.post("/api/push", json=REQUEST)

    async def after(client):
        assert len((await listed(client))["pushes"]) == 1

    run(before, settings)
    run(after, settings)


def test_refuses_a_since_that_is_no_number(run):
    async def scenario(client):
        assert (await client.get("/dev/pushes", params={"since": "x"})).status == 400

    run(scenario)
