"""Users of the demonstration at a real Prosody: one goes offline, the other writes, the push arrives (point 10)."""

import re
from pathlib import Path

import pytest

from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from tests.interop.xmpp.peers import USER_SERVER, USER_SERVER_SECRET, USERS
from tests.interop.xmpp.service import Service
from tests.rig.server import wait_until

pytestmark = pytest.mark.xmpp

CLIENTS = "xmpp-clients"
HAPPENED = (
    r"registered .*user=Juliet",
    r"went_offline .*user=Juliet",
    r"wrote .*to=Juliet",
    r"phone_was_pushed .*user=Juliet",
    r"came_back_and_read .*user=Juliet",
    r"notified .*dialect=mod_push2",
    r"notified .*dialect=draft",
    r"route_disabled .*dialect=draft",
)


def test_users_write_to_each_other_and_their_phones_are_pushed(push_service: Service, tmp_path: Path) -> None:
    fleet, secret = push_service.fleet, tmp_path / "secret"
    secret.write_text(USER_SERVER_SECRET)
    arguments = [f"--users={USERS}", f"--port={push_service.peer.c2s_port}", f"--server={USER_SERVER}"]
    arguments += [f"--secret-file={secret}", "--pause=0.2"]
    fleet.start(manage(CLIENTS, "xmpp_demo_clients", *arguments, stop_order=StopOrder.FRONT))
    process = fleet.running[CLIENTS]
    for event in HAPPENED:
        wait_until(lambda event=event: re.search(event, fleet.log(CLIENTS)), what=event)
    fleet.stop(CLIENTS)
    assert process.returncode == 0
    log = fleet.log(CLIENTS)
    assert "xmpp_demo_stopped" in log
    assert "Traceback" not in log
    assert "@capulet.test" not in log
