"""Measures notifications from acceptance to answer, today's and the prototype's, with one bare intake and real POSTs.

DATABASE=system python -m prototype.measure [--rounds N] [--away MS] [--halted ROWS] [--snapshot SECONDS]
"""

import argparse
import json
import os
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.running import servers

PHONES, SENDERS = 400, 50
COUNTS = {"full": 4000, "100": 1000, "20": 300}
LIMITS = {f"{name}_LIMITS": "1000000/1,100000000/60" for name in ("ROUTE", "SENDER", "GLOBAL")}
STATS = """
    SELECT (SELECT wal_records FROM pg_stat_wal), (SELECT wal_bytes::bigint FROM pg_stat_wal),
        (SELECT wal_fpi FROM pg_stat_wal),
        (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--which", default="full,100,20")
    parser.add_argument("--away", type=float, default=0)
    parser.add_argument("--halted", type=int, default=0)
    parser.add_argument("--snapshot", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for which in options.which.split(","):
            for kind in ("today", "rows") if number % 2 == 0 else ("rows", "today"):
                found.setdefault(f"{which} {kind}", []).append(servers.in_own_process(measure, kind, which, options))
                print(which, kind, json.dumps(found[f"{which} {kind}"][-1]), flush=True)
    for name, runs in found.items():
        print(name.ljust(14), "  ".join(f"{key} {sorted(r[key] for r in runs)[len(runs) // 2]:.3f}" for key in runs[0]))


def measure(kind: str, which: str, options: Any) -> dict[str, float]:
    os.environ.update(LIMITS)
    with ExitStack() as stack:
        around = stack.enter_context(servers.around_django())
        if options.away:
            from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415
            from bench.running.delaying import relay  # noqa: PLC0415
            from django.db import connections  # noqa: PLC0415
            from embedded.servers.postgres import SOCKET_NAME  # noqa: PLC0415

            said = conninfo_to_dict(os.environ["DATABASE_URL"])
            port = stack.enter_context(relay(f"{said['host']}/{SOCKET_NAME}", options.away))
            connections.close_all()
            connections["default"].settings_dict.update(HOST="127.0.0.1", PORT=str(port))
        from bench.path import Parts  # noqa: PLC0415 - after the set-up of Django

        parts = Parts(around.postgres, clients=PHONES, requests=0, batch=200)
        del parts
        return _measure(kind, which, options, around)


def _requests(count: int) -> list[Any]:
    import secrets  # noqa: PLC0415

    from django.db import connection  # noqa: PLC0415
    from notifications.messages import PushNotification, PushRequest  # noqa: PLC0415
    from registrations.models import Registration  # noqa: PLC0415

    tokens = {}
    from registrations.keys.encryption import Purpose  # noqa: PLC0415
    from registrations.keys.keyring import keyring  # noqa: PLC0415

    asked = []
    for key_hash, installation in Registration.objects.values_list("public_key_hash", "installation_id"):
        token = tokens.setdefault(installation, secrets.token_hex(16))
        asked.append(
            PushNotification(bytes(key_hash), installation, token, 1, os.urandom(64), os.urandom(64), os.urandom(200))
        )
        digest = keyring().digest(Purpose.ACCESS_TOKEN, token.encode())
        Registration.objects.filter(installation_id=installation).update(access_token_digest=digest)
    connection.commit() if not connection.get_autocommit() else None
    senders = [os.urandom(33) for _ in range(SENDERS)]
    return [
        (
            os.urandom(32),
            os.urandom(32),
            os.urandom(33),
            senders[n % SENDERS],
            PushRequest(os.urandom(32), (asked[n % len(asked)],)),
        )
        for n in range(count)
    ]


def _measure(kind: str, which: str, options: Any, around: Any) -> dict[str, float]:
    from django.db import connection  # noqa: PLC0415

    from kit.batches.batch import Wakeup  # noqa: PLC0415
    from kit.db.postgresql import base  # noqa: PLC0415

    count = COUNTS[which]
    statements = [0]
    send = base.Written.send

    def counted(self: Any, session: Any) -> None:
        statements[0] += 1
        send(self, session)

    base.Written.send = counted  # type: ignore[method-assign]
    if kind == "rows":
        with connection.cursor() as cursor:
            cursor.execute((Path(__file__).parent / "schema.sql").read_text())
    if options.halted:
        _halt(kind, options.halted)
    wakeup, queue, answered = Wakeup(), deque(), []
    worker = (today if kind == "today" else rows)(queue, answered, wakeup)
    thread = threading.Thread(target=worker.run)
    thread.start()
    warm, real = _requests(400), None
    _feed(queue, wakeup, warm, 400.0, answered)
    real = _requests(count)
    fetch = lambda: _ask(STATS)  # noqa: E731
    if options.snapshot:
        import psycopg  # noqa: PLC0415

        held = psycopg.connect(os.environ["DATABASE_URL"])
        held.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        held.execute("SELECT 1")
        _feed(queue, wakeup, _requests(12000), float("inf"), answered)
    time.sleep(1.5)
    before, cpu, own, sent, began = (
        fetch(),
        servers.cpu_seconds(around.postgres),
        time.process_time(),
        statements[0],
        time.monotonic(),
    )
    _feed(queue, wakeup, real, float("inf") if which == "full" else float(which), answered)
    seconds = time.monotonic() - began
    spent, mine = servers.cpu_seconds(around.postgres) - cpu, time.process_time() - own
    time.sleep(1.5)
    after = fetch()
    rows_written, records = after[3] - before[3], after[0] - before[0]
    figures = {
        "ms": (spent + mine) * 1000 / count,
        "own_ms": mine * 1000 / count,
        "postgres_ms": spent * 1000 / count,
        "rows": float(rows_written) / count,
        "records": records / count,
        "wal_bytes": float(after[1] - before[1]) / count,
        "fpi": (after[2] - before[2]) / count,
        "statements": (statements[0] - sent) / count,
        "seconds": seconds,
    }
    worker.stop(timeout_seconds=5) if kind == "today" else worker.stop()
    thread.join()
    return figures


HALT = """
    INSERT INTO notifications_channel (token_type, app_topic, last_success_at) VALUES (1, 'im.halted', now());
    INSERT INTO notifications_queue (gateway, token_type, app_topic, is_proven) VALUES ('gorush', 1, 'im.halted', TRUE);
    INSERT INTO notifications_halt (kind, gateway, token_type, app_topic, since, reason, by)
    VALUES ('paused', '', 1, 'im.halted', now(), '', 'me');
"""
FILL = {
    "today": """
        INSERT INTO notifications_notification (request_id, position, public_key_hash, installation_id, type, state, queue_id,
            route_id, route_generation, dedup_key, collapse_id, chat_id, message, attempt_count, ambiguous_count,
            next_attempt_at, created_at, expires_at, unsent_since, payload_dropped)
        SELECT 1, 0, sha512(n::text::bytea), n::text, 1, 'pending', (SELECT max(id) FROM notifications_queue), 9000000 + n, 1,
            sha256(n::text::bytea), substr(sha256(n::text::bytea), 1, 16), sha512('c'), sha512('m'), 0, 0,
            now() - interval '1 hour', now() - interval '1 hour', now() + interval '1 day', now(), FALSE
        FROM generate_series(1, %d) AS n
    """,
    "rows": """
        INSERT INTO proto_notification (request_id, position, public_key_hash, installation_id, type, due_at, queue_id,
            route_id, route_generation, dedup_key, chat_id, message, attempt_count, created_at, expires_at, unsent_since,
            token_type, app_topic, gateway)
        SELECT 1, 0, sha512(n::text::bytea), n::text, 1, now() - interval '1 hour', (SELECT max(id) FROM notifications_queue),
            9000000 + n, 1, sha256(n::text::bytea), sha512('c'), sha512('m'), 0, now() - interval '1 hour',
            now() + interval '1 day', now(), 1, 'im.halted', 'gorush'
        FROM generate_series(1, %d) AS n
    """,
}


def _halt(kind: str, count: int) -> None:
    import psycopg  # noqa: PLC0415

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as session:
        session.execute(HALT)
        session.execute(FILL[kind] % count)
        session.execute("CHECKPOINT")


def _ask(sql: str) -> Any:
    import psycopg  # noqa: PLC0415

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as session:
        return session.execute(sql).fetchone()


def _feed(queue: Any, wakeup: Any, requests: list[Any], rate: float, answered: list[Any]) -> None:
    expected, began = len(answered) + len(requests), time.monotonic()
    for number, request in enumerate(requests):
        while rate < float("inf") and (left := began + number / rate - time.monotonic()) > 0:
            time.sleep(left)
        queue.append(request)
        wakeup.set()
    deadline = time.monotonic() + 60
    while len(answered) < expected:
        if time.monotonic() > deadline:
            sys.exit(f"{len(answered)} of {expected} answered")
        time.sleep(0.02)


def today(queue: Any, answered: list[Any], wakeup: Any) -> Any:
    from django.conf import settings  # noqa: PLC0415

    from kit.batches.batch import Step, Work, Worker  # noqa: PLC0415
    from kit.db.clock import clock  # noqa: PLC0415
    from notifications.acceptance.acceptance import Incoming, Sending, accept  # noqa: PLC0415
    from notifications.delivery.steps import Delivery  # noqa: PLC0415
    from notifications.gateways.registry import gateway_for, open_all  # noqa: PLC0415
    from notifications.messages import Answer  # noqa: PLC0415
    from notifications.queues.concurrency import ConcurrencyLimits  # noqa: PLC0415

    open_all()
    lease, limits = (
        timedelta(seconds=settings.DELIVERY_LEASE_SECONDS),
        ConcurrencyLimits(settings.CHANNEL_IN_FLIGHT, first=32),
    )
    delivery = Delivery(gateway_for, wakeup, lease=lease, limits=limits)

    class Intake(Step):
        def next_at(self) -> float | None:
            return 0.0 if queue else None

        def work(self, batch: Any) -> Any:
            batch.taken = taken = [queue[n] for n in range(min(batch.limit, len(queue)))]
            incoming = [Incoming(*request, arrived_at=clock.now()) for request in taken]
            accepted = accept("waku", incoming, sending=Sending(lease, limits), now=batch.now)
            return Work((accepted, len(taken)), accepted.answers, is_more_left=len(taken) == batch.limit)

        def committed(self, decided: Any) -> None:
            accepted, number = decided
            for _ in range(number):
                queue.popleft()
            delivery.accepted(accepted.claims, accepted.waiting)

    class Outlet(Step):
        follows = True

        def work(self, batch: Any) -> Any:
            return Work([each for each in batch.handed if isinstance(each, Answer)])

        def committed(self, decided: Any) -> None:
            answered.extend(decided)

    return Worker([Intake(), *delivery.steps(), Outlet()], wakeup)


def rows(queue: Any, answered: list[Any], wakeup: Any) -> Any:
    from django.conf import settings  # noqa: PLC0415

    from kit.db.clock import clock  # noqa: PLC0415
    from notifications.gateways.registry import gateway_for, open_all  # noqa: PLC0415
    from notifications.queues import queues  # noqa: PLC0415
    from notifications.queues.concurrency import ConcurrencyLimits  # noqa: PLC0415
    from prototype.delivery import Deadlines, Delivery, Sends  # noqa: PLC0415
    from prototype.loop import Loop  # noqa: PLC0415
    from prototype.notification import Request, accept  # noqa: PLC0415

    open_all()
    lease, limits = (
        timedelta(seconds=settings.DELIVERY_LEASE_SECONDS),
        ConcurrencyLimits(settings.CHANNEL_IN_FLIGHT, first=32),
    )
    sends = Sends(gateway_for, limits, wakeup, lease)

    class Intake:
        def due_at(self) -> float | None:
            return 0.0 if queue else None

        def work(self, limit: int, now: Any, *, looks: bool) -> bool:
            self.taken = [queue[n] for n in range(min(limit, len(queue)))]
            self.accepted = None
            if self.taken:
                incoming = [Request(*request, arrived_at=clock.now()) for request in self.taken]
                self.accepted = accept("waku", incoming, limits, lease, now)
            return len(self.taken) == limit

        def committed(self) -> None:
            for _ in self.taken:
                queue.popleft()
            limits.keep()
            if self.accepted:
                answered.extend(self.accepted.answers)
                sends.send(self.accepted.claimed)
                queues.create({n.queue for n in self.accepted.claimed if n.slot.queue_id == queues.UNSORTED})
            self.taken = []

        def rolled_back(self) -> None:
            self.taken, self.accepted = [], None

        def quarantine(self, error: Exception, now: Any) -> None:
            queue.popleft()

    return Loop([Intake(), Delivery(sends, lease, answered.extend), Deadlines(answered.extend)], wakeup)


if __name__ == "__main__":
    main()
