"""Queries of the store, read as nwaku reads them by its source, and as measured on v0.38.1 where it says so."""

import pytest

from embedded.node.store_query import InvalidQueryError, StoreQuery, read_query

HASH = bytes(range(32))


def test_reads_every_parameter():
    parameters = {
        "includeData": "true",
        "pubsubTopic": "/waku/2/rs/16/32",
        "contentTopics": "/a/1/b/c,/d/1/e/f",
        "startTime": "1",
        "endTime": "2",
        "hashes": f"{HASH.hex()},0x{HASH.hex()}",
        "cursor": f"0x{HASH.hex()}",
        "ascending": "false",
        "pageSize": "7",
    }
    assert read_query(parameters) == StoreQuery(
        include_data=True,
        pubsub_topic="/waku/2/rs/16/32",
        content_topics=("/a/1/b/c", "/d/1/e/f"),
        start_ns=1,
        end_ns=2,
        hashes=(HASH, HASH),
        cursor=HASH,
        is_forward=False,
        page_size=7,
    )


def test_takes_empty_parameters_for_absent_ones():
    names = ("includeData", "pubsubTopic", "contentTopics", "startTime", "endTime", "hashes", "cursor", "ascending")
    assert read_query(dict.fromkeys((*names, "pageSize"), "")) == read_query({}) == StoreQuery()


@pytest.mark.parametrize(("text", "size"), [("0", 20), ("1", 1), ("100", 100), ("101", 100), ("-1", 100)])
def test_clamps_the_page_size(text, size):
    assert read_query({"pageSize": text}).page_size == size


@pytest.mark.parametrize(
    ("text", "is_forward"), [("true", True), ("True", False), ("1", False), ("yes", False), ("false", False)]
)
def test_goes_forward_for_the_exact_word_true_only(text, is_forward):
    assert read_query({"ascending": text}).is_forward is is_forward


@pytest.mark.parametrize(
    ("text", "include"), [("true", True), ("Y", True), ("1", True), ("on", True), ("no", False), ("0", False)]
)
def test_reads_include_data_as_nim_reads_a_bool(text, include):
    assert read_query({"includeData": text}).include_data is include


@pytest.mark.parametrize("text", ["0", "-5"])
def test_ignores_times_that_are_not_positive(text):
    assert read_query({"startTime": text, "endTime": text}) == StoreQuery()


def test_a_comma_at_the_end_is_accepted():
    """Measured on nwaku v0.38.1."""
    assert read_query({"hashes": HASH.hex() + ","}).hashes == (HASH,)


def test_decodes_topics_a_second_time():
    assert read_query({"contentTopics": "%2Fa%2C/b+c"}).content_topics == ("/a", "/b c")


@pytest.mark.parametrize(
    "parameters",
    [
        {"includeData": "maybe"},
        {"startTime": "yesterday"},
        {"endTime": "1.5"},
        {"startTime": str(2**63)},
        {"pageSize": "many"},
        {"cursor": "0x12"},
        {"cursor": "zz"},
        {"startTime": " 1"},
    ],
)
def test_refuses_parameters_that_cannot_be_parsed(parameters):
    with pytest.raises(InvalidQueryError):
        read_query(parameters)
