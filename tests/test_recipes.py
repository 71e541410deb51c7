"""Each shell block of the documents is a recipe that can be followed.

Bash runs every block on a stage, and each call that it makes is compared with what it names: targets of make, commands
and options of manage.py, services of compose.yaml, units, values of the chart, paths of the server. Some blocks are
carried out here, from the text of the page.
"""

import functools
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from django_otp.plugins.otp_totp.models import TOTPDevice

from kit.buckets.shared import SharedBuckets
from kit.db.base import fetch
from notifications.gateways.gorush import models
from notifications.gateways.gorush.errors import key_of, parse, seed_rules
from pushserver.console.models import ApiToken
from pushserver.tests.test_deploy import given_by_compose, given_by_systemd, problems
from tests.drills.test_restore import archiving_to
from tests.recipes.calls import COMPOSE, SETTINGS, faults, read_curl, unknown_values
from tests.recipes.stage import PAGES, ROOT, STAND_INS, Call, Rehearsal, Stage, blocks, in_sentences, shell_blocks
from xmpp_bridge.tests.talking import APN_TOKEN, SERVICE, make_app

TOKEN = "psk_of_this_test"
OnStage = Callable[[str], tuple[Stage, list[Rehearsal]]]


@pytest.fixture(scope="module")
def on_stage(tmp_path_factory: pytest.TempPathFactory) -> OnStage:
    """Return ``on_stage(page)``: the stage on which the blocks of a page ran, once for all tests, and what they did."""

    @functools.cache
    def run(page: str) -> tuple[Stage, list[Rehearsal]]:
        stage = Stage(tmp_path_factory.mktemp("stage"), {"TOKEN": TOKEN})
        return stage, stage.rehearse(ROOT / page)

    return run


WITH_SHELL = [str(page.relative_to(ROOT)) for page in PAGES if shell_blocks(page)]


@pytest.mark.parametrize("page", WITH_SHELL)
def test_a_recipe_runs_and_what_it_names_exists_with_good_values_of_settings(
    on_stage: OnStage, page: str, tmp_path: Path
) -> None:
    _, rehearsals = on_stage(page)
    assert [rehearsal.fault for rehearsal in rehearsals if rehearsal.fault] == []
    assert [rehearsal.block.name for rehearsal in rehearsals if not (rehearsal.calls or rehearsal.variables)] == []
    called = [(rehearsal.block.name, call) for rehearsal in rehearsals for call in rehearsal.calls]
    assert [f"{name}: {fault}" for name, call in called for fault in faults(call)] == []
    given = {name: value for rehearsal in rehearsals for name, value in rehearsal.variables.items() if name in SETTINGS}
    assert not given or problems("web", given, tmp_path) == []


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES if blocks(page)])
def test_a_block_without_commands_has_a_language_of_its_own(page: str) -> None:
    """A block of commands or variables without a language would be followed by people and by no test."""
    first = re.compile(
        rf"^(?:\$ |[A-Z][A-Z0-9_]+=|(?:{'|'.join(map(re.escape, (*STAND_INS, '.venv/bin')))})\b)", re.MULTILINE
    )
    looks = [block.name for block in blocks(ROOT / page) if not block.language and first.search(block.text)]
    assert looks == [], "say that it is `sh`"


IN_SENTENCES = {str(page.relative_to(ROOT)): in_sentences(page) for page in PAGES}


@pytest.mark.parametrize("page", [page for page, commands in IN_SENTENCES.items() if commands])
def test_a_command_in_a_sentence_names_what_exists(tmp_path: Path, page: str) -> None:
    """It may leave out arguments, which a recipe may not."""
    stage = Stage(tmp_path)
    stage.prepare()
    for command in IN_SENTENCES[page]:
        rehearsal = stage.run(command)
        found = [rehearsal.fault, *(fault for call in rehearsal.calls for fault in faults(call))]
        assert [fault for fault in found if fault and "arguments are required" not in fault] == [], command.text


# What is carried out --------------------------------------------------------------------------------------------------
def calls_of(rehearsals: list[Rehearsal], program: str) -> list[Call]:
    return [call for rehearsal in rehearsals for call in rehearsal.calls if call.program == program]


def test_the_secrets_of_compose_are_those_that_it_mounts_and_the_server_takes_them(
    on_stage: OnStage, tmp_path: Path
) -> None:
    stage, _ = on_stage("docs/installation/compose.md")
    folder = stage.checkout / "secrets"
    assert sorted(path.name for path in folder.iterdir()) == sorted(COMPOSE["secrets"])
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    dot_env = dict(line.split("=", 1) for line in (stage.checkout / ".env").read_text(encoding="utf-8").splitlines())
    assert problems("web", given_by_compose("web", folder, **dot_env), tmp_path) == []


def test_the_secrets_of_the_units_are_taken_by_the_server(on_stage: OnStage, tmp_path: Path) -> None:
    stage, _ = on_stage("docs/installation/systemd.md")
    folder = stage.root / "etc/push-server/secrets"
    texts = {path.name: path.read_text(encoding="utf-8").strip() for path in folder.iterdir()}
    assert problems("web", given_by_systemd("web", tmp_path, texts), tmp_path) == []
    password = texts["redis_url"].split(":")[2].partition("@")[0]
    redis = (stage.root / "etc/redis/redis.conf").read_text(encoding="utf-8")
    assert redis == f"requirepass {password}\nappendonly yes\n"
    assert (stage.root / "etc/push-server/gorush").read_text(encoding="utf-8").count("=YOUR_") == 2


@pytest.mark.django_db
def test_postgresql_has_the_settings_that_recipes_alter(on_stage: OnStage) -> None:
    given = [call.given for page in WITH_SHELL for call in calls_of(on_stage(page)[1], "psql")]
    statements = [statement.strip() for text in given for statement in text.split(";\n") if statement.strip()]
    altered = [re.match(r"ALTER SYSTEM SET (\w+) = |CREATE (?:ROLE|DATABASE) ", statement) for statement in statements]
    assert None not in altered
    known = {name for (name,) in fetch("SELECT name FROM pg_settings")}
    names = {found[1] for found in altered if found and found[1]}
    assert {"archive_mode", "max_locks_per_transaction"} <= names <= known


def test_the_backup_of_the_page_is_that_of_the_drill(on_stage: OnStage) -> None:
    stage, rehearsals = on_stage("docs/backup.md")
    [altered] = calls_of(rehearsals, "psql")
    wanted = archiving_to(stage.root / "mnt/archive")
    assert dict(re.findall(r"ALTER SYSTEM SET (\w+) = '?(.*?)'?;\n", altered.given)) == wanted
    for call in calls_of(rehearsals, "pg_basebackup"):
        assert {"--pgdata", "--checkpoint=fast", "--wal-method=stream"} <= set(call.arguments)


@pytest.fixture
def _calls_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr("pushserver.console.toolkit.throttling.own_buckets", lambda own=SharedBuckets(): own)  # noqa: B008


@pytest.mark.django_db
@pytest.mark.usefixtures("_calls_are_free")
def test_the_calls_of_the_api_are_answered(on_stage: OnStage, settings: Any) -> None:
    settings.XMPP_COMPONENT_JID = SERVICE
    make_app()
    _, rehearsals = on_stage("docs/api.md")
    for call in calls_of(rehearsals, "manage.py"):
        call_command(*call.arguments, stdout=StringIO(), stderr=StringIO())
    text = ApiToken(name="of this test", scopes=ApiToken.Scope.values).issue(by="anna", now=timezone.now()).text
    calls = calls_of(rehearsals, "curl")
    for call in calls:
        method, path, headers, data = read_curl(call)
        sent = {name: value.replace(TOKEN, text) for name, value in headers.items()}
        body = data.replace("…", APN_TOKEN)
        response = Client(headers=sent).generic(method, path, body, sent.get("Content-Type", "application/json"))
        assert response.status_code == 200, (call, response.content)
    assert {read_curl(call)[0] for call in calls} == {"GET", "POST"}


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["docs/installation/compose.md", "docs/installation/systemd.md"])
def test_the_last_step_of_an_installation_says_whether_it_is_ready(on_stage: OnStage, page: str) -> None:
    [call] = calls_of(on_stage(page)[1], "curl")
    assert read_curl(call)[1] == "/readyz"
    assert b"database" in Client().get("/readyz").content


@pytest.mark.django_db
def test_a_person_without_the_phone_logs_in_after_the_recipe(on_stage: OnStage) -> None:
    """The command of the page removes the second factor of that person alone."""
    for name in ("NAME", "somebody-else"):
        TOTPDevice.objects.create(user=User.objects.create(username=name), name=name)
    [call] = calls_of(on_stage("docs/console.md")[1], "python")
    call_command(*call.arguments[1:])
    assert list(TOTPDevice.objects.values_list("name", flat=True)) == ["somebody-else"]


@pytest.mark.django_db
def test_the_error_rule_of_the_example_is_one_more(on_stage: OnStage, monkeypatch: pytest.MonkeyPatch) -> None:
    [rule] = [block for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "yaml"]
    new = parse(rule.text)
    assert not {key_of(rule) for rule in new} & {key_of(rule) for rule in seed_rules()}
    monkeypatch.setattr(models, "seed_rules", lambda: (*seed_rules(), *new))
    [call] = [each for each in calls_of(on_stage("CONTRIBUTING.md")[1], ".venv/bin/python") if len(each.arguments) > 1]
    call_command(*call.arguments[1:], verbosity=0)
    assert models.GatewayErrorRule.objects.filter(code=new[0].code, origin="seed").exists()


def test_values_of_the_chart_in_the_page_are_those_that_it_has() -> None:
    given = [block for block in blocks(ROOT / "docs/installation/chart.md") if block.language == "yaml"]
    values = [yaml.safe_load(block.text) for block in given]
    ours = [each for each in values if "rules" not in each]  # that block is of the adapter for metrics
    assert len(ours) >= 2
    assert [fault for each in ours for fault in unknown_values(each)] == []
