"""Benchmark of one XMPP notification: accepted, and delivered, with few devices and with many.

Accepted: bytes of the stream → stanza → verified, stored and answered, with PostgreSQL, in batches as they come under
load. Delivered: also the batches of a worker, with their POST. The CPU time of this process is counted, which does the
work of the component and of a worker process, and that of PostgreSQL. The floor is parsing the stanza in a bare loop,
and one keep-alive POST by aiohttp. Every figure is the minimum of several rounds. Run alone with ``python -m bench
xmpp``.
"""

import asyncio

import psutil
from rich.console import Console
from rich.table import Table

from bench.request.path import servers_of_one_process
from bench.running import floors, servers

ROUNDS = 4
PUSHES = 1000
BATCH = 50
FEW_DEVICES, FULL_DEVICES = 100, 100_000
ACCEPTANCE_TARGET_MS = 1.0
DELIVERY_TARGET = 2.0


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with servers_of_one_process() as postgres:
        few = _measure(postgres, FEW_DEVICES)
        full = _measure(postgres, FULL_DEVICES)
    with servers.gorush() as gorush_url:
        post_ms = asyncio.run(floors.post_ms(f"{gorush_url}/dev/nothing", floors.GORUSH_BYTES))
    floor_ms = few["parse"] + post_ms
    result: dict[str, object] = {
        "stages_ms": few,
        "stages_with_many_devices_ms": full,
        "post_floor_ms": post_ms,
        "accepted_ms": _accepted_ms(few),
        "accepted_with_many_devices_ms": _accepted_ms(full),
        "delivered_ms": sum(few.values()),
        "delivered_by_floor": sum(few.values()) / floor_ms,
        "many_by_few": sum(full.values()) / sum(few.values()),
    }
    _print(few, full, post_ms, result)
    return result


def _accepted_ms(parts: dict[str, float]) -> float:
    return parts["parse"] + parts["stanza_handler"] + parts["stanza_handler: postgres"]


def _measure(postgres: psutil.Process, devices: int) -> dict[str, float]:
    """Return the CPU milliseconds of a push, by part."""
    from bench.request.xmpp_parts import Parts  # noqa: PLC0415 - it imports models, so after Django is set up

    parts = Parts(postgres, devices=devices, pushes=PUSHES, batch=BATCH)
    rounds = [parts.run() for _ in range(ROUNDS)]
    return {name: min(each[name] for each in rounds) * 1000 / PUSHES for name in rounds[0]}


def _print(few: dict[str, float], full: dict[str, float], post_ms: float, result: dict[str, object]) -> None:
    table = Table(title="One XMPP notification: CPU time")
    for column in ("part", f"ms, {FEW_DEVICES:,} devices", f"ms, {FULL_DEVICES:,} devices"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, value in few.items():
        table.add_row(name, f"{value:.3f}", f"{full[name]:.3f}")
    table.add_section()
    table.add_row("floor: POST", f"{post_ms:.3f}", "")
    table.add_row("accepted", f"{result['accepted_ms']:.3f}", f"{result['accepted_with_many_devices_ms']:.3f}")
    table.add_row("delivered", f"{result['delivered_ms']:.3f}", f"{sum(full.values()):.3f}")
    table.add_row("delivered / (parse + POST floor)", f"{result['delivered_by_floor']:.2f}", "")
    table.add_row("many devices / few", f"{result['many_by_few']:.2f}", "")
    Console().print(
        table,
        f"Targets: accepted {ACCEPTANCE_TARGET_MS:g} ms, delivered {DELIVERY_TARGET:g} (parse + POST floor)",
    )
