"""The supervisor with real, small children. Each test ends with nobody left."""

import asyncio
import io
import os
import re
import sys
import textwrap
import time
from contextlib import asynccontextmanager
from signal import SIGINT, SIGKILL, SIGTERM

import psutil
import pytest

from pushserver.supervisor import supervisor as supervisor_module
from pushserver.supervisor.guard import Guard
from pushserver.supervisor.output import Lines, MergedLog
from pushserver.supervisor.processes import PROJECT, ProcessSpec, Stage, StartError
from pushserver.supervisor.supervisor import (
    Supervisor,
    describe_exit,
    failures_in_a_row,
    restart_delay_seconds,
)

# Ends at SIGTERM, after saying so; takes along a grandchild that ignores everything.
STUBBORN_FAMILY = """
    import os, signal, sys, time
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(1)
    signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
    print("up", flush=True)
    while True: time.sleep(1)
"""


def script(name, code, stage=Stage.FRONT, **facts):
    return ProcessSpec(name=name, command=[sys.executable, "-c", textwrap.dedent(code)], stage=stage, **facts)


@asynccontextmanager
async def supervised():
    """A supervisor and what it has written so far; afterwards everything is stopped and nobody is left."""
    stream = io.StringIO()
    with Guard() as guard:
        supervisor = Supervisor(MergedLog(stream, coloured=False), guard)
        try:
            yield supervisor, stream
        finally:
            await supervisor.stop()
    assert {child.pid for child in psutil.Process().children()} <= SESSION_CHILDREN


SESSION_CHILDREN: set[int] = set()  # the embedded servers of the test session, which stay


@pytest.fixture(autouse=True)
def remember_the_children_of_the_session():
    SESSION_CHILDREN.update(child.pid for child in psutil.Process().children())


async def appears(stream, pattern, seconds=10):
    deadline = time.monotonic() + seconds
    while not re.search(pattern, stream.getvalue()):
        assert time.monotonic() < deadline, stream.getvalue()
        await asyncio.sleep(0.02)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_every_line_carries_the_name_of_its_process():
    async def scenario():
        async with supervised() as (supervisor, stream):
            await supervisor.run(script("one", "print('a'); print(); print('b' * 200_000); print('c', end='')"))
            return stream.getvalue()

    lines = asyncio.run(scenario()).splitlines()
    assert [line[:13] for line in lines] == ["one        | "] * 3
    assert [line[13:] for line in lines] == ["a", "b" * 200_000, "c"]


def test_each_name_keeps_its_colour():
    stream = io.StringIO()
    log = MergedLog(stream, coloured=True)
    for name in ("web", "beat", "web"):
        log.write(name, "x")
    colours = re.findall(r"\x1b\[(\d+)m\w", stream.getvalue())
    assert colours[0] == colours[2] != colours[1]


def test_a_closed_terminal_does_not_end_the_log():
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    MergedLog(stream, coloured=False).write("web", "x")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_lines_are_cut_wherever_the_pipe_cut_them():
    taken = []
    lines = Lines(taken.append)
    for byte in "eins\nzwei ä\n".encode():
        lines.data_received(bytes([byte]))
    lines.data_received(b"\xff")
    lines.eof_received()
    assert taken == ["eins", "zwei ä", "\N{REPLACEMENT CHARACTER}"]


def test_restart_delays_double_up_to_a_limit():
    assert [restart_delay_seconds(failures) for failures in (1, 2, 3, 6, 7, 8, 1000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_a_healthy_life_starts_the_record_anew():
    assert failures_in_a_row(5, lived_seconds=1) == 6
    assert failures_in_a_row(5, lived_seconds=60) == 1


def test_exits_are_described_for_people():
    assert describe_exit(3) == "ended with code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"


def test_a_process_that_dies_is_started_again_and_that_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)

    async def scenario():
        async with supervised() as (supervisor, stream):
            await supervisor.start(script("short", "print('alive'); exit(3)"))
            await appears(stream, r"(?s)(alive.*){3}")
            return stream.getvalue()

    said = [line for line in asyncio.run(scenario()).splitlines() if line.startswith("up ")]
    assert said[:2] == [
        "up         | short ended with code 3, starting it again in 0.05 s",
        "up         | short ended with code 3, starting it again in 0.1 s",
    ]


def test_a_killed_process_is_started_again_without_its_orphans(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.05)

    async def scenario():
        async with supervised() as (supervisor, stream):
            await supervisor.start(script("family", STUBBORN_FAMILY))
            await appears(stream, "up\n")
            leader = psutil.Process(supervisor._children["family"].process.pid)
            (orphan,) = leader.children()
            leader.kill()
            await appears(stream, r"(?s)was ended by SIGKILL.*\| up\n")
            return orphan.pid

    assert is_gone(asyncio.run(scenario()))


def test_what_cannot_be_started_is_an_error_of_one_line():
    async def scenario():
        async with supervised() as (supervisor, _):
            await supervisor.start(ProcessSpec(name="web", command=["/nowhere/web"], stage=Stage.FRONT))

    with pytest.raises(StartError, match=r"^web cannot be started: .*No such file"):
        asyncio.run(scenario())


def test_a_process_that_cannot_be_prepared_again_is_tried_until_it_can(monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_SECONDS", 0.02)
    outcomes = iter([None, StartError("disk full"), None])

    def prepare():
        outcome = next(outcomes, None)
        if outcome:
            raise outcome

    async def scenario():
        async with supervised() as (supervisor, stream):
            await supervisor.start(script("disk", "print('alive')", prepare=prepare))
            await appears(stream, r"(?s)alive.*cannot be started \(disk full\), starting it again.*alive")

    asyncio.run(scenario())


def test_stages_are_stopped_in_order():
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), print("stopped", flush=True), sys.exit(0)))
        print("up", flush=True)
        while True: time.sleep(1)
    """

    async def scenario():
        async with supervised() as (supervisor, stream):
            for stage in reversed(Stage):
                await supervisor.start(script(stage.name.lower(), code, stage=stage))
            await appears(stream, r"(?s)(\| up\n.*){6}")
            await supervisor.stop()
            return stream.getvalue()

    stopped = re.findall(r"(\w+) +\| stopped", asyncio.run(scenario()))
    assert stopped == [stage.name.lower() for stage in Stage]


def test_whoever_does_not_stop_in_time_is_killed_and_named():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"

    async def scenario():
        async with supervised() as (supervisor, stream):
            await supervisor.start(script("deaf", code, stop_seconds=0.3))
            await appears(stream, r"\| up")
            await supervisor.stop()
            return stream.getvalue()

    assert "deaf did not stop in time and is killed" in asyncio.run(scenario())


def test_hurry_waits_for_data_only():
    code = """
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.5), print("saved", flush=True), sys.exit(0)))
        print("up", flush=True)
        while True: time.sleep(1)
    """

    async def scenario():
        async with supervised() as (supervisor, stream):
            for stage in (Stage.WORKER, Stage.DATABASE):
                await supervisor.start(script(stage.name.lower(), code, stage=stage, stop_signal=SIGINT))
            await appears(stream, r"(?s)(\| up\n.*){2}")
            supervisor.hurry()
            await supervisor.stop()
            return stream.getvalue()

    output = asyncio.run(scenario())
    assert "worker did not stop in time and is killed" in output
    assert re.findall(r"(\w+) +\| saved", output) == ["database"]


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM])
def test_nothing_outlives_a_supervisor_that_is_killed(number, tmp_path):
    """In a process of its own, which is killed while a family runs whose child ignores SIGTERM."""
    code = f"""
        import asyncio, sys
        from pushserver.supervisor.guard import Guard
        from pushserver.supervisor.output import MergedLog
        from pushserver.supervisor.supervisor import Supervisor
        from pushserver.supervisor.processes import ProcessSpec, Stage
        async def main():
            spec = ProcessSpec(name="f", command=[sys.executable, "-c", {textwrap.dedent(STUBBORN_FAMILY)!r}],
                               stage=Stage.FRONT)
            await supervisor.start(spec)
            await asyncio.sleep(60)
        with Guard(grace_seconds=0.5) as g:
            supervisor = Supervisor(MergedLog(sys.stdout, coloured=False), g)
            asyncio.run(main())
    """
    with (tmp_path / "out").open("w") as out:
        parent = psutil.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=PROJECT, stdout=out)
    wait_until(lambda: "up" in (tmp_path / "out").read_text(encoding="utf-8"))
    family = parent.children(recursive=True)
    assert len(family) == 3  # guard, leader, grandchild
    parent.send_signal(number)
    parent.wait()
    wait_until(lambda: all(is_gone(member.pid) for member in family))


def wait_until(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
