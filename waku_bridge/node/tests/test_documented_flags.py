"""docs/waku.md and compose.yaml have the same flags, and the document explains every warning of the config check."""

import re
from pathlib import Path

import pytest
import yaml

from waku_bridge.node.config_check import rules

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "waku.md").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
IDS = sorted(set(re.findall(r'^\s+"([a-z_]+)",$', Path(rules.__file__).read_text(), re.MULTILINE)))
# One node in compose, with a file for its store and the address of a container.
OF_COMPOSE = {"--listen-address", "--tcp-port", "--rest-address", "--nat", "--dns-discovery-url"}
OF_SEVERAL = {"--store-message-db-url", "--store-sync", "--store-resume"}


def flags(text: str) -> dict[str, str]:
    return dict(flag.split("=", maxsplit=1) for flag in re.findall(r"--[a-z0-9-]+=\S+", text))


DOCUMENTED = flags(re.findall(r"```sh\nwakunode2(.*?)```", DOCUMENT, re.DOTALL)[0])


def test_compose_uses_the_flags_of_the_document() -> None:
    of_compose, others = flags(COMPOSE["services"]["nwaku"]["command"]), OF_COMPOSE | OF_SEVERAL
    assert {n: v for n, v in of_compose.items() if n not in others} == {
        n: v for n, v in DOCUMENTED.items() if n not in others
    }


def test_the_bridge_in_compose_has_the_capacity_of_the_nodes_relay_cache() -> None:
    capacity = COMPOSE["x-server"]["environment"]["WAKU_RING_CAPACITY"]
    assert capacity == f"${{WAKU_RING_CAPACITY:-{DOCUMENTED['--rest-relay-cache-capacity']}}}"


def test_the_node_follows_our_shard_alone_and_the_size_is_spelled_as_nwaku_reads_it() -> None:
    """Measured on nwaku v0.38.1: with a number of shards it joins them all, whatever --shard says."""
    assert (DOCUMENTED["--num-shards-in-network"], DOCUMENTED["--shard"]) == ("0", "32")
    assert re.fullmatch(r"\d+(kib|kb|b)", DOCUMENTED["--max-msg-size"], re.IGNORECASE)


@pytest.mark.parametrize("warning", [*IDS, "not_watched"])
def test_every_warning_is_explained(warning: str) -> None:
    assert f"| `{warning}` |" in DOCUMENT
    assert len(IDS) >= 14
