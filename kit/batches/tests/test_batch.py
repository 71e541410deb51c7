"""Tests of batches: one commit for all steps, the isolation of a failing item, and the wakeups of the worker thread."""

import select
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from time import monotonic, sleep
from unittest.mock import Mock, patch
from uuid import uuid4

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from kit.batches.batch import CHANNEL, LIMIT, LONG_AGO, Step, Wakeup, Work, wake
from kit.batches.looking import WaitingRows
from kit.batches.worker import WAITS, Worker
from kit.db.base import fetch
from kit.db.reasons import REASONS
from kit.db.sessions import BATCH_WORKER
from kit.processes.leader import BATCHES
from registrations.models import TopicKey
from tests.rig.logs import capture_logs
from tests.rig.statements import other_session, read_only, statements

pytestmark = pytest.mark.django_db
in_threads = pytest.mark.django_db(transaction=True)


class Numbers(Step):
    """A step that writes a row for each of its numbers. It calls ``hook`` with a number before it writes the row, and
    hands the result of ``hand`` for each number to the later steps.
    """

    def __init__(self, *numbers, hook=lambda _: None, hand=None):
        self.numbers = list(numbers)
        self.hook = hook
        self.hand = hand
        self.reported = []
        self.limits = []
        self.quarantined_numbers = []
        self.left_numbers = []

    def next_at(self):
        return 0.0 if self.numbers else None

    def work(self, batch):
        self.limits.append(batch.limit)
        batch.taken = self.numbers[: batch.limit]
        for number in batch.taken:
            self.hook(number)
            write(number)
        handed = [self.hand(number) for number in batch.taken] if self.hand else []
        return Work(batch.taken, handed, is_more_left=len(self.numbers) > batch.limit)

    def committed(self, decided):
        self.reported.append(f"committed {len(decided)}")
        self.numbers = self.numbers[len(decided) :]

    def rolled_back(self, batch):
        self.reported.append(f"rolled back {len(batch.taken)}")

    def quarantine(self, error, batch):
        super().quarantine(error, batch)
        [number] = batch.taken
        self.numbers.remove(number)
        self.quarantined_numbers.append(number)

    def again(self, batch):
        [number] = batch.taken
        self.numbers.remove(number)
        self.left_numbers.append(number)


class Follower(Step):
    """A step that writes a row for each handed item, in the commit of the step that handed it."""

    follows = True

    def __init__(self):
        self.sent = []

    def work(self, batch):
        for number in batch.handed:
            write(f"answer to {number}")
        return Work(list(batch.handed))

    def committed(self, decided):
        self.sent += decided


class Rows(Step):
    """A step that removes waiting rows, and records the number of each batch."""

    waits = "SELECT FROM registrations_topickey WHERE topic = 7"

    def __init__(self):
        self.counts = []

    def work(self, batch):
        ids = [key.pk for key in TopicKey.objects.filter(topic=7)[: batch.limit]]
        TopicKey.objects.filter(pk__in=ids).delete()
        self.counts.append(len(ids))
        return Work(None, is_more_left=len(ids) == batch.limit)


INSERT = "INSERT INTO registrations_topickey (name, topic, key_encrypted, created_at) VALUES (%s, 1, '', now())"


def write(name):
    fetch(INSERT, [str(name)])


def written():
    return set(TopicKey.objects.filter(topic=1).values_list("name", flat=True))


def add_row():
    """Add a row that waits for the step `Rows`."""
    TopicKey.objects.create(name=uuid4().hex, topic=7, key_encrypted=b"", created_at=timezone.now())


def names(*numbers):
    return set(map(str, numbers))


def process_batch_of(*steps):
    return Worker(steps, Wakeup()).process_batch(now=timezone.now())


def transaction_count():
    """Return the number of transactions that wrote the rows."""
    return len(set(fetch("SELECT xmin::text FROM registrations_topickey")))


# One commit -----------------------------------------------------------------------------------------------------------


def test_all_steps_work_in_one_transaction_and_nothing_is_sent_before_the_commit():
    one, other, follower, sent_before = Numbers(1, 2, hand=int), Numbers(3), Follower(), []
    other.hook = lambda _: sent_before.extend(one.reported)
    assert process_batch_of(one, other, follower) is False
    assert written() == names(1, 2, 3, "answer to 1", "answer to 2")
    assert transaction_count() == 1
    assert (one.reported, other.reported, follower.sent) == (["committed 2"], ["committed 1"], [1, 2])
    assert sent_before == []


def test_a_step_takes_no_more_items_than_the_limit_and_hands_them_to_the_later_steps_of_the_same_batch_only():
    before, follower, behind = Follower(), Follower(), Numbers(1000, hand=int)
    step = Numbers(*range(LIMIT + 1), hand=int)
    worker = Worker([before, step, follower, behind], Wakeup())
    assert worker.process_batch(now=timezone.now()) is True  # more are left
    assert (before.sent, follower.sent) == ([], list(range(LIMIT)))
    assert worker.process_batch(now=timezone.now()) is False
    assert (before.sent, follower.sent[LIMIT:], step.numbers) == ([], [LIMIT], [])


def test_a_batch_without_items_writes_nothing_and_steps_without_rows_cost_one_query_for_all_of_them():
    step, rows = Numbers(), Rows()
    worker = Worker([step, rows, Rows(), Rows()], Wakeup())
    worker.process_batch(now=timezone.now())
    worker._rows.look_at = 0.0
    with statements() as sent:
        worker.process_batch(now=timezone.now())
    assert (step.limits, rows.counts) == ([], [])
    assert not any("INSERT" in sql or "DELETE" in sql for sql in sent)
    assert len([sql for sql in sent if "EXISTS" in sql]) == 1


def test_a_step_that_fails_after_the_commit_keeps_no_other_from_sending():
    broken, other = Numbers(1), Numbers(2)
    broken.committed = Mock(side_effect=ValueError)
    process_batch_of(broken, other)
    assert written() == names(1, 2)
    assert other.reported == ["committed 1"]


class TimedRows(Rows):
    """A step that finds its rows by their time, so that it has a mark."""

    oldest = f"{Rows.waits.replace('SELECT', 'SELECT min(created_at)')} AND created_at >= %(nothing_before)s"
    waits = ""


def look_and_process(worker, *, now=None):
    worker._rows.look_at = 0.0
    worker.process_batch(now=now or timezone.now())


def test_rows_written_after_the_clock_was_set_back_are_found_at_once():
    step = TimedRows()
    worker = Worker([step], Wakeup())
    for _ in range(2):
        look_and_process(worker, now=timezone.now() + timedelta(hours=1))
        assert worker._rows.mark(step) == LONG_AGO
    look_and_process(worker)
    add_row()
    look_and_process(worker)
    assert step.counts == [1]


# A step that fails ---------------------------------------------------------------------------------------------------


def refuse(*bad):
    def hook(number):
        if number in bad:
            raise ValueError(number)

    return hook


def process_all(worker, *steps, batches=200):
    for _ in range(batches):
        if not any(step.numbers for step in steps):
            return
        worker.process_batch(now=timezone.now())
    pytest.fail("the worker does not finish")


@pytest.mark.parametrize("bad", [[0], [7], [49], [0, 1], [3, 20, 21, 49]])
def test_an_item_that_makes_its_step_fail_is_quarantined_and_all_others_are_processed(bad):
    step, other = Numbers(*range(50), hook=refuse(*bad)), Numbers(*range(100, 110))
    process_all(Worker([step, other], Wakeup()), step, other)
    assert step.quarantined_numbers == bad
    assert written() == names(*set(range(50)) - set(bad), *range(100, 110))


def test_a_step_takes_one_item_after_a_failure_then_two_then_four_and_after_some_time_as_many_as_before():
    step = Numbers(*range(1000), hook=refuse(0, 5))
    process_all(Worker([step], Wakeup()), step)
    assert step.limits == [LIMIT, 1, 1, 2, 4, 1, 2, 1, 1, 2, 4, 8, 16, 32, 64, 128, LIMIT, LIMIT, LIMIT, LIMIT]
    assert step.reported[:4] == ["rolled back 200", "rolled back 1", "committed 1", "committed 2"]
    assert step.quarantined_numbers == [0, 5]


def test_a_step_that_fails_is_rolled_back_with_its_batch_and_the_others_work_in_it_all_the_same():
    first, broken, last = Numbers(1), Numbers(2, hook=refuse(2)), Numbers(3)
    process_all(Worker([first, broken, last], Wakeup()), first, broken, last)
    assert written() == names(1, 3)
    assert broken.quarantined_numbers == [2]
    assert first.reported == ["rolled back 1", "committed 1"]
    assert (broken.reported, last.reported) == (["rolled back 1"] * 2, ["committed 1"])


def test_a_follower_is_in_the_same_commit_also_when_steps_work_apart():
    follower = Follower()
    step, broken = Numbers(1, 2, hand=int), Numbers(3, hook=refuse(3))
    process_all(Worker([step, broken, follower], Wakeup()), step, broken)
    assert written() == names(1, 2, "answer to 1", "answer to 2")
    assert transaction_count() == 2  # each item with its answer
    assert follower.sent == [1, 2]


def test_an_item_that_makes_a_follower_fail_is_quarantined_by_its_own_step():
    step, follower = Numbers(1, 2, 3, hand=int), Follower()
    follow = follower.work

    def work(batch):
        if 2 in batch.handed:
            raise ValueError
        return follow(batch)

    follower.work = work
    process_all(Worker([step, follower], Wakeup()), step)
    assert step.quarantined_numbers == [2]
    assert written() == names(1, 3, "answer to 1", "answer to 3")
    assert follower.sent == [1, 3]


# Others ---------------------------------------------------------------------------------------------------------------


def fails(error, *, times):
    left = iter([error] * times)

    def hook(_number):
        for raised in left:
            raise raised

    return hook


def refused(sqlstate, kind=OperationalError):
    error = kind("quotes a row")
    error.__cause__ = psycopg.errors.lookup(sqlstate)()
    return error


CONFLICTS = [refused("23505", IntegrityError), refused("40001"), refused("40P01")]


@pytest.mark.parametrize("error", CONFLICTS)
def test_a_batch_that_collides_with_another_worker_is_repeated_unchanged_and_never_quarantined(error):
    step, other = Numbers(1, 2, hook=fails(error, times=2)), Numbers(3)
    assert process_batch_of(step, other) is False
    assert step.limits == [LIMIT] * 3
    assert written() == names(1, 2, 3)
    assert transaction_count() == 1

    step = Numbers(4, hook=fails(error, times=WAITS))
    worker, collisions = Worker([step], Wakeup()), 0
    while step.numbers:
        try:
            worker.process_batch(now=timezone.now())
        except (IntegrityError, OperationalError):
            collisions += 1
    assert collisions > 3
    assert step.quarantined_numbers == []


def test_conflicts_that_pass_are_forgotten():
    """Dozens of conflicts in the life of a worker must not add up to a quarantine."""
    step = Numbers()
    worker = Worker([step], Wakeup())
    for number in range(3):
        step.numbers, step.hook = [number], fails(CONFLICTS[0], times=WAITS)
        while step.numbers:
            with suppress(IntegrityError):
                worker.process_batch(now=timezone.now())
    assert step.quarantined_numbers == []


def test_an_item_with_a_lasting_conflict_is_quarantined_and_stops_no_other_step():
    """No other session causes this conflict: the statement itself conflicts with a stored row."""
    step = Numbers(1, 2, hook=lambda number: fails(CONFLICTS[0], times=1)(number) if number == 1 else None)
    before, behind = Numbers(), Numbers()
    worker, collisions, numbers = Worker([before, step, behind], Wakeup()), 0, count(100)
    while "2" not in written():
        before.numbers.append(next(numbers))
        behind.numbers.append(next(numbers))
        try:
            worker.process_batch(now=timezone.now())
        except IntegrityError:
            collisions += 1
        assert len(before.numbers) + len(behind.numbers) < 2
    assert collisions == WAITS
    assert step.quarantined_numbers == [1]


@in_threads
def test_a_row_that_another_worker_inserted_meanwhile_is_found_when_the_batch_is_repeated():
    step = Numbers(1, 2)

    def lose_a_race(number):
        if number == 1 and step.limits == [LIMIT]:
            with other_session() as other:
                other.execute(INSERT, ["1"])

    def skip_known(batch, work=step.work):
        step.numbers = [number for number in step.numbers if str(number) not in written()]
        return work(batch)

    step.hook, step.work = lose_a_race, skip_known
    assert process_batch_of(step) is False
    assert (written(), step.limits) == (names(1, 2), [LIMIT] * 2)


@in_threads
@pytest.mark.parametrize("held", [{0}, {3}, {8}, {0, 1, 2, 3}, {n for n in range(60) if n % 5 == 2}])
def test_items_whose_rows_another_session_has_locked_are_left_at_once_and_all_others_go_on(held):
    key = TopicKey.objects.create(name="held", topic=3, key_encrypted=b"", created_at=timezone.now())

    def need(number):
        if number in held:
            fetch("SELECT 1 FROM registrations_topickey WHERE id = %s FOR UPDATE", [key.pk])

    step, other = Numbers(*range(60), hook=need), Numbers(100)
    worker = Worker([step, other], Wakeup())
    with other_session() as session, patch("kit.batches.worker.LOCK_TIMEOUT", "10ms"):
        session.execute("SELECT FROM registrations_topickey WHERE id = %s FOR UPDATE", [key.pk])
        worker.process_batch(now=timezone.now())
        process_all(worker, step)
    assert (step.left_numbers, step.quarantined_numbers) == (sorted(held), [])
    assert written() == names(*{*range(60), 100} - held)


@in_threads
def test_a_worker_that_has_waited_for_a_lock_waits_only_briefly_for_the_next_ones():
    """Otherwise each batch with items of the same row would wait for the whole `lock_timeout`."""
    step, seen = Numbers(1), []

    def need(number):
        seen.extend(value for (value,) in fetch("SHOW lock_timeout"))
        if number == 1:
            raise refused("55P03")

    step.hook = need
    worker = Worker([step], Wakeup())
    for numbers in ([1], [2], [3]):
        step.numbers = numbers
        worker.process_batch(now=timezone.now())
    assert seen == ["1s", "100ms", "100ms", "100ms"]
    while seen[-1] == "100ms":
        worker._apart_until = 0.0 if len(seen) > 20 else worker._apart_until
        step.numbers = [100 + len(seen)]
        worker.process_batch(now=timezone.now())
        assert len(seen) < 30
    assert len(seen) > 20


def test_an_item_that_cannot_be_left_waits_for_its_lock_while_other_steps_work():
    step, busy, numbers = Numbers(1), Numbers(), count(100)
    step.again = partial(Step.again, step)
    step.hook = fails(refused("55P03"), times=10 * WAITS)
    worker = Worker([step, busy], Wakeup())
    while not written() & names(1):
        busy.numbers.append(next(numbers))
        worker.process_batch(now=timezone.now())
        assert len(busy.numbers) < 2
    assert step.quarantined_numbers == []


# The thread -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def running():
    """Return a function that starts a worker in a thread. All workers end with the test."""
    workers = []

    def start(*steps):
        wakeup = Wakeup()
        worker = Worker(steps, wakeup)
        thread = threading.Thread(target=worker.run)
        workers.append((worker, thread))
        thread.start()
        return worker, wakeup

    yield start
    for worker, thread in workers:
        worker.stop(timeout_seconds=0)
        thread.join(20)
        assert not thread.is_alive()


def eventually(is_so, seconds=60):
    deadline, pause = monotonic() + seconds, threading.Event()
    while not is_so():
        assert monotonic() < deadline, "the condition does not become true"
        pause.wait(0.005)


@pytest.fixture
def without_polling(monkeypatch):
    """Polling is off, so that a worker finds rows only after a wakeup or an announcement."""
    monkeypatch.setattr("kit.batches.looking.LOOK_SECONDS", 1000.0)


@in_threads
@pytest.mark.usefixtures("without_polling")
def test_the_wakeup_wakes_at_once_and_due_items_need_none(running):
    step = Numbers(*range(3 * LIMIT + 5))
    _, wakeup = running(step)
    eventually(lambda: len(written()) == 3 * LIMIT + 5)  # more than the limit
    for number in range(5000, 5020):
        eventually(lambda: not step.numbers)
        step.numbers = [number]
        wakeup.set()
    eventually(lambda: names(*range(5000, 5020)) <= written())

    # The step takes one item at a time, and does not report that more are left.
    slow = Numbers(*range(9000, 9020))
    work = slow.work
    slow.work = lambda batch: replace(work(replace(batch, limit=1)), is_more_left=False)
    running(slow)
    eventually(lambda: not slow.numbers)


@in_threads
@pytest.mark.usefixtures("without_polling")
def test_a_wakeup_without_due_items_makes_no_batch(running, monkeypatch):
    """Items that arrive after an empty batch would have to wait for the pause that follows it."""
    batches, make = [], Worker.process_batch
    monkeypatch.setattr(Worker, "process_batch", lambda worker, *, now: batches.append(now) or make(worker, now=now))
    due, step = monotonic() + 1000, Numbers()
    step.next_at = lambda: 0.0 if step.numbers else due
    worker, wakeup = running(step)
    eventually(lambda: worker._rows.is_leader and worker._rows.look_at > monotonic() + 500)
    before = len(batches)
    for _ in range(20):
        wakeup.set()
        eventually(lambda: not wakeup._is_set)
    step.numbers = [1]
    wakeup.set()
    eventually(lambda: written() == names(1))
    assert len(batches) <= before + 2


def test_rows_of_a_batch_that_took_long_are_found_at_once():
    """Meanwhile the marks have passed the time that it writes into its rows."""
    began, rows = timezone.now() - timedelta(minutes=5), TimedRows()

    def add_old_row(_number):
        add_row()
        TopicKey.objects.filter(topic=7).update(created_at=began)

    step = Numbers(hook=add_old_row)
    worker = Worker([step, rows], Wakeup())
    look_and_process(worker)
    step.numbers = [1]
    look_and_process(worker, now=began)
    look_and_process(worker)
    assert rows.counts == [1]


@in_threads
@pytest.mark.usefixtures("without_polling")
def test_an_announcement_during_a_batch_is_not_lost(running):
    rows, busy = Rows(), threading.Event()
    working = threading.Event()

    def hook(_number):
        working.set()
        assert busy.wait(20)

    step = Numbers(1, hook=hook)
    running(step, rows)
    assert working.wait(20)
    add_row()
    wake()
    busy.set()
    eventually(lambda: sum(rows.counts) == 1)


class Endless(Step):
    """A step that has more items left after every batch."""

    waits = "SELECT 1"

    def work(self, batch):  # noqa: ARG002 - the signature of a step
        return Work(None, is_more_left=True)


@in_threads
@pytest.mark.usefixtures("without_polling")
def test_announced_rows_do_not_wait_behind_the_rest_of_another_step(running):
    rows = Rows()
    worker, _ = running(rows, Endless())
    eventually(lambda: worker._rows.is_leader and worker._rows.look_at > monotonic() + 500)
    add_row()
    fetch("SELECT pg_notify('batches', 'Rows')")
    eventually(lambda: sum(rows.counts) == 1)


@in_threads
@pytest.mark.usefixtures("without_polling")
def test_rows_that_another_release_announces_under_its_own_name_are_found_at_once(running):
    rows = Rows()
    worker, _ = running(rows)
    eventually(lambda: worker._rows.is_leader and worker._rows.look_at > monotonic() + 500)
    add_row()
    fetch("SELECT pg_notify('batches', 'of another release')")
    eventually(lambda: sum(rows.counts) == 1)


class ForOne(Step):
    waits = "SELECT 1"
    is_for_leader = True
    count = 0

    def work(self, batch):  # noqa: ARG002 - the signature of a step
        self.count += 1
        return Work(None)


@in_threads
def test_one_worker_leads_and_another_may_follow_as_soon_as_it_is_to_stop():
    step = ForOne()
    worker = Worker([step], Wakeup())

    def leads():
        look_and_process(worker)
        return step.count > 0

    def is_free():
        [(is_taken,)] = other.execute("SELECT pg_try_advisory_lock(%s)", [BATCHES]).fetchall()
        return is_taken

    with other_session() as other:
        eventually(is_free)
        for _ in range(3):
            assert not leads()
        other.execute("SELECT pg_advisory_unlock(%s)", [BATCHES])
        eventually(leads)
        assert not is_free()
        worker.stop(timeout_seconds=20)
        look_and_process(worker)
        assert is_free()
    connection.close()


@in_threads
def test_an_announcement_is_made_with_the_commit_and_not_without_it():
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}, autocommit=True) as other:
        other.execute(f"LISTEN {CHANNEL}")
        with transaction.atomic():
            wake()
            transaction.set_rollback(True)
        assert list(other.notifies(timeout=0.1)) == []
        wake()
        assert [notice.channel for notice in other.notifies(timeout=20, stop_after=1)] == [CHANNEL]


@in_threads
def test_while_the_database_is_away_nothing_is_lost_and_batches_go_on(running):
    """The session of the worker ends, as when the database goes away."""
    kills = iter(range(3))

    def hook(_number):
        for _ in kills:
            end_session(connection.connection)
            break

    step, rows = Numbers(1, 2, 3, hook=hook), Rows()
    running(step, rows)
    eventually(lambda: written() == names(1, 2, 3))
    assert step.quarantined_numbers == []
    assert set(step.limits) == {LIMIT}
    add_row()
    wake()
    eventually(lambda: sum(rows.counts) == 1)


def end_session(session):
    with other_session() as other:
        other.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])


@in_threads
def test_the_reason_why_batches_are_postponed_is_logged_once_and_so_is_its_end(running):
    refusals = iter([psycopg.errors.DiskFull, psycopg.errors.DiskFull, psycopg.errors.CannotConnectNow])

    def refuse(_number):
        for kind in refusals:
            raise OperationalError from kind()

    with capture_logs() as logs:
        running(Numbers(1, hook=refuse))
        eventually(lambda: "batches_go_on" in [entry["event"] for entry in logs])
    ours = [entry for entry in logs if entry["event"].startswith("batch")]  # others log, too
    assert [entry.get("reason") for entry in ours] == [REASONS["53100"], REASONS["57P03"], None]
    assert written() == names(1)


@in_threads
def test_a_worker_waits_until_a_standby_becomes_the_primary(running):
    """No item is dropped meanwhile."""
    step = Numbers(1, 2)
    with read_only(), capture_logs() as logs:
        running(step)
        eventually(lambda: REASONS["25006"] in [entry.get("reason") for entry in logs])
    eventually(lambda: written() == names(1, 2))
    assert step.quarantined_numbers == []


@in_threads
def test_an_empty_batch_between_two_failures_ends_no_failure(running):
    """A worker of a standby begins well after each connection, and fails when it is leader and writes."""

    def told():  # by this worker; pushes of earlier tests may end meanwhile
        return [(entry["event"], entry.get("reason")) for entry in logs if entry["event"].startswith("batch")]

    with capture_logs() as logs:
        with read_only():
            running(TimedRows())
            eventually(told)
            sleep(4)
            assert told() == [("batch_postponed", REASONS["25006"])]
        eventually(lambda: told() == [("batch_postponed", REASONS["25006"]), ("batches_go_on", None)])


@in_threads
def test_a_worker_waits_for_hours_for_a_database_that_cannot_be_reached(running, monkeypatch):
    pauses, connect = [], WaitingRows.connect
    hook = fails(refused("57P03"), times=10_000)
    monkeypatch.setattr("kit.batches.worker.sleep", pauses.append)
    monkeypatch.setattr(WaitingRows, "connect", lambda rows: (hook(0), connect(rows)))
    with capture_logs():
        running(Numbers(1))
        eventually(lambda: written() == names(1))
    assert len(pauses) >= 10_000
    assert max(pauses) <= 2.0


@in_threads
def test_rows_without_an_announcement_are_found_and_a_connection_that_ends_while_nothing_happens_is_replaced(running):
    rows = Rows()
    worker, _ = running(rows)
    eventually(lambda: worker._rows.session is not None)
    for number in (1, 2):
        add_row()
        eventually(lambda number=number: sum(rows.counts) == number)
        first = worker._rows.session
        end_session(first)
        eventually(lambda first=first: worker._rows.session not in {None, first})


class Locked(Step):
    """A step that locks the waiting rows, and goes on once the event is set."""

    waits = Rows.waits

    def __init__(self, go_on):
        self.go_on = go_on
        self.has_begun = threading.Event()
        self.done = []

    def work(self, _batch):
        ids = [pk for (pk,) in fetch("SELECT id FROM registrations_topickey WHERE topic = 7 FOR UPDATE SKIP LOCKED")]
        if ids:
            self.has_begun.set()
            self.go_on.wait(20)
        TopicKey.objects.filter(pk__in=ids).delete()
        return Work(ids)

    def committed(self, decided):
        self.done += decided


@in_threads
def test_the_rows_of_a_worker_that_is_stopped_inside_a_batch_are_left_to_others(running, monkeypatch):
    """PostgreSQL ends the session of a process that sends nothing, and the process goes on with another one."""
    name = "idle_in_transaction_session_timeout"
    monkeypatch.setitem(BATCH_WORKER, name, str(int(BATCH_WORKER[name]) // 100))
    add_row()
    go_on = threading.Event()
    stopped, other = Locked(go_on), Locked(threading.Event())
    other.go_on.set()
    with capture_logs() as logs:
        running(stopped)
        assert stopped.has_begun.wait(20)
        running(other)
        eventually(lambda: len(other.done) == 1)
        go_on.set()
        eventually(lambda: "batches_go_on" in [entry["event"] for entry in logs])
    assert REASONS["25P03"] in [entry.get("reason") for entry in logs]
    assert stopped.done == []
    add_row()
    wake()
    eventually(lambda: len(stopped.done) + len(other.done) == 2)


class UnderWay(Numbers):
    """A step that sends what it wrote. Another thread returns the results later, as more numbers to process."""

    def __init__(self, *numbers):
        super().__init__(*numbers)
        self.under_way = 0
        self.wakeup = None

    def is_under_way(self):
        return self.under_way > 0 or bool(self.numbers)

    def committed(self, decided):
        sent = [number for number in decided if number < 100]
        self.under_way -= len(decided) - len(sent)
        self.under_way += len(sent)
        super().committed(decided)
        for number in sent:
            threading.Timer(0.1, self._answer, [number + 100]).start()

    def _answer(self, number):
        self.numbers.append(number)
        self.wakeup.set()


def run_until_stopped(*steps, timeout_seconds):
    wakeup = Wakeup()
    worker = Worker(steps, wakeup)
    for step in steps:
        step.wakeup = wakeup
    thread = threading.Thread(target=worker.run)
    thread.start()
    eventually(lambda: steps[0].reported)
    worker.stop(timeout_seconds=timeout_seconds)
    thread.join(20)
    assert not thread.is_alive()


@in_threads
def test_a_stopping_worker_waits_for_its_sends_writes_their_results_and_takes_no_more_rows():
    step, rows = UnderWay(1, 2), Rows()
    step.hook = lambda number: add_row() if number == 1 else None
    rows.waits = "SELECT FROM registrations_topickey WHERE topic = 7 AND EXISTS (SELECT WHERE FALSE)"
    run_until_stopped(step, rows, timeout_seconds=20)
    assert written() == names(1, 2, 101, 102)
    assert (rows.counts, TopicKey.objects.filter(topic=7).count()) == ([], 1)


def test_a_stopping_worker_does_not_go_on_at_once_because_rows_wait_for_others():
    add_row()
    worker = Worker([rows := Rows()], Wakeup())
    worker._rows.look(now=timezone.now())
    worker.stop(timeout_seconds=20)
    assert worker._rows.steps == {rows}
    assert not worker.process_batch(now=timezone.now())
    assert rows.counts == []


@in_threads
def test_a_stopping_worker_ends_after_the_timeout_also_with_sends_under_way():
    step = UnderWay(1)
    step._answer = lambda _number: None
    run_until_stopped(step, timeout_seconds=0.05)
    assert step.under_way == 1


# The wakeup -----------------------------------------------------------------------------------------------------------


def test_a_wakeup_that_several_threads_set_while_it_is_cleared_wakes_once_for_each_and_goes_on_waking():
    wakeup, is_over = Wakeup(), threading.Event()
    for _ in range(3):
        wakeup.set()
        wakeup.set()
        wakeup.clear()
        with pytest.raises(BlockingIOError):
            wakeup.clear()

    def set_again():
        while not is_over.is_set():
            wakeup.set()

    setters = [threading.Thread(target=set_again) for _ in range(3)]
    for setter in setters:
        setter.start()
    for _ in range(100):
        readable, _, _ = select.select([wakeup], [], [], 20)
        assert readable
        wakeup.clear()
    is_over.set()
    for setter in setters:
        setter.join()


@in_threads
def test_a_batch_has_the_time_of_the_database_also_when_the_clock_of_the_machine_is_wrong(monkeypatch):
    hour = timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) - hour)

    class TimedStep(Step):
        waits = "SELECT"
        now = None

        def work(self, batch):
            self.now = batch.now
            worker.stop(timeout_seconds=0)
            return Work(None)

    step = TimedStep()
    worker = Worker([step], Wakeup())
    worker.run()
    [(reported,)] = fetch("SELECT clock_timestamp()")
    assert abs(reported - step.now) < hour / 2
