"""A child of the supervisor: a forked process that becomes another program or runs a function of ours.

Only a process of one thread may fork without risk, and the supervisor is one. The child has the imported modules of the
supervisor at once, in memory that both share.

    supervisor                        child
    fork ---------------------------> session of its own, usual signals, output into the pipe, nothing else inherited
      |                               spec.prepare()
      |<-- the error, if any --------- the end of "status": by exec, or before spec.target()
    waits for the pidfd               runs
      |<----------------------------- ends

A replacement keeps "status" open, and writes a zero byte into it when it is ready.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path

from setproctitle import setproctitle

from embedded.supervisor.processes import ProcessSpec
from kit.processes import READY_VARIABLE, StartError

PR_SET_PDEATHSIG = 1  # prctl(2)
_C = ctypes.CDLL(None)
_FORK = multiprocessing.get_context("fork")
_BY_DEFAULT = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD]


@dataclass(slots=True)
class Child:
    """A running process, and when it started. ``ended`` becomes its exit code, which is negative for a signal."""

    spec: ProcessSpec
    pid: int
    pidfd: int
    ended: asyncio.Future[int]
    started_at: float  # of time.monotonic
    is_replaced: bool = False
    has_ended_output: asyncio.Event = field(default_factory=asyncio.Event)  # its output was read to the end

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended and another process may have its id."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


def fork(spec: ProcessSpec, output: int, status: int) -> Child:
    """Fork a child whose standard output and error are ``output``.

    An error before the child runs is written into ``status``. When that pipe ends empty, the child runs. With
    ``spec.announces_ready`` an empty pipe means that it has ended.
    """
    process = _FORK.Process(target=_run_child, args=(spec, output, status), name=spec.name)
    with _signals_held():
        process.start()
    pid = process.pid or 0
    pidfd = os.pidfd_open(pid)
    return Child(spec, pid, pidfd, _end_of(process, pidfd), time.monotonic())


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals, so that none reaches the child while it still has the handlers of its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_of(process: ForkProcess, pidfd: int) -> "asyncio.Future[int]":
    """Return a future that becomes the exit code of the process. ``pidfd`` is closed then."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def take_exit_code() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        process.join()
        ended.set_result(process.exitcode or 0)

    loop.add_reader(pidfd, take_exit_code)
    return ended


def _run_child(spec: ProcessSpec, output: int, status: int) -> None:
    """Run the child from its start to its end, and never return to the code of the parent."""
    parent = os.getppid()
    os.setsid()
    _usual_signals()
    _close_inherited_files(output, status)
    try:
        spec.prepare()
        os.environ.update(spec.environment)
        if spec.announces_ready:
            os.environ[READY_VARIABLE] = str(status)
            os.set_inheritable(status, True)
        if spec.target is None:
            _exec(spec, parent)
            return
    except StartError as error:
        os.write(status, str(error).encode())
        raise SystemExit(1) from error
    except OSError as error:
        os.write(status, f"{spec.name} cannot be started: {error}".encode())
        raise SystemExit(1) from error
    if not spec.announces_ready:
        os.close(status)
    _end_with(parent, spec.stop_signal)
    _run(spec.target, spec)


def _end_with(parent: int, number: signal.Signals) -> None:
    """Send this process a signal when its parent ends, for any reason: the guard may be killed with the parent."""
    _C.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent has ended already
        os.kill(os.getpid(), number)


def _usual_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _BY_DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _close_inherited_files(output: int, kept: int) -> None:
    """Close the inherited files. A lock, pipe or connection that stays open in a child would outlive the supervisor.

    Their numbers stay in use, as /dev/null: objects of the parent may still close them, and must not close new files.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for link in list(Path("/proc/self/fd").iterdir()):
        if (number := int(link.name)) > 2 and number not in {kept, nothing}:
            os.dup2(nothing, number, inheritable=False)


def _exec(spec: ProcessSpec, parent: int) -> None:
    """Replace this process by the command of ``spec``. Returns only by raising OSError."""
    if spec.folder is not None:
        os.chdir(spec.folder)
    if spec.account is not None:
        os.setgroups([])
        os.setgid(spec.account.gid)
        os.setuid(spec.account.uid)
    _end_with(parent, spec.stop_signal)  # a change of the account would undo it
    try:
        os.execvp(spec.command[0], list(spec.command))  # noqa: S606 - none is wanted
    except OSError as error:
        raise OSError(error.errno, error.strerror, spec.command[0]) from error


def _run(target: Callable[[], object], spec: ProcessSpec) -> None:
    """Run a function of ours in place of a command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    setproctitle(f"pushserver {spec.name}")  # short: it replaces our own arguments, in their place
    code = target()
    if code:
        raise SystemExit(code)
