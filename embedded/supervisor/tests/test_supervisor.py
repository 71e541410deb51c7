"""Tests of the supervisor with real, small children. No process is left after a test."""
# ruff: noqa: T201 - the output of a child shows its state

import asyncio
import errno
import io
import os
import re
import sys
import textwrap
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import psutil
import pytest
from prometheus_client import REGISTRY, Counter

from embedded.supervisor import supervisor as supervisor_module
from embedded.supervisor.guard import Guard
from embedded.supervisor.output import Lines, MergedLog
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from embedded.supervisor.supervisor import (
    Supervisor,
    describe_exit,
    failures_in_a_row,
    restart_delay_seconds,
)
from kit.errors import StartError
from kit.metrics.files import Counted

# Ends at SIGTERM after a line of output. Its child ignores every signal that can be ignored.
STUBBORN_FAMILY = """
    import os, signal, sys, time
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(1)
    signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
    print("up", flush=True)
    while True: time.sleep(1)
"""


def script(name, code, stop_order=StopOrder.FRONT, **facts):
    return ProcessSpec(name=name, command=[sys.executable, "-c", textwrap.dedent(code)], stop_order=stop_order, **facts)


def supervised(scenario):
    """Run a scenario with a supervisor and its output so far. Then everything is stopped, and no process is left."""
    stream = io.StringIO()

    async def run():
        supervisor = Supervisor(MergedLog(stream, coloured=False), guard)
        try:
            return await scenario(supervisor, stream)
        finally:
            await supervisor.stop()

    with Guard() as guard:
        result = asyncio.run(run())
    assert {child.pid for child in psutil.Process().children()} <= SESSION_CHILDREN
    return result


SESSION_CHILDREN: set[int] = set()  # the embedded servers of the test session, which stay


@pytest.fixture(autouse=True)
def remember_the_children_of_the_session():
    SESSION_CHILDREN.update(child.pid for child in psutil.Process().children())


async def appears(stream, pattern):
    deadline = time.monotonic() + 10
    while not re.search(pattern, stream.getvalue()):
        assert time.monotonic() < deadline, stream.getvalue()
        await asyncio.sleep(0.02)


def pid_of(supervisor, name):
    (child,) = [child for child in supervisor._children if child.spec.name == name]
    return child.pid


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_every_line_carries_the_name_of_its_process():
    async def scenario(supervisor, stream):
        await supervisor.run(script("one", "print('a'); print(); print('b' * 200_000); print('c', end='')"))
        return stream.getvalue()

    lines = supervised(scenario).splitlines()
    assert [line[:13] for line in lines] == ["one        | "] * 3
    assert [line[13:] for line in lines] == ["a", "b" * 200_000, "c"]


def test_each_name_keeps_its_colour():
    stream = io.StringIO()
    log = MergedLog(stream, coloured=True)
    for name in ("web", "beat", "web"):
        log.write(name, "x")
    colours = re.findall(r"\x1b\[(\d+)m\w", stream.getvalue())
    assert colours[0] == colours[2] != colours[1]


TALKER = """
import time
while True:
    print("x", flush=True)
    time.sleep(0.01)
"""


def test_lines_that_cannot_be_written_are_counted():
    class Disk(io.StringIO):
        is_full = True

        def write(self, text):
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    log = MergedLog(disk := Disk(), coloured=False)
    for number in range(3):
        log.write("web", str(number))
    disk.is_full = False
    log.write("web", "3")
    log.write("web", "4")
    reported = [line.partition("|")[2].strip() for line in disk.getvalue().splitlines()]
    assert reported == ["3 lines could not be written", "3", "4"]


def test_a_full_disk_ends_no_child():
    async def scenario(full):
        with Guard() as guard:
            supervisor = Supervisor(MergedLog(full, coloured=False), guard)
            await supervisor.start(script("talker", TALKER))
            await asyncio.sleep(0.5)
            living = [child.pid for child in supervisor._children if not child.ended.done()]
            await supervisor.stop()
            return living

    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    assert len(asyncio.run(scenario(full))) == 1
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_closed_terminal_does_not_end_the_log():
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    MergedLog(stream, coloured=False).write("web", "x")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_lines_are_whole_wherever_the_pipe_cut_them():
    taken = []
    lines = Lines(taken.append)
    for byte in "eins\nzwei ä\n".encode():
        lines.data_received(bytes([byte]))
    lines.data_received(b"\xff")
    lines.eof_received()
    assert taken == ["eins", "zwei ä", "\N{REPLACEMENT CHARACTER}"]


def test_restart_delays_double_up_to_a_limit():
    assert [restart_delay_seconds(failures) for failures in (1, 2, 3, 6, 7, 8, 1000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_a_healthy_life_restarts_the_count_of_failures():
    assert failures_in_a_row(5, lived_seconds=1) == 6
    assert failures_in_a_row(5, lived_seconds=60) == 1


def test_exits_are_described_for_people():
    assert describe_exit(3) == "ended with code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"


def test_a_process_that_dies_is_restarted_with_one_line_in_the_log(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)

    async def scenario(supervisor, stream):
        await supervisor.start(script("short", "print('alive'); exit(3)"))
        await appears(stream, r"(?s)(alive.*){3}")
        return stream.getvalue()

    shown = [line for line in supervised(scenario).splitlines() if line.startswith("up ")]
    assert shown[:2] == [
        "up         | short ended with code 3, starting it again in 0.05 s",
        "up         | short ended with code 3, starting it again in 0.1 s",
    ]


def test_a_killed_process_is_restarted_without_its_orphans(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)

    async def scenario(supervisor, stream):
        await supervisor.start(script("family", STUBBORN_FAMILY))
        await appears(stream, "up\n")
        leader = psutil.Process(pid_of(supervisor, "family"))
        (orphan,) = leader.children()
        leader.kill()
        await appears(stream, r"(?s)was ended by SIGKILL.*\| up\n")
        return orphan.pid

    assert is_gone(supervised(scenario))


def test_a_process_that_cannot_be_started_is_an_error_of_one_line():
    async def scenario(supervisor, _):
        await supervisor.start(ProcessSpec(name="web", command=["/nowhere/web"], stop_order=StopOrder.FRONT))

    with pytest.raises(StartError, match=r"^web cannot be started: .*No such file"):
        supervised(scenario)


def test_a_process_that_cannot_be_prepared_again_is_tried_until_it_can(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.02)
    lives = tmp_path / "lives"

    def prepare():  # runs in the child, and each time in another one
        lives.open("a").write("x")
        if lives.read_text() == "xx":
            raise StartError("disk full")

    async def scenario(supervisor, stream):
        await supervisor.start(script("disk", "print('alive')", prepare=prepare))
        await appears(stream, r"(?s)alive.*cannot be started \(disk full\), starting it again.*alive")

    supervised(scenario)


def test_processes_are_stopped_in_their_order():
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), print("stopped", flush=True), sys.exit(0)))
        print("up", flush=True)
        while True: time.sleep(1)
    """

    async def scenario(supervisor, stream):
        for stop_order in reversed(StopOrder):
            await supervisor.start(script(stop_order.name.lower(), code, stop_order=stop_order))
        await appears(stream, r"(?s)(\| up\n.*){5}")
        await supervisor.stop()
        return stream.getvalue()

    stopped = re.findall(r"(\w+) +\| stopped", supervised(scenario))
    assert stopped == [stop_order.name.lower() for stop_order in StopOrder]


def test_a_process_that_does_not_stop_in_time_is_killed_and_named():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"

    async def scenario(supervisor, stream):
        await supervisor.start(script("deaf", code, stop_seconds=0.3))
        await appears(stream, r"\| up")
        await supervisor.stop()
        return stream.getvalue()

    assert "deaf did not stop in time and is killed" in supervised(scenario)


def test_hurry_waits_for_data_only():
    code = """
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.5), print("saved", flush=True), sys.exit(0)))
        print("up", flush=True)
        while True: time.sleep(1)
    """

    async def scenario(supervisor, stream):
        for stop_order in (StopOrder.WORKER, StopOrder.DATABASE):
            await supervisor.start(script(stop_order.name.lower(), code, stop_order=stop_order, stop_signal=SIGINT))
        await appears(stream, r"(?s)(\| up\n.*){2}")
        supervisor.hurry()
        await supervisor.stop()
        return stream.getvalue()

    output = supervised(scenario)
    assert "worker did not stop in time and is killed" in output
    assert re.findall(r"(\w+) +\| saved", output) == ["database"]


def forked(name, target, **facts):
    """Return a spec whose target runs in a forked child. Its command would fail."""
    return ProcessSpec(name=name, command=["/nowhere", name], target=target, stop_order=StopOrder.FRONT, **facts)


def lines_of(*specs):
    async def scenario(supervisor, stream):
        codes = [await supervisor.run(spec) for spec in specs]
        return codes, re.findall(r"\| (.*)\n", stream.getvalue())

    return supervised(scenario)


def test_a_function_runs_in_a_child_with_the_modules_imported_here():
    def target():
        print(re.sub("o", "0", "foo"), os.getppid() == parent, os.getsid(0) == os.getpid())
        print(psutil.Process().cmdline()[0], file=sys.stderr)

    parent = os.getpid()
    assert lines_of(forked("function", target)) == ([0], ["f00 True True", "pushserver function"])


@pytest.mark.parametrize(
    ("target", "code", "last_line"),
    [
        (lambda: 3, 3, None),
        (lambda: sys.exit(4), 4, None),
        (lambda: sys.exit("not like this"), 1, "not like this"),
        (lambda: 1 / 0, 1, "ZeroDivisionError: division by zero"),
        (lambda: os.kill(os.getpid(), SIGTERM), -SIGTERM, None),
    ],
)
def test_a_function_ends_like_a_program(target, code, last_line):
    codes, lines = lines_of(forked("function", target))
    assert codes == [code]
    assert lines[-1:] == ([last_line] if last_line else [])


def test_a_function_sees_the_environment_of_its_process_only():
    spec = forked("function", lambda: print(os.environ["WHOSE"]), environment={"WHOSE": "mine"})
    assert lines_of(spec) == ([0], ["mine"])
    assert "WHOSE" not in os.environ


def test_a_child_holds_nothing_open_that_its_parent_has_opened(tmp_path):
    """Otherwise a lock, or a pipe whose end a process waits for, would outlive the supervisor."""

    def target():
        print({str(link.readlink()) for link in Path("/proc/self/fd").glob("[0-9]*") if link.is_char_device()})
        print(str(tmp_path) in str([link.readlink() for link in Path("/proc/self/fd").glob("[0-9]*") if link.exists()]))

    with (tmp_path / "lock").open("w"):
        _, lines = lines_of(forked("function", target))
    assert lines == ["{'/dev/null'}", "False"]


def test_objects_of_the_parent_close_no_file_of_the_child(tmp_path):
    """Objects of the parent still exist in the child. Some, such as those of prometheus_client, close their files."""

    def target():
        with (tmp_path / "own").open("w") as own:
            held.close()
            own.write("written")
        print((tmp_path / "own").read_text())

    with (tmp_path / "lock").open("w") as held:
        assert lines_of(forked("function", target)) == ([0], ["written"])


def test_a_child_runs_an_event_loop_of_its_own_and_can_be_interrupted():
    async def sleep():
        await asyncio.sleep(0.01)
        print("slept")
        os.kill(os.getpid(), SIGINT)
        await asyncio.sleep(10)

    def target():
        try:
            asyncio.run(sleep())
        except KeyboardInterrupt:
            print("interrupted")

    assert lines_of(forked("function", target)) == ([0], ["slept", "interrupted"])


def test_a_function_that_is_killed_is_run_again(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)

    def target():
        print("alive")
        time.sleep(60)

    async def scenario(supervisor, stream):
        await supervisor.start(forked("function", target))
        await appears(stream, r"\| alive")
        psutil.Process(pid_of(supervisor, "function")).kill()
        await appears(stream, r"(?s)was ended by SIGKILL.*\| alive")

    supervised(scenario)


READY = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: (print(WHO, "leaves", flush=True), sys.exit(0)))
    print(WHO, "starts", flush=True)
    time.sleep(0.2)
    print(WHO, "is ready", flush=True)
    if "READY_FD" in os.environ: os.write(int(os.environ["READY_FD"]), b"\\0")
    while True: time.sleep(1)
"""


def who(name, **facts):
    return script("worker", f"WHO = {name!r}\n" + textwrap.dedent(READY), **facts)


@pytest.mark.parametrize("announces_ready", [True, False])
def test_a_process_is_replaced_by_a_ready_one_if_it_announces_that(announces_ready):
    async def scenario(supervisor, stream):
        await supervisor.start(who("old", announces_ready=announces_ready))
        await appears(stream, "old is ready")
        await supervisor.replace(who("new", announces_ready=announces_ready))
        await appears(stream, "new is ready")
        assert len(supervisor._children) == 1
        return re.findall(r"\| (.*)\n", stream.getvalue())

    overlapping = ["new starts", "new is ready", "old leaves"]
    apart = ["old leaves", "new starts", "new is ready"]
    assert supervised(scenario)[2:] == (overlapping if announces_ready else apart)


def test_the_replacement_is_restarted_and_the_replaced_process_is_not(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)

    async def scenario(supervisor, stream):
        await supervisor.start(who("old", announces_ready=True))
        await supervisor.replace(who("new", announces_ready=True))
        psutil.Process(pid_of(supervisor, "worker")).kill()
        await appears(stream, "(?s)old leaves.*SIGKILL, starting it again.*new is ready")
        return stream.getvalue()

    assert supervised(scenario).count("old starts") == 1


@pytest.mark.parametrize("announces_ready", [True, False])
def test_a_process_replaced_while_it_waits_for_its_restart_is_not_restarted(monkeypatch, announces_ready):
    """A process that crashes repeatedly is nearly always in that pause. An upgrade is meant to replace it."""
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 1.0)

    async def scenario(supervisor, stream):
        await supervisor.start(script("worker", "print('old starts')"))
        await appears(stream, "starting it again in 1 s")
        await supervisor.replace(who("new", announces_ready=announces_ready))
        await asyncio.sleep(1.2)
        assert len(supervisor._children) == 1
        return stream.getvalue()

    assert supervised(scenario).count("old starts") == 1


def test_a_process_whose_replacement_fails_stays():
    async def scenario(supervisor, stream):
        await supervisor.start(who("old", announces_ready=True))
        await appears(stream, "old is ready")
        with pytest.raises(StartError, match="worker ended before it was ready"):
            await supervisor.replace(script("worker", "print('new fails')", announces_ready=True))
        await appears(stream, "new fails")
        assert len(supervisor._children) == 1
        assert "leaves" not in stream.getvalue()

    supervised(scenario)


def test_a_supervisor_has_one_thread():
    """A process with a second thread cannot fork safely."""

    async def scenario(supervisor, stream):
        await supervisor.start(script("program", "print('up')"))
        await supervisor.run(forked("function", lambda: print(threading.active_count())))
        await appears(stream, r"function +\| 1\n")
        return threading.active_count()

    before = threading.active_count()
    assert supervised(scenario) == before


def test_a_child_counts_in_files_of_its_own(settings):
    """The counter is inherited in memory, where both processes could write to the same file."""
    counter = Counter("forked", "A test.")
    counter.inc(2)

    def target():
        counter.inc(40)
        print(sorted(file.name for file in settings.METRICS_DIR.glob(f"counter_{os.getpid()}.db")) != [])

    try:
        assert lines_of(forked("function", target)) == ([0], ["True"])
        counted = {
            sample.name: sample.value for family in Counted(settings.METRICS_DIR).collect() for sample in family.samples
        }
        assert counter._value.get() == 2
        assert counted["forked_total"] == 42
    finally:
        REGISTRY.unregister(counter)


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM])
@pytest.mark.parametrize("target", ["None", "lambda: exec(FAMILY, {})"])
def test_nothing_outlives_a_supervisor_that_is_killed(target, number, tmp_path):
    """It is killed while a child of its child ignores SIGTERM."""
    with living_supervisor(target, tmp_path) as parent:
        family = parent.children(recursive=True)
        assert len(family) == 3  # guard, leader, grandchild
        parent.send_signal(number)
        parent.wait()
        wait_until(lambda: all(is_gone(member.pid) for member in family))


@contextmanager
def living_supervisor(target, tmp_path):
    """Start a supervisor in a process of its own. It runs a family whose youngest member ignores SIGTERM."""
    code = f"""
        import asyncio, sys
        FAMILY = {textwrap.dedent(STUBBORN_FAMILY)!r}
        from embedded.supervisor.guard import Guard
        from embedded.supervisor.output import MergedLog
        from embedded.supervisor.supervisor import Supervisor
        from embedded.supervisor.processes import ProcessSpec, StopOrder
        async def main():
            command = [sys.executable, "-c", FAMILY]
            spec = ProcessSpec(name="f", command=command, target={target}, stop_order=StopOrder.FRONT)
            await supervisor.start(spec)
            await asyncio.sleep(60)
        with Guard(grace_seconds=0.5) as g:
            supervisor = Supervisor(MergedLog(sys.stdout, coloured=False), g)
            asyncio.run(main())
    """
    with (tmp_path / "out").open("w") as out:
        parent = psutil.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=PROJECT, stdout=out)
    wait_until(lambda: "up" in (tmp_path / "out").read_text(encoding="utf-8"))
    yield parent
    parent.wait()


@pytest.mark.parametrize("target", ["None", "lambda: exec(FAMILY, {})"])
def test_children_end_when_supervisor_and_guard_are_killed_at_once(target, tmp_path):
    with living_supervisor(target, tmp_path) as parent:
        family = parent.children(recursive=True)
        guard, leader = parent.children()
        for each in (guard, parent):
            each.kill()
        try:
            wait_until(lambda: is_gone(leader.pid))
        finally:
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def wait_until(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
