"""`manage.py check_node`: run the config check of Waku nodes now, and show each node's facts and complaints."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from kit.display import host_of
from pushserver.console.checks.nodes import check, configured


class Command(BaseCommand):
    help = "Check Waku nodes now, and show what is wrong and what to do about it. Docs: docs/waku.md."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("url", nargs="*", help="default: WAKU_NODES and WAKU_STORE_NODES")
        parser.add_argument(
            "--size",
            action="store_true",
            help="also find the limit of the message size: publishes a message of 1 MiB to a shard that no node serves",
        )

    def handle(self, *_args: Any, url: list[str], size: bool, **_options: Any) -> None:
        for each in url or configured():
            self._check(each, with_size=size)

    def _check(self, url: str, *, with_size: bool) -> None:
        reading, complaints = check(url, with_size=with_size)
        facts = {"version": reading.software, "health": reading.health, "shards": reading.shards}
        words = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
        self.stdout.write(f"{host_of(url)}: {words or 'no answer that can be read'}")
        if with_size and reading.size_limit_bytes is None:
            self.stdout.write("  It does not report its limit of the message size.")
        for one in complaints:
            self.stdout.write(f"  {one.id}: {one.problem}. {one.why} {one.action}")
        if not complaints:
            self.stdout.write("  Nothing is wrong.")
