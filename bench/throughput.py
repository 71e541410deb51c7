"""Benchmark of the saturated server, and of the delay of a message when it is not saturated, seen from outside.

It drives exactly what users start, `manage.py up`. Messages are published to a development node, pushes arrive at a
development gorush, and replies at the node. Both run beside the server on the same cores and are not counted. The
floors (cryptography in a bare loop, two POSTs) are measured in the same run, so that the ratios hold on a busy machine,
too. One floor is measured alone, and the goals refer to it. The other is measured on all cores at once, as in a
saturated server. It takes some minutes.
"""

from collections.abc import Mapping

from bench.running import floors
from bench.running.fleet import fleet
from bench.running.load import Load, Run
from bench.running.phones import Phones
from bench.running.tables import show, show_figures

PHONES, BACKLOG = 1500, 6000
SECONDS = 15
CORES = 2


def run() -> dict[str, object]:
    """Measure everything, print it, and return the figures."""
    floor, crowded_ms = floors.measure(), floors.crowded_ms()
    registrations, requests, steady = _with_all_cores()
    by_one = with_processes(1)
    figures = {
        "crypto_floor_ms": floor.crypto_ms,
        "http_floor_ms": floor.http_ms,
        "request_cpu_ms": requests.cpu_ms,
        "crowded_floor_ms": crowded_ms,
        "efficiency": floor.total_ms / requests.cpu_ms,
        "efficiency_crowded": crowded_ms / requests.cpu_ms,
        "requests_per_second": requests.per_second,
        "requests_per_second_alone": CORES * 1000 / requests.cpu_ms,  # if only the server ran on them
        "registration_cpu_ms": registrations.cpu_ms,
        "registrations_per_second": registrations.per_second,
        "growth_by_cpu": 2 * by_one.cpu_ms / requests.cpu_ms,
        "growth": requests.per_second / by_one.per_second,
    }
    for name, paced in {**steady, "ring_50_at_250": _through_a_ring()}.items():
        figures |= {f"{name}_{figure}": value for figure, value in paced.figures().items()}
    show_figures("The whole server, as `manage.py up` starts it", figures, _goals(floor))
    shares = {
        "request": requests.by_process(),
        "registration": registrations.by_process(),
        "steady_100": steady["steady_100"].by_process(),
        "steady_20": steady["steady_20"].by_process(),
    }
    processes = sorted({process for share in shares.values() for process in share})
    rows = {process: [share.get(process, 0.0) for share in shares.values()] for process in processes}
    show("CPU time of one message by process, milliseconds", ("process", *shares), rows)
    return figures | {f"{name}_by_process_ms": share for name, share in shares.items()}


def with_processes(number: int) -> Run:
    """Return the costs of requests at saturation with ``number`` processes."""
    with fleet("--processes", str(number)) as running:
        load = Load(running, Phones(PHONES // 4))
        load.prepare()
        return load.process_backlog(load.phones.requests(BACKLOG // 2))


def _with_all_cores() -> tuple[Run, Run, Mapping[str, Run]]:
    """Return the costs of registrations and requests at saturation, and of requests at even rates."""
    with fleet() as running:
        load = Load(running, Phones(PHONES))
        load.warm_up()
        registrations = load.process_backlog(load.phones.registrations[1:])
        load.process_backlog(load.phones.requests(PHONES))  # nearly all phones of a server have been notified before
        with_keys = load.paced(rate=100, seconds=SECONDS)
        load.forget_missing_keys()
        requests = load.process_backlog(load.phones.requests(BACKLOG))
        steady = {
            "steady_100": load.paced(rate=100, seconds=SECONDS),
            "steady_100_with_keys": with_keys,
            "steady_20": load.paced(rate=20, seconds=2 * SECONDS),
        }
    return registrations, requests, steady


def _through_a_ring() -> Run:
    with fleet(ring_capacity=50) as running:
        load = Load(running, Phones(PHONES // 4))
        load.warm_up()
        load.publish_evenly(load.phones.registrations[1:], rate=100)
        load.publish_evenly(load.phones.requests(PHONES // 4), rate=100)
        return load.paced(rate=250, seconds=8)


def _goals(floor: floors.Floor) -> dict[str, str]:
    return {
        "request_cpu_ms": f"≤ {2 * floor.total_ms:.2f}",
        "efficiency_crowded": "≥ 0.5",
        "requests_per_second_alone": f"≥ {CORES * 1000 / (2 * floor.total_ms):.0f}",
        "registrations_per_second": "≥ 2000",
        "growth_by_cpu": "≥ 1.8",
        "growth": "≥ 1.8 with a core for each",
        "steady_100_p50_ms": "≤ 50",
        "steady_100_p99_ms": "≤ 150",
        "steady_100_cpu_ms": "≤ 3",
        "steady_100_rows": "≤ 14",
        "steady_100_wal_records": "≤ 50",
        "steady_100_wal_bytes": "≤ 7000 beside full-page images",
        "steady_100_with_keys_p50_ms": "≤ 100",
        "steady_100_with_keys_p99_ms": "≤ 300",
        "steady_20_p50_ms": "≤ 60",
        "steady_20_p99_ms": "≤ 150",
        "steady_20_cpu_ms": f"≤ {8 * floor.total_ms:.2f}",
        "ring_50_at_250_p99_ms": "≤ 2000",
    }
