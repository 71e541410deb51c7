"""Pictures of the README, which `make screenshots` takes again. The tests take them, too, and read the README."""

import os
import re
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from django.conf import LazySettings
from playwright.sync_api import Page

from pushserver.models import BridgeMinute, TrafficMinute
from tests.console.world import HEROINE, World, make_world
from tests.rig.budget import first_everyday
from xmpp_bridge.component.status import CONNECTED, END

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[2]
FOLDER = "docs/screenshots"
WRITTEN = os.environ.get("WRITE_PICTURES")
MAX_BYTES = 200_000
PNG = b"\x89PNG"
ADDRESSES = {
    "dashboard": "/admin/",
    "notifications": "/admin/notifications/notification/",
    "user": f"/admin/users/{HEROINE.hex()}/",
    "timeline": "/admin/timelines/{retried}/",
    "channels": "/admin/notifications/channel/",
    "xmpp": "/admin/timelines/{pushed}/",
    "devices": "/admin/xmpp_bridge/device/",
    "report": "/admin/reports/latency/",
}


@pytest.fixture
def world(alive: ThreadingHTTPServer, transactional_db: None, settings: LazySettings) -> World:
    settings.REPORTS_NIGHTLY = True
    settings.XMPP_COMPONENT_JID = "push.example.org"
    END.save(CONNECTED)
    BridgeMinute.objects.bulk_create(
        BridgeMinute(begin_at=row.begin_at, bridge="xmpp", request_count=row.request_count // 3, reply_count=0)
        for row in TrafficMinute.objects.all()
    )
    return make_world()


@pytest.mark.parametrize("names", [[*ADDRESSES]] if WRITTEN else first_everyday(["dashboard"], [*ADDRESSES]))
def test_pictures_of_the_main_pages_are_taken(world: World, operator: Page, tmp_path: Path, names: list[str]) -> None:
    operator.set_viewport_size({"width": 1340, "height": 820})
    folder = Path(WRITTEN or tmp_path)
    for name in names:
        operator.goto(ADDRESSES[name].format(retried=world.retried, pushed=world.pushed))
        operator.evaluate("document.fonts.ready")
        operator.screenshot(path=folder / f"{name}.png", animations="disabled")

    taken = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
    assert taken.keys() == set(names)
    assert {name: len(data) for name, data in taken.items() if len(data) > MAX_BYTES} == {}
    assert all(data.startswith(PNG) for data in taken.values())


def test_the_readme_shows_every_picture_with_a_description() -> None:
    shown = re.findall(rf"!\[([^\]]{{20,}})\]\({FOLDER}/(\w+)\.png\)", (ROOT / "README.md").read_text())

    assert sorted(name for _, name in shown) == sorted(ADDRESSES)
    assert {path.stem for path in (ROOT / FOLDER).iterdir()} == ADDRESSES.keys()
