"""Every typed reader: what it takes, what it makes of nonsense, and that a secret never gets into a message."""

import base64
import stat
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from kit.buckets.bucket import Limit
from pushserver.config.environment import SECP256K1_ORDER, Environment, GeneratedSecrets

KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
OTHER_KEY = base64.urlsafe_b64encode(bytes(32)).decode()


def problem_ids(env):
    return [problem.id for problem in env.problems]


@pytest.mark.parametrize(("text", "value"), [("x", "x"), ("  x ", "x"), ("", "default"), ("   ", "default")])
def test_text_is_stripped_and_empty_means_unset(text, value):
    assert Environment({"NAME": text}).text("NAME", "default") == value


@pytest.mark.parametrize(
    ("text", "value"), [("a,b", ["a", "b"]), (" a , ,b,", ["a", "b"]), ("", ["x", "y"]), (",", [])]
)
def test_items_are_a_comma_list(text, value):
    assert Environment({"NAME": text}).items("NAME", "x,y") == value


@pytest.mark.parametrize(
    "text",
    [
        *("/srv/lake", "./lake", "file:/srv/lake", "s3a://bucket/lake", "gs://bucket", "hdfs://host:8020/lake"),
        *("abfss://container@account.dfs.core.windows.net/lake", "s3a://bucket/a@b"),
    ],
)
def test_a_lake_is_a_path_or_a_url(text):
    env = Environment({"NAME": text})
    assert env.lake("NAME", "/default") == text
    assert not env.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *[(text, "bad_lake") for text in ("lake", "ftp://5ecret@host")],
        *[
            (text, "password_in_lake")
            for text in ("s3a://AKIA:5ecret@bucket/lake", "s3a://AKIA:5e/cret@bucket", "gs://:5ecret@b")
        ],
    ],
)
def test_a_lake_that_nobody_reads_or_with_a_password_is_a_problem_that_does_not_tell_it(text, problem):
    env = Environment({"NAME": text})
    assert env.lake("NAME", "/default") == "/default"
    assert problem_ids(env) == [f"pushserver.{problem}"]
    assert "5ecret" not in repr(env.problems)


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize(
    ("text", "value"),
    [*((text, True) for text in ("1", "true", "YES", "On")), *((text, False) for text in ("0", "false", "NO", "Off"))],
)
def test_a_flag_is_on_or_off_or_else_its_default(text, value, default):
    assert Environment({"NAME": text}).flag("NAME", default=default) is value
    assert Environment({}).flag("NAME", default=default) is default


def test_flag_that_is_neither_is_a_problem():
    env = Environment({"NAME": "maybe"})
    assert env.flag("NAME") is False
    assert problem_ids(env) == ["pushserver.bad_flag"]


@pytest.mark.parametrize(("text", "value"), [("", 5), ("1", 1), ("10", 10), ("2.5", 2.5), ("1e1", 10)])
def test_number_in_range(text, value):
    env = Environment({"NAME": text})
    assert env.number("NAME", 5, minimum=1, maximum=10) == value
    assert not env.problems


@pytest.mark.parametrize("text", ["x", "0.9", "10.1", "nan", "inf", "-inf", "1,5"])
def test_number_out_of_range_is_a_problem(text):
    env = Environment({"NAME": text})
    assert env.number("NAME", 5, minimum=1, maximum=10) == 5
    assert problem_ids(env) == ["pushserver.bad_number"]


def test_count_is_whole():
    value = Environment({"NAME": "7"}).count("NAME", 5, minimum=1, maximum=10)
    assert (value, type(value)) == (7, int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("http://a:1", ["http://a:1"]),
        ("https://a/, http://[::1]:8645//", ["https://a", "http://[::1]:8645"]),
        ("", ["http://default"]),
    ],
)
def test_urls_lose_their_trailing_slashes(text, value):
    env = Environment({"NAME": text})
    assert env.urls("NAME", "http://default") == value
    assert not env.problems


@pytest.mark.parametrize("text", ["a:1", "ftp://a", "http://", "http://a:x", "http://a,b", "http://[::1", " , "])
def test_anything_else_is_no_url(text):
    env = Environment({"NAME": text})
    assert env.urls("NAME") == []
    assert problem_ids(env) == ["pushserver.bad_urls"]


def test_secret_from_a_file_wins(tmp_path):
    (tmp_path / "secret").write_text("  from file\n", encoding="utf-8")
    env = Environment({"NAME": "from variable", "NAME_FILE": str(tmp_path / "secret")})
    assert env.secret("NAME") == "from file"


def test_an_empty_file_of_a_secret_counts_as_unset(tmp_path):
    """Compose mounts one where there is nothing to say, and systemd's default is an empty line."""
    (tmp_path / "secret").write_text("\n", encoding="ascii")
    given = {"NAME_FILE": str(tmp_path / "secret")}
    assert Environment(given).secret("NAME") == ""
    assert Environment(given | {"NAME": "from variable"}).secret("NAME") == "from variable"


def test_unreadable_secret_file_is_a_problem(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        env = Environment({"NAME_FILE": str(path)})
        assert env.secret("NAME") == ""
        assert problem_ids(env) == ["pushserver.unreadable_secret_file"]


@pytest.mark.parametrize("number", [1, SECP256K1_ORDER - 1])
def test_private_key_at_its_limits(number):
    env = Environment({"NAME": number.to_bytes(32).hex()})
    assert env.private_key("NAME") == number.to_bytes(32)


@pytest.mark.parametrize(
    "text", ["", "zz" * 32, "01" * 31, "01" * 33, "00" * 32, SECP256K1_ORDER.to_bytes(32).hex(), "ff" * 32]
)
def test_anything_else_is_no_private_key(text):
    env = Environment({"NAME": text})
    assert env.private_key("NAME") == b""
    assert problem_ids(env) == ["pushserver.bad_private_key"]


@pytest.mark.parametrize(
    ("text", "count"), [(KEY, 1), (f"{KEY},{OTHER_KEY}", 2), (f" {KEY} , ", 1), (KEY.rstrip("="), 1)]
)
def test_field_keys(text, count):
    keys = Environment({"NAME": text}).field_keys("NAME")
    assert (keys[0], len(keys)) == (bytes(range(32)), count)


@pytest.mark.parametrize("text", ["", ",", "short", KEY[:-4], f"{KEY},nonsense", "!" * 43, "é" * 43])
def test_anything_else_is_no_field_key(text):
    env = Environment({"NAME": text})
    assert env.field_keys("NAME") == []
    assert problem_ids(env) == ["pushserver.bad_field_keys"]


def test_a_problem_never_repeats_the_value():
    value = "5ecret" * 11
    env = Environment({"NAME": value, "NAME_FILE": ""})
    env.flag("NAME")
    env.number("NAME", 1, minimum=0, maximum=2)
    env.urls("NAME")
    env.private_key("NAME")
    env.field_keys("NAME")
    assert len(env.problems) == 5
    assert not any(value in str(problem) for problem in env.problems)


@pytest.mark.parametrize("name", ["SECRET_KEY", "SERVER_PRIVATE_KEY", "FIELD_ENCRYPTION_KEYS"])
def test_generated_secrets_are_private_and_stable(tmp_path, name):
    first = GeneratedSecrets(tmp_path / "secrets")(name)
    file = tmp_path / "secrets" / name.lower()
    assert GeneratedSecrets(tmp_path / "secrets")(name) == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


def test_generated_secrets_satisfy_their_readers(tmp_path):
    env = Environment({}, generate=GeneratedSecrets(tmp_path))
    assert len(env.private_key("SERVER_PRIVATE_KEY")) == 32
    assert [len(key) for key in env.field_keys("FIELD_ENCRYPTION_KEYS")] == [32]
    assert not env.problems


def test_processes_that_start_together_agree_on_a_secret(tmp_path):
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        values = list(pool.map(GeneratedSecrets(tmp_path), ["SECRET_KEY"] * 8))
    assert len(set(values)) == 1


def test_limits_are_one_for_bursts_and_one_for_the_long_run():
    assert Environment({"X": "5/10, 60/3600"}).limits("X", "1/1,2/2") == (Limit(5, 10), Limit(60, 3600))
    assert Environment({}).limits("X", "1/1,2/2") == (Limit(1, 1), Limit(2, 2))


@pytest.mark.parametrize(
    "text", ["5", "5/10", "0/1,1/2", "5/10,60/10", "5/10,60/3600,1/1", "a/b,c/d", "-1/1,2/2", ",,"]
)
def test_a_text_that_is_not_two_limits_is_a_problem(text):
    env = Environment({"X": text})
    assert env.limits("X", "1/1,2/2") == (Limit(1, 1), Limit(2, 2))
    assert problem_ids(env) == ["pushserver.bad_limits"]
