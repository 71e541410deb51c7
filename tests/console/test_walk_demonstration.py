"""Demonstration for a first visitor: it prints its people, how to find them, and the staged faults."""

import pytest
from django.conf import LazySettings
from playwright.sync_api import Page, expect

from embedded.demo.people import SEED, make_people
from embedded.management.commands.demo import STAGED, Command
from tests import factories
from tests.console.test_browser import show
from tests.console.test_walk import find, log_in
from waku_bridge.codec.keys import key_hash

NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn"]
STAGED_FAULTS = ["Eva", "Finn"]


def test_the_demonstration_prints_people_chat_keys_and_purposes_and_no_secret() -> None:
    people = make_people(SEED, version=0)
    first, *lines, _ = Command().notes()
    assert first == STAGED
    assert [line.partition(" ")[0].rstrip(",") for line in lines] == NAMES
    assert [name for name, line in zip(NAMES, lines, strict=True) if "STAGED FAULT" in line] == STAGED_FAULTS
    for person, line in zip(people, lines, strict=True):
        assert person.chat_key in line
        assert person.purpose in line
        for secret in (person.address.device_token, person.phone.access_token):
            assert secret not in line


@pytest.mark.django_db(transaction=True)
def test_every_page_shows_that_faults_are_staged_and_find_leads_to_each_person(
    visitor: Page, settings: LazySettings
) -> None:
    settings.DEMONSTRATION = True
    people = make_people(SEED, version=0)
    for person in people:
        factories.make_registration(public_key_hash=key_hash(person.public_key))
    log_in(visitor, "support")
    expect(visitor.locator("#demonstration")).to_contain_text("staged")
    visitor.get_by_role("link", name="People of the demonstration").click()
    listed = visitor.locator("#people li")
    expect(listed).to_have_count(len(NAMES))
    show(visitor, "demonstration")
    marked = [
        row.inner_text().partition(" ")[0].rstrip(",") for row in listed.all() if "staged fault" in row.inner_text()
    ]
    assert marked == STAGED_FAULTS

    eva = people[4]
    visitor.get_by_role("link", name="Eva").click()
    expect(visitor.locator("#main")).to_contain_text(key_hash(eva.public_key).hex())
    find(visitor, eva.chat_key)
    expect(visitor.locator("#main")).to_contain_text(key_hash(eva.public_key).hex())


@pytest.mark.django_db(transaction=True)
def test_a_server_without_a_demonstration_mentions_none(visitor: Page) -> None:
    log_in(visitor, "support")
    visitor.goto("/admin/find/")
    expect(visitor.locator("#demonstration, #people")).to_have_count(0)
