"""Wrong configuration: what an operator reads, and that nothing starts."""

import ast
import os
import re
import subprocess
import sys

from django.core.checks import Error, run_checks

from pushserver.environment import Problem
from pushserver.supervisor.processes import PROJECT


def test_the_configuration_of_the_tests_has_no_problem():
    assert [message for message in run_checks() if message.is_serious()] == []


def test_each_problem_is_an_error_with_its_id_and_hint(settings):
    settings.CONFIGURATION_PROBLEMS = [Problem("pushserver.E001", "X is wrong.", "Use Y.")]
    assert Error("X is wrong.", hint="Use Y.", id="pushserver.E001") in run_checks()


def test_no_two_problems_have_the_same_id():
    """One number per call of `report`: an id stands for one thing to do."""
    sources = [
        (PROJECT / "pushserver" / name).read_text(encoding="utf-8") for name in ("settings.py", "environment.py")
    ]
    calls = [call for source in sources for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call)]
    numbers = [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "attr", "") == "report"]
    assert len(numbers) > 20
    assert sorted(numbers) == sorted(set(numbers))


def test_every_variable_stands_in_the_table_of_the_readme():
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1] for row in readme.splitlines() if row.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(…?[A-Z_]+)`", row)}
    read = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', (PROJECT / "pushserver" / "settings.py").read_text("utf-8")))
    endings = tuple(name.removeprefix("…") for name in documented if name.startswith("…"))
    assert len(read) > 60
    assert sorted(name for name in read - documented if not name.endswith(endings)) == []


WRONG = {
    "PORT": ("0", "E002"),
    "WAKU_NODES": ("ftp://node", "E003"),
    "REDIS_URL_FILE": ("/nowhere", "E004"),
    "SERVER_PRIVATE_KEY": ("5ecret", "E005"),
    "FIELD_ENCRYPTION_KEYS": ("5ecret", "E006"),
    "SECRET_KEY": ("", "E007"),
    "DATABASE_URL": ("mysql://user:5ecret@host/name", "E008"),
    "REDIS_URL": ("amqp://host", ""),  # its file comes first
    "WAKU_PUBSUB_TOPICS": ("status", "E010"),
    "WAKU_STORE_RECOVERY_HOURS": ("72", "E019"),
    "PUSH_PRIORITY": ("urgent", "E011"),
    "REPORTS_HOUR": ("24", "E002"),
    "EMAIL_ENCRYPTION": ("rot13", "E021"),
    "REPORT_RECIPIENTS": ("ann@example.org", "E023"),
    "CHANNEL_IN_FLIGHT": ("0", "E002"),
    "DEAD_TOKEN_SHARE": ("20", "E002"),
    "METRICS_PORT": ("65536", "E002"),
    "METRICS_TOKEN": ("5ecret", "E024"),
    "REPORTS_LAKE": ("ftp://5ecret", "E015"),
    "OPENED_RECORD_RETENTION_DAYS": ("6", "E002"),
    "GORUSH_HOOK_SECRET": ("5ecret: with a colon, which gorush would drop", "E013"),
}


def test_up_names_every_wrong_value_in_a_line_of_its_own_and_does_not_start(tmp_path):
    environment = os.environ | {name: value for name, (value, _) in WRONG.items()} | {"DATA_DIR": str(tmp_path)}
    command = [sys.executable, str(PROJECT / "manage.py"), "up"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    found = [(line.split(":")[0], line.split(": ")[1].split()[0]) for line in ended.stderr.strip().splitlines()]
    assert sorted(found) == sorted((f"pushserver.{number}", name) for name, (_, number) in WRONG.items() if number)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "5ecret" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_metrics_that_cannot_be_made_is_a_problem(tmp_path):
    environment = os.environ | {"METRICS_DIR": "/dev/null/metrics", "DATA_DIR": str(tmp_path)}
    command = [sys.executable, str(PROJECT / "manage.py"), "check"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert "pushserver.E014" in ended.stderr
    assert ended.returncode == 1
