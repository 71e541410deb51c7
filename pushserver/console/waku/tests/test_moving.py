"""Import from status-go: its files, and the registrations in them.

`make status-interop` imports a file that a real status-go wrote.
"""

import hmac
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from hashlib import pbkdf2_hmac
from io import StringIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from pushserver.console.waku.sqlcipher import ITERATIONS, is_encrypted
from registrations.lookup import find
from registrations.messages import RegistrationMessage, TokenType
from registrations.models import Registration, TopicKey
from registrations.quotas import CHANGES
from waku_bridge.codec.keys import chat_key
from waku_bridge.codec.wire import serialize
from waku_bridge.query_topics import server_identity

PASSWORD = b"a password"
BOB, CAROL, DAVE = (bytes([number]) * 64 for number in (1, 2, 3))
SCHEMA = """
    CREATE TABLE push_notification_server_registrations (
        public_key BLOB NOT NULL, installation_id VARCHAR NOT NULL, version INT NOT NULL, registration BLOB,
        UNIQUE(public_key, installation_id) ON CONFLICT REPLACE
    )
"""
INSTALLATION = "11111111-1111-4111-8111-111111111111"
pytestmark = pytest.mark.django_db


MESSAGE = RegistrationMessage(
    INSTALLATION,
    version=7,
    token_type=TokenType.APN,
    device_token="ab" * 32,
    app_topic="im.status.ethereum",
    access_token="22222222-2222-4222-8222-222222222222",
    grant=b"g" * 65,
    enabled=True,
)


def registration(**fields: object) -> bytes:
    return serialize(replace(MESSAGE, **fields))[1]


def write(path: Path, *rows: tuple[object, ...], schema: str = SCHEMA) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(schema)
        database.executemany("INSERT INTO push_notification_server_registrations VALUES (?, ?, ?, ?)", rows)
        database.commit()
    return path


def empty(path: Path) -> None:
    """Make an empty database whose pages reserve 48 bytes, as with SQLCipher. Python's module cannot configure that."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size = 8192")
        database.execute("VACUUM")
    page = bytearray(path.read_bytes())
    page[20] = 48
    page[105:107] = (8192 - 48).to_bytes(2)  # where the free part of the first page ends
    path.write_bytes(page)


def encrypted(path: Path, *rows: tuple[object, ...]) -> Path:
    """Encrypt a database as status-go's SQLCipher does, page by page."""
    empty(path)
    write(path, *rows)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    plain, salt = path.read_bytes(), os.urandom(16)
    key = pbkdf2_hmac("sha1", PASSWORD, salt, ITERATIONS, 32)
    hmac_key = pbkdf2_hmac("sha1", key, bytes(byte ^ 0x3A for byte in salt), 2, 32)
    pages = b""
    for number, start in enumerate(range(0, len(plain), 8192), 1):
        page = plain[start : start + 8192]
        vector, content = os.urandom(16), page[16 if number == 1 else 0 : 8192 - 48]
        cipher = Cipher(AES(key), CBC(vector)).encryptor()
        sealed = cipher.update(content) + cipher.finalize() + vector
        mac = hmac.digest(hmac_key, sealed + number.to_bytes(4, "little"), "sha1")
        pages += (salt if number == 1 else b"") + sealed + mac + bytes(12)
    path.write_bytes(pages)
    return path


def imported(path: Path, *options: str) -> str:
    output = StringIO()
    call_command("import_status_go", str(path), *options, stdout=output)
    return output.getvalue()


def test_imported_registrations_are_found_as_if_the_clients_had_registered_here(tmp_path: Path) -> None:
    gone = (CAROL, INSTALLATION, 9, None)
    output = imported(write(tmp_path / "app.db", (BOB, INSTALLATION, 7, registration()), gone))
    ours = server_identity().pub33
    ((info,),) = find({BOB, CAROL}, server_public_keys=[ours]).values()
    assert (info.installation_id, info.version, info.grant) == (INSTALLATION, 7, b"g" * 65)
    tombstone = Registration.objects.get(public_key_hash=CAROL)
    assert (tombstone.state, tombstone.version) == (Registration.State.UNREGISTERED, 9)
    assert TopicKey.objects.count() == 2
    assert "2 rows were read" in output
    assert "retransmission" in imported(tmp_path / "app.db")


def test_a_dry_run_writes_nothing_and_shows_the_rows_that_are_not_imported(tmp_path: Path) -> None:
    rows = [
        (BOB, INSTALLATION, 7, registration()),
        (CAROL, INSTALLATION, 7, b"\xff no message"),
        (DAVE, INSTALLATION, 7, registration(device_token="short")),
        (b"short", INSTALLATION, 7, registration()),
    ]
    output = imported(write(tmp_path / "app.db", *rows), "--dry-run")
    assert Registration.objects.count() == TopicKey.objects.count() == 0
    assert "2 unreadable  not imported" in output
    assert "1 implausible_token  not imported" in output
    assert "Nothing was written" in output


def test_an_import_is_not_limited_by_registrations_per_minute(tmp_path: Path, settings: LazySettings) -> None:
    settings.NEW_INSTALLATIONS_PER_MINUTE = 1
    rows = [(number.to_bytes(64), INSTALLATION, 7, registration()) for number in range(700)]
    imported(write(tmp_path / "app.db", *rows))
    assert Registration.objects.filter(state=Registration.State.ACTIVE).count() == 700


def test_an_import_spends_none_of_the_changes_that_a_client_may_send(tmp_path: Path) -> None:
    (allowed, _), *_ = CHANGES
    for version in range(1, allowed + 2):
        path = write(tmp_path / f"{version}.db", (BOB, INSTALLATION, version, registration(version=version)))
        assert "not imported" not in imported(path)
    assert Registration.objects.get().version == allowed + 1


def test_an_encrypted_database_is_read_with_its_password(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "app.db", (BOB, INSTALLATION, 7, registration()))
    password = tmp_path / "password"
    password.write_bytes(PASSWORD + b"\n")
    assert is_encrypted(path.read_bytes())
    assert "1 rows were read" in imported(path, "--password-file", str(password))
    assert Registration.objects.count() == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["app.db", "password"]  # no plain copy


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong password", "page 1 does not verify"),
        ("no password", "give a --password-file"),
        ("half a file", "not that of whole pages"),
        ("half a plain file", "malformed|damaged"),
        ("a bit", "page 2 does not verify"),
        ("no file", "No such file"),
        ("another schema", "no registration"),
        ("no table", "it has no registrations"),
        ("a log", "stop that server first"),
        ("no database", "give a --password-file"),
    ],
)
def test_each_fault_of_a_file_is_one_sentence_and_nothing_is_written(tmp_path: Path, fault: str, reason: str) -> None:
    path, password = tmp_path / "app.db", tmp_path / "password"
    password.write_bytes(b"another" if fault == "wrong password" else PASSWORD)
    options = [] if fault in {"no password", "no database"} else ["--password-file", str(password)]
    _make(path, fault)
    with pytest.raises(CommandError, match=reason):
        imported(path, *options)
    assert Registration.objects.count() == 0


def _make(path: Path, fault: str) -> None:
    row = (BOB, INSTALLATION, 7, registration())
    match fault:
        case "no file":
            return
        case "another schema":
            write(path, schema=SCHEMA.replace("registration BLOB", "registration_v2 BLOB"))
        case "no table":
            with closing(sqlite3.connect(path)) as database:
                database.execute("CREATE TABLE other (id INT)")
        case "a log":
            write(path, row)
            path.with_name("app.db-wal").write_bytes(b"frames")
        case "half a plain file":
            rows = [(number.to_bytes(64), INSTALLATION, 7, registration()) for number in range(100)]
            write(path, *rows)
        case "no database":
            path.write_bytes(b"hello" * 5000)
        case _:
            encrypted(path, row)
    data = bytearray(path.read_bytes())
    if fault in {"half a file", "half a plain file"}:
        path.write_bytes(data[: len(data) // 2 - 1])
    if fault == "a bit":
        data[8192 + 100] ^= 1
        path.write_bytes(data)


def test_the_server_key_must_be_one_of_this_servers_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "app.db", (BOB, INSTALLATION, 7, registration()))
    with pytest.raises(CommandError, match="none of this server's keys"):
        imported(path, "--server-key", "0x04")
    imported(path, "--server-key", chat_key(server_identity().pub33))
