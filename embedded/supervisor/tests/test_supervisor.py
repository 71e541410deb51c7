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
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM

import psutil
import pytest
from prometheus_client import REGISTRY, Counter

from embedded.supervisor import supervisor as supervisor_module
from embedded.supervisor.guard import Guard
from embedded.supervisor.output import Lines, MergedLog
from embedded.supervisor.processes import PROJECT, ProcessSpec, StopOrder
from embedded.supervisor.supervisor import Supervisor, failures_in_a_row, restart_delay_seconds
from kit.exposition import Counted
from kit.processes import StartError
from tests.rig.server import is_alive, wait_until

# Ends at SIGTERM after a line of output. Its child ignores every signal that can be ignored.
FAMILY = """
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
    before = {child.pid for child in psutil.Process().children()}

    async def run():
        supervisor = Supervisor(MergedLog(stream, coloured=False), guard)
        try:
            return await scenario(supervisor, stream)
        finally:
            await supervisor.stop()

    with Guard() as guard:
        result = asyncio.run(run())
    assert {child.pid for child in psutil.Process().children()} <= before
    return result


async def appears(stream, pattern):
    deadline = time.monotonic() + 60
    while not re.search(pattern, stream.getvalue()):
        assert time.monotonic() < deadline, stream.getvalue()
        await asyncio.sleep(0.02)


def pid_of(supervisor, name):
    (child,) = [child for child in supervisor._children if child.spec.name == name]
    return child.pid


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Restart processes after a short pause."""
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)


# The merged log -------------------------------------------------------------------------------------------------------
def test_every_line_is_whole_and_carries_the_name_of_its_process_in_its_colour():
    async def scenario(supervisor, stream):
        await supervisor.run(script("one", "print('a'); print(); print('b' * 200_000); print('c', end='')"))
        return stream.getvalue()

    lines = supervised(scenario).splitlines()
    assert [line[:13] for line in lines] == ["one        | "] * 3
    assert [line[13:] for line in lines] == ["a", "b" * 200_000, "c"]
    pipe = Lines((taken := []).append)
    for byte in "zwei ä\n".encode() + b"\xff":
        pipe.data_received(bytes([byte]))
    pipe.eof_received()
    assert taken == ["zwei ä", "\N{REPLACEMENT CHARACTER}"]
    log = MergedLog(stream := io.StringIO(), coloured=True)
    for name in ("web", "beat", "web"):
        log.write(name, "x")
    colours = re.findall(r"\x1b\[(\d+)m\w", stream.getvalue())
    assert colours[0] == colours[2] != colours[1]


def test_lines_that_cannot_be_written_are_counted_and_end_nothing():
    class Disk(io.StringIO):
        is_full = True

        def write(self, text):
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    log = MergedLog(disk := Disk(), coloured=False)
    for number in range(5):
        disk.is_full = number < 3
        log.write("web", str(number))
    reported = [line.partition("|")[2].strip() for line in disk.getvalue().splitlines()]
    assert reported == ["3 lines could not be written", "3", "4"]


# Restarts -------------------------------------------------------------------------------------------------------------
def test_restart_delays_double_up_to_a_limit_and_a_healthy_life_begins_anew():
    assert [restart_delay_seconds(failures) for failures in (1, 2, 3, 10, 11, 1000)] == [0.05, 0.1, 0.2, 25.6, 30, 30]
    assert [failures_in_a_row(5, lived_seconds=seconds) for seconds in (1, 60)] == [6, 1]


def test_a_process_that_dies_or_cannot_be_prepared_again_is_restarted_with_one_line_in_the_log(tmp_path):
    lives = tmp_path / "lives"

    def prepare():  # runs in the child, and each time in another one
        lives.open("a").write("x")
        if lives.read_text() == "xx":
            raise StartError("disk full")

    async def scenario(supervisor, stream):
        await supervisor.start(script("short", "print('alive'); exit(3)", prepare=prepare))
        await appears(stream, r"(?s)(alive.*){2}")
        return stream.getvalue()

    shown = [line for line in supervised(scenario).splitlines() if line.startswith("up ")]
    assert shown[:2] == [
        "up         | short ended with code 3, starting it again in 0.05 s",
        "up         | short cannot be started (disk full), starting it again in 0.1 s",
    ]


def forked(name, target, **facts):
    """Return a spec whose target runs in a forked child. Its command would fail."""
    return ProcessSpec(name=name, command=["/nowhere", name], target=target, stop_order=StopOrder.FRONT, **facts)


@pytest.mark.parametrize("spec", [script("it", FAMILY), forked("it", partial(exec, FAMILY, {}))], ids=["exec", "fork"])
def test_a_killed_process_is_restarted_without_its_orphans(spec):
    async def scenario(supervisor, stream):
        await supervisor.start(spec)
        await appears(stream, "up\n")
        leader = psutil.Process(pid_of(supervisor, "it"))
        [orphan] = leader.children()
        leader.kill()
        await appears(stream, r"(?s)was ended by SIGKILL.*\| up\n")
        assert not is_alive(orphan)

    supervised(scenario)


# The end --------------------------------------------------------------------------------------------------------------
SLOW = """
    import signal, sys, time
    signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.3), print("stopped", flush=True), sys.exit(0)))
    print("up", flush=True)
    while True: time.sleep(1)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize("is_hurried", [False, True])
def test_processes_are_stopped_in_their_order_and_killed_when_their_time_is_up_or_nobody_waits_for_work(is_hurried):
    async def scenario(supervisor, stream):
        for order in reversed(StopOrder):
            await supervisor.start(script(order.name.lower(), SLOW, stop_order=order, stop_signal=SIGINT))
        await supervisor.start(script("deaf", DEAF, stop_seconds=0.4))
        await appears(stream, r"(?s)(\| up\n.*){6}")
        if is_hurried:
            supervisor.hurry()
        await supervisor.stop()
        return stream.getvalue()

    output = supervised(scenario)
    awaited = [order for order in StopOrder if order >= StopOrder.BROKER or not is_hurried]
    assert re.findall(r"(\w+) +\| stopped", output) == [order.name.lower() for order in awaited]
    assert "deaf did not stop in time and is killed" in output


# Functions in a child -------------------------------------------------------------------------------------------------
def lines_of(target, **facts):
    async def scenario(supervisor, stream):
        code = await supervisor.run(forked("function", target, **facts))
        return code, re.findall(r"\| (.*)\n", stream.getvalue())

    return supervised(scenario)


def test_a_function_runs_in_a_child_with_our_modules_and_nothing_open_of_its_parent(tmp_path):
    """Otherwise a lock, or a pipe whose end a process waits for, would outlive the supervisor.

    Objects of the parent still exist in the child. Some, such as those of prometheus_client, close their files.
    """

    def target():
        print(re.sub("o", "0", "foo"), os.environ["WHOSE"], threading.active_count())
        print(os.getppid() == parent, os.getsid(0) == os.getpid(), psutil.Process().cmdline()[0], file=sys.stderr)
        files = [str(link.readlink()) for link in Path("/proc/self/fd").glob("[0-9]*") if link.exists()]
        print({name for name in files if name.startswith("/dev/")}, str(tmp_path) in str(files))
        with (tmp_path / "own").open("w") as own:
            held.close()
            own.write("written")
        print((tmp_path / "own").read_text())
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), SIGINT)
            time.sleep(10)
        print("interrupted")
        return 3

    parent, before = os.getpid(), threading.active_count()
    with (tmp_path / "lock").open("w") as held:
        code, lines = lines_of(target, environment={"WHOSE": "mine"})
    assert lines[:2] == ["f00 mine 1", "True True pushserver function"]
    assert (code, lines[2:]) == (3, ["{'/dev/null'} False", "written", "interrupted"])
    assert ("WHOSE" in os.environ, threading.active_count()) == (False, before)  # only one thread may fork


def test_a_child_counts_in_files_of_its_own(settings):
    """The counter is inherited in memory, where both processes could write to the same file."""
    counter = Counter("forked", "A test.")
    counter.inc(2)
    try:
        assert lines_of(lambda: counter.inc(40)) == (0, [])
        samples = [sample for family in Counted(settings.METRICS_DIR).collect() for sample in family.samples]
        assert [sample.value for sample in samples if sample.name == "forked_total"] == [42]
        assert counter._value.get() == 2
    finally:
        REGISTRY.unregister(counter)


# Replacements ---------------------------------------------------------------------------------------------------------
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


either = pytest.mark.parametrize("announces_ready", [True, False])


@either
def test_a_process_is_replaced_by_a_ready_one_if_it_announces_that_and_is_not_restarted_itself(announces_ready):
    async def scenario(supervisor, stream):
        await supervisor.start(who("old", announces_ready=announces_ready))
        await appears(stream, "old is ready")
        with pytest.raises(StartError, match=r"^worker cannot be started: .*No such file"):
            await supervisor.replace(forked("worker", None, announces_ready=True))
        with pytest.raises(StartError, match="worker ended before it was ready"):
            await supervisor.replace(script("worker", "exit()", announces_ready=True))
        await supervisor.replace(who("new", announces_ready=announces_ready))
        await appears(stream, "new is ready")
        psutil.Process(pid_of(supervisor, "worker")).kill()
        await appears(stream, "(?s)old leaves.*SIGKILL, starting it again.*new is ready")
        return re.findall(r"worker +\| (.*)\n", stream.getvalue())

    new = ["new starts", "new is ready"]
    assert supervised(scenario)[2:] == [*([*new, "old leaves"] if announces_ready else ["old leaves", *new]), *new]


@either
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


# SIGKILL --------------------------------------------------------------------------------------------------------------
SUPERVISOR = f"""
import asyncio, sys
FAMILY = {FAMILY!r}
from embedded.supervisor.guard import Guard
from embedded.supervisor.output import MergedLog
from embedded.supervisor.supervisor import Supervisor
from embedded.supervisor.processes import ProcessSpec, StopOrder
async def main():
    command = [sys.executable, "-c", FAMILY]
    await supervisor.start(ProcessSpec(name="f", command=command, target=TARGET, stop_order=StopOrder.FRONT))
    await asyncio.sleep(60)
with Guard(grace_seconds=0.5) as g:
    supervisor = Supervisor(MergedLog(sys.stdout, coloured=False), g)
    asyncio.run(main())
"""
PROGRAM, FUNCTION = "None", "lambda: exec(FAMILY, {})"


@pytest.mark.parametrize(("target", "has_guard"), [(PROGRAM, True), (PROGRAM, False), (FUNCTION, False)])
def test_nothing_outlives_a_supervisor_that_is_killed(target, has_guard, tmp_path):
    """A child of its child ignores SIGTERM. That one stays when the guard is killed at the same moment."""
    with (tmp_path / "out").open("w") as out:
        command = [sys.executable, "-c", SUPERVISOR.replace("TARGET", target)]
        parent = psutil.Popen(command, cwd=PROJECT, stdout=out)
    wait_until(lambda: "up" in (tmp_path / "out").read_text(encoding="utf-8"), what="the family is up")
    family = parent.children(recursive=True)
    guard, leader = parent.children()
    assert len(family) == 3
    for each in [parent] if has_guard else [guard, parent]:
        each.kill()
    parent.wait()
    try:
        wait_until(lambda: not any(map(is_alive, family if has_guard else [leader])), what="all are gone")
    finally:
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def test_a_process_that_starts_while_all_are_stopped_is_stopped_too():
    async def scenario(supervisor, stream):
        await supervisor.stop()
        return await supervisor.run(script("late", "import time; time.sleep(600)"))

    assert supervised(scenario) == -SIGTERM
