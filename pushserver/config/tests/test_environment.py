"""The environment: every kind of settings, and the table of the variables that are read."""

import base64
import re
import stat
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from ssl import CERT_REQUIRED

import pytest
from django.conf import settings
from kombu.utils.url import parse_url
from redis import Redis

from kit.buckets.bucket import Limit
from pushserver.config import kinds
from pushserver.config.environment import GENERATED, Environment, GeneratedSecrets
from pushserver.config.kinds import SECP256K1_ORDER, TEXT, count, number, word, wrong_in_url
from pushserver.config.role import PROCESSES
from pushserver.management.commands.reference import meanings

KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
OTHER_KEY, FIRST = base64.urlsafe_b64encode(bytes(32)).decode(), [bytes(range(32))]


def problem_ids(env):
    return [problem.id for problem in env.problems]


# Each kind, with the default of the tests.
KINDS = {
    "text": (TEXT, "default"),
    "items": (kinds.ITEMS, "x,y"),
    "lake": (kinds.LAKE, "/default"),
    "flag": (kinds.FLAG, "0"),
    "flag that is on": (kinds.FLAG, "1"),
    "number": (number(1, 10), "5"),
    "count": (count(1, 10), "5"),
    "urls": (kinds.URLS, ""),
    "word": (word("INFO", "DEBUG"), "INFO"),
    "private key": (kinds.PRIVATE_KEY, ""),
    "field keys": (kinds.FIELD_KEYS, ""),
    "limits": (kinds.LIMITS, "1/1,2/2"),
    "Redis": (kinds.REDIS_URL, ""),
}
DEFAULT_LIMITS = (Limit(1, 1), Limit(2, 2))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", {"x": "x", "  x ": "x", "": "default", "   ": "default"}),
        ("items", {"a,b": ["a", "b"], " a , ,b,": ["a", "b"], "": ["x", "y"], ",": []}),
        (
            "lake",
            {text: text for text in ("/srv/lake", "./lake", "file:/srv/lake", "s3a://bucket/lake", "gs://bucket")},
        ),
        (
            "lake",
            {text: text for text in ("hdfs://host:8020/lake", "abfss://container@account.dfs.core.windows.net/a")},
        ),
        ("lake", {"s3a://bucket/a@b": "s3a://bucket/a@b"}),
        ("flag", {"1": True, "true": True, "YES": True, "On": True, "": False}),
        ("flag that is on", {"0": False, "false": False, "NO": False, "Off": False, "": True}),
        ("number", {"": 5, "1": 1, "10": 10, "2.5": 2.5, "1e1": 10}),
        ("count", {"7": 7}),
        ("urls", {"http://a:1": ["http://a:1"], "https://a/, http://[::1]:8645//": ["https://a", "http://[::1]:8645"]}),
        ("urls", {"": []}),
        ("word", {"": "INFO", "debug": "DEBUG", "Info": "INFO"}),
        ("private key", {n.to_bytes(32).hex(): n.to_bytes(32) for n in (1, SECP256K1_ORDER - 1)}),
        (
            "field keys",
            {KEY: FIRST, f"{KEY},{OTHER_KEY}": [*FIRST, bytes(32)], f" {KEY} , ": FIRST, KEY.rstrip("="): FIRST},
        ),
        ("limits", {"5/10, 60/3600": (Limit(5, 10), Limit(60, 3600)), "": DEFAULT_LIMITS}),
        ("Redis", {text: text for text in ("", "redis://:a%40b@redis:6379/1", "redis://redis", "redis://redis/")}),
    ],
)
def test_a_value_is_read_or_else_its_default(kind, values):
    for text, value in values.items():
        env = Environment({"NAME": text})
        assert (env("NAME", *KINDS[kind]), env.problems) == (value, []), text


LONG = "5ecret" * 11


@pytest.mark.parametrize(
    ("kind", "problem", "default", "texts"),
    [
        ("lake", "bad_lake", "/default", ["lake", "ftp://5ecret@host"]),
        ("lake", "password_in_lake", "/default",
         ["s3a://AKIA:5ecret@bucket/lake", "s3a://AKIA:5e/cret@bucket", "gs://:5ecret@b"]),
        ("flag", "bad_flag", False, ["maybe", LONG]),
        ("number", "bad_number", 5, ["x", "0.9", "10.1", "nan", "inf", "-inf", "1,5", LONG]),
        ("urls", "bad_urls", [], ["a:1", "ftp://a", "http://", "http://a:x", "http://a,b", "http://[::1", " , ", LONG]),
        ("urls", "bad_urls", [], ["http://a:0", "http://a:65536", "http://::1:8645", "http://a b", "http://a\nb"]),
        ("urls", "bad_urls", [], ["http://u:5ecret@a", "http://:5ecret@a", "http://a?b", "http://a#b", "http://:8645"]),
        ("urls", "bad_urls", [], ["http://$HOST", "http://<node>:8645"]),
        ("word", "bad_choice", "INFO", ["WARN"]),
        ("private key", "bad_private_key", b"", ["zz" * 32, "01" * 31, "01" * 33, "00" * 32, "ff" * 32, LONG]),
        ("private key", "bad_private_key", b"", [SECP256K1_ORDER.to_bytes(32).hex()]),
        ("field keys", "bad_field_keys", [],
         [",", "short", KEY[:-4], f"{KEY},nonsense", "!" * 43, "é" * 43, LONG]),
        ("limits", "bad_limits", DEFAULT_LIMITS, ["5", "5/10", "0/1,1/2", "5/10,60/10", "5/10,60/3600,1/1"]),
        ("limits", "bad_limits", DEFAULT_LIMITS, ["a/b,c/d", "-1/1,2/2", ",,"]),
    ],
)  # fmt: skip
def test_anything_else_is_a_problem_that_does_not_tell_a_secret(kind, problem, default, texts):
    for text in texts:
        env = Environment({"NAME": text})
        assert env("NAME", *KINDS[kind]) == default, text
        assert problem_ids(env) == [f"pushserver.{problem}"]
        assert not [part for part in ("5ecret", "5e/cret") if part in repr(env.problems)]


POSTGRES, REDIS = ("postgresql", "postgres"), ("redis", "rediss")


@pytest.mark.parametrize(
    ("schemes", "url"),
    [
        (POSTGRES, "postgresql://push:b%40r%2F%25@127.0.0.1:5432/push"),
        (POSTGRES, "postgres://push@one:5432,two:5433,[2001:db8::1]:5432/push?sslmode=verify-full"),
        (POSTGRES, "postgresql:///push?host=/run/postgresql"),
        (POSTGRES, "postgresql://push@%2Frun%2Fpostgresql/push"),
        (POSTGRES, "postgresql://a.user+b:p!&'()+*,;=:^|\"ä@db_1/push"),
        (REDIS, "redis://:pa%23ss@[::1]:6379/15"),
        (REDIS, "redis://push@example.org@redis".replace("@e", "%40e")),
        (REDIS, "rediss://redis.example.org"),
    ],
)
def test_a_url_that_all_libraries_read_alike_has_nothing_wrong(schemes, url):
    assert wrong_in_url(url, schemes) == ""


@pytest.mark.parametrize(
    ("schemes", "url", "words"),
    [
        (POSTGRES, "postgresql://push:b@5ecret@127.0.0.1:5432/push", "must be encoded"),
        (POSTGRES, "postgresql://push:pa/5ecret@127.0.0.1:5432/push", "must be encoded"),
        (POSTGRES, "postgresql://push:12/5ecret@127.0.0.1:5432/push", "must be encoded"),
        (POSTGRES, "postgresql://push:a[5ecret@127.0.0.1:5432/push", "must be encoded"),
        (POSTGRES, "postgresql://push:pa?5ecret@127.0.0.1:5432/push", "no port"),
        (POSTGRES, "postgresql://push:pa 5ecret@127.0.0.1:5432/push", "a space or a line break"),
        (POSTGRES, "postgresql://push:5ecret@127.0.0.1\n:5432/push", "a space or a line break"),
        (POSTGRES, "postgresql://push:5ecret@one:5432,two:99999/push", "no port"),
        (POSTGRES, "postgresql://push:5ecret@::1:5432/push", "no port"),
        (POSTGRES, "mysql://push:5ecret@host/push", "does not begin with postgresql:// or postgres://"),
        (POSTGRES, "host=db user=push password=5ecret", "does not begin"),
        (POSTGRES, "'postgresql://push:5ecret@host/push'", "does not begin"),
        (REDIS, "redis://:pa#5ecret@127.0.0.1:6379/0", "must be encoded"),
        (REDIS, "redis://:5ecret@$REDIS_HOST:6379/0", "no port"),
        (REDIS, "redis://:5ecret@redis:6379:6379/0", "no port"),
        (REDIS, "redis://:5ecret@127.0.0.1:99999/0", "no port"),
        (REDIS, f"redis://:5ecret@127.0.0.1:{'9' * 5000}/0", "no host"),
        (REDIS, "redis://:5ecret@127.0.0.1:0/0", "no port"),
        (REDIS, "redis://:5ecret@127.0.0.1:-1/0", "no port"),
        (REDIS, "unix:///run/redis.sock", "does not begin with redis:// or rediss://"),
    ],
)
def test_a_url_that_a_library_would_misread_is_refused_without_any_of_it(schemes, url, words):
    found = wrong_in_url(url, schemes)
    assert words in found
    assert "5ecret" not in found


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:6379/default", "no number of a database"),
        ("redis://127.0.0.1:6379/0/1", "no number of a database"),
        ("redis://127.0.0.1:6379/0?db=1", "an option other than ssl_ca_certs"),
        ("rediss://127.0.0.1:6380/0?ssl_cert_reqs=none", "an option other than"),
        ("rediss://127.0.0.1:6380/0?ssl_cert_reqs=CERT_NONE", "an option other than"),
        ("rediss://127.0.0.1:6380/0?ssl_check_hostname=false", "an option other than"),
        ("rediss://127.0.0.1:6380/0?ssl_ca_certs=/nowhere.pem", "a file that cannot be read"),
    ],
)
def test_a_redis_that_cannot_be_used_as_its_url_says_is_a_problem(url, words):
    env = Environment({"NAME": url})
    assert env("NAME", kinds.REDIS_URL) == ""
    [problem] = env.problems
    assert (problem.id, words in problem.msg) == ("pushserver.bad_redis_url", True)


@pytest.mark.parametrize("options", ["", "?ssl_cert_reqs=required", f"?ssl_ca_certs={__file__}"])
def test_a_redis_with_tls_is_verified_by_both_libraries(options):
    """Celery verifies nothing unless its URL says so."""
    url = Environment({"NAME": f"rediss://:pw@redis:6380/0{options}"})("NAME", kinds.REDIS_URL)
    of_celery = parse_url(url)["ssl"]
    assert (of_celery["ssl_cert_reqs"], of_celery["ssl_check_hostname"]) == (CERT_REQUIRED, True)
    with closing(Redis.from_url(url)) as client:
        made = client.connection_pool.make_connection()
    assert (made.cert_reqs, made.check_hostname, made.ca_certs) == (CERT_REQUIRED, True, of_celery.get("ssl_ca_certs"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("redis://redis:$(REDIS_PORT)/0", "unreplaced_variable"),
        ("http://${NODE}:8645", "unreplaced_variable"),
        ("{{ .Values.secret }}", "unreplaced_variable"),
        ('"http://node:8645"', "quoted_value"),
        ("'5ecret'", "quoted_value"),
        (" '5ecret' ", "quoted_value"),
    ],
)
def test_an_unfinished_value_is_the_only_problem_of_its_variable(text, problem):
    env = Environment({"NAME": text, "OTHER_FILE": text})
    env("NAME", kinds.URLS)
    env("OTHER", TEXT, used_by="web")
    assert problem_ids(env) == [f"pushserver.{problem}"] * 2
    assert [each.msg.split()[0] for each in env.problems] == ["NAME", "OTHER_FILE"]
    assert "5ecret" not in repr(env.problems)


@pytest.mark.parametrize("text", ["", "'", "it's", "a$b", "$(", "https://jaeger/{trace_id}", "'a' and b", "pa$$word"])
def test_other_signs_are_part_of_a_value(text):
    env = Environment({"NAME": text})
    assert (env("NAME", TEXT), env.problems) == (text, [])


def test_a_word_that_is_no_choice_is_a_problem_with_those_that_are():
    env = Environment({"NAME": "WARN"})
    env("NAME", word("INFO", "WARNING"), "INFO")
    assert [problem.msg for problem in env.problems] == ["NAME is none of INFO, WARNING."]


def test_certificates_or_a_file_of_a_secret_that_cannot_be_read_are_a_problem(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "empty", "."):
        env = Environment({"SSL_CERT_FILE": str(tmp_path / name)})
        env("SSL_CERT_FILE", kinds.CERTIFICATES)
        assert problem_ids(env) == ["pushserver.bad_certificates"]
    for name in ("missing", "binary", "."):
        env = Environment({"NAME_FILE": str(tmp_path / name)})
        assert env("NAME", TEXT, used_by="web") == ""
        assert problem_ids(env) == ["pushserver.unreadable_secret_file"]


@pytest.mark.parametrize(
    ("content", "variable", "value"),
    [
        ("  from file\n", "from variable", "from file"),
        # Compose mounts an empty file where there is nothing to say, and systemd's default is an empty line.
        ("\n", "", ""),
        ("\n", "from variable", "from variable"),
    ],
)
def test_a_secret_from_a_file_wins_and_an_empty_file_counts_as_unset(tmp_path, content, variable, value):
    (tmp_path / "secret").write_text(content, encoding="utf-8")
    env = Environment({"NAME_FILE": str(tmp_path / "secret")} | ({"NAME": variable} if variable else {}))
    assert (env("NAME", TEXT, used_by="web"), env.problems) == (value, [])


@pytest.mark.parametrize("name", ["SECRET_KEY", "SERVER_PRIVATE_KEY", "FIELD_ENCRYPTION_KEYS"])
def test_generated_secrets_are_private_and_stable(tmp_path, name):
    first = GeneratedSecrets(tmp_path / "secrets")(name)
    file = tmp_path / "secrets" / name.lower()
    assert GeneratedSecrets(tmp_path / "secrets")(name) == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


def test_generated_secrets_satisfy_their_readers(tmp_path):
    env = Environment({}, ["web"], generate=GeneratedSecrets(tmp_path))
    assert len(env("SERVER_PRIVATE_KEY", kinds.PRIVATE_KEY, used_by="web")) == 32
    assert [len(key) for key in env("FIELD_ENCRYPTION_KEYS", kinds.FIELD_KEYS, used_by="web")] == [32]
    assert not env.problems


@pytest.mark.parametrize(("process", "problems"), [("web", ["pushserver.bad_private_key"]), ("reports", [])])
def test_a_secret_is_missed_by_the_processes_that_use_it(process, problems):
    env = Environment({}, [process])
    assert env("SERVER_PRIVATE_KEY", kinds.PRIVATE_KEY, used_by="web xmpp") == b""
    assert problem_ids(env) == problems


def test_processes_that_start_together_agree_on_a_secret(tmp_path):
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        values = list(pool.map(GeneratedSecrets(tmp_path), ["SECRET_KEY"] * 8))
    assert len(set(values)) == 1


# The table ------------------------------------------------------------------------------------------------------------
ROOT, TABLE = settings.BASE_DIR, settings.ENVIRONMENT.table


def test_each_variable_has_one_row_with_its_meaning_and_secrets_are_those_of_processes() -> None:
    names = [setting.name for setting in TABLE]
    assert sorted({*names}) == sorted(names)
    assert 60 < len(names) <= 80
    assert all(meanings()[name] and "|" not in meanings()[name] for name in names)
    assert {process for setting in TABLE for process in setting.used_by} == {*PROCESSES}


def test_the_readme_names_what_every_installation_sets() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    without_default = {setting.name for setting in TABLE if setting.default in {"embedded", GENERATED}}
    on_a_network = {"ALLOWED_HOSTS", "BEHIND_HTTPS_PROXY", "METRICS_TOKEN"}
    assert sorted(rows) == sorted(without_default | on_a_network)
