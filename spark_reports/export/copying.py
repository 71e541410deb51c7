"""Stream of the rows of one query: from PostgreSQL by COPY, through PyArrow, into Parquet files of bounded size.

One thread reads from the database while another one parses and writes. Memory holds a few chunks, for any size of the
table.
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from queue import Full, Queue
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from spark_reports.jobs.tables import Table
from spark_reports.lake import File, Lake, arrow_schema

CHUNK_SIZE = 8 * 1024 * 1024
CHUNKS_AHEAD = 3
# A file is full at this size: far below the 5 GiB that object stores accept at once, and large enough for Spark.
FULL_FILE = 512 * 1024 * 1024
# Files below this size are merged, because opening one costs Spark more than reading it.
SMALL_FILE = 8 * 1024 * 1024
# Seconds that the reader waits for space in the queue before it checks whether the writer has failed.
TIMEOUT_SECONDS = 0.2
OTHER = "(other)"
# Clients choose the app topic. Only a text that looks like a topic is exported, and none that looks like a secret.
_TOPIC = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,40}(\.[A-Za-z0-9-]{1,40}){1,7}")
_LOOKS_SECRET = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{25}")
_TOPIC_COLUMNS = frozenset({"app_topic", "previous_app_topic"})
# Reasons and codes are words of this server. A text that looks like anything else is not exported.
_WORD = re.compile(r"[A-Za-z0-9_ .:-]{0,64}")
_WORD_COLUMNS = frozenset({"reason", "code"})

_TEXT = pa.dictionary(pa.int32(), pa.string())


def copy_table(
    connection: psycopg.Connection[Any],
    query: str,
    table: Table,
    lake: Lake,
    begin: Callable[[], str],
    on_rows: Callable[[int], None],
) -> list[tuple[str, int]]:
    """Write the rows of ``query``, and return the path and the number of rows of each file. There is at least one file.

    ``begin`` returns the path of the next file. ``on_rows`` gets the number of rows of each chunk. An error of the
    writer, such as a full disk, ends the reading at once, and is raised.
    """
    chunks: Queue[bytes | None] = Queue(CHUNKS_AHEAD)
    with ThreadPoolExecutor(1, thread_name_prefix="parquet") as writer, closing(_read(connection, query)) as parts:
        written = writer.submit(_write, chunks, table, lake, begin, on_rows)
        try:
            for chunk in parts:
                if not _hand_over(chunk, chunks, written):
                    break
        finally:
            _hand_over(None, chunks, written)
        return written.result()


def _hand_over(chunk: bytes | None, chunks: Queue[bytes | None], written: Future[Any]) -> bool:
    """Put a chunk into the queue once it has space. Return False if the writer has ended."""
    while not written.done():
        try:
            chunks.put(chunk, timeout=TIMEOUT_SECONDS)
        except Full:
            continue
        return True
    return False


def _read(connection: psycopg.Connection[Any], query: str) -> Generator[bytes]:
    """Yield whole lines of CSV, some megabytes at a time.

    Each line is copied into a buffer at once. Keeping the objects that psycopg returns, one for each row, would cost
    several times as much in Python's garbage collector as reading them.
    """
    lines = bytearray()
    with psycopg.Cursor(connection) as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as rows:
        for line in rows:
            lines += line
            if len(lines) >= CHUNK_SIZE:
                yield bytes(lines)
                lines.clear()
    yield bytes(lines)


def _write(
    chunks: Queue[bytes | None], table: Table, lake: Lake, begin: Callable[[], str], on_rows: Callable[[int], None]
) -> list[tuple[str, int]]:
    written: list[tuple[str, int]] = []
    parts = iter(chunks.get, None)
    for first in parts:
        if first or not written:
            path = begin()
            written.append((path, _write_file(chain([first], parts), table, lake, path, on_rows)))
    return written


def _write_file(
    parts: Iterable[bytes | None], table: Table, lake: Lake, path: str, on_rows: Callable[[int], None]
) -> int:
    """Write chunks until there are no more of them or the file is full. Return the number of rows in the file."""
    schema = arrow_schema(table)
    total = 0
    with lake.writing(path) as out, closing(pq.ParquetWriter(out, schema, compression="zstd")) as parquet:
        for chunk in filter(None, parts):
            part = parse(chunk, table)
            parquet.write_table(part)
            total += part.num_rows
            on_rows(part.num_rows)
            if out.tell() >= FULL_FILE:
                break
    return total


def merge_small(files: Sequence[File], table: Table, lake: Lake, begin: Callable[[], str]) -> list[File]:
    """Merge the small files of a table into one, and return its files. ``begin`` returns the path of the merged one."""
    small = [file for file in files if file.size_bytes < SMALL_FILE]
    if len(small) < 2:
        return list(files)
    path = begin()
    with lake.writing(path) as out, closing(pq.ParquetWriter(out, arrow_schema(table), compression="zstd")) as parquet:
        for rows in chain.from_iterable(lake.batches(file.path) for file in small):
            parquet.write_batch(rows)
    merged = lake.describe(path, sum(file.rows for file in small))
    return [*(file for file in files if file not in small), merged]


def parse(chunk: bytes, table: Table) -> pa.Table:
    """Return rows of CSV as a table of our schema. An empty value is null, except in texts, which are never null."""
    schema = arrow_schema(table)
    types = {f.name: _TEXT if pa.types.is_string(f.type) else f.type for f in schema}
    rows = pcsv.read_csv(
        pa.BufferReader(chunk),
        read_options=pcsv.ReadOptions(column_names=schema.names, use_threads=False, block_size=len(chunk) + 1),
        parse_options=pcsv.ParseOptions(newlines_in_values=True),
        convert_options=pcsv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=False, true_values=["t"], false_values=["f"]
        ),
    )
    return pa.Table.from_arrays([_cleaned(rows[field.name], field) for field in schema], schema=schema)


def _cleaned(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column
    if field.name in _TOPIC_COLUMNS:
        column = _replaced(column, is_topic)
    elif field.name in _WORD_COLUMNS:
        column = _replaced(column, is_word)
    return column.cast(pa.string())


def _replaced(column: pa.ChunkedArray, is_fine: Callable[[str], bool]) -> pa.ChunkedArray:
    """Replace texts that are not fine by OTHER. Each distinct text is checked once."""
    chunks = []
    for chunk in column.chunks:
        texts = [text if is_fine(text) else OTHER for text in chunk.dictionary.to_pylist()]
        chunks.append(pa.array(texts, pa.string()).take(chunk.indices))
    return pa.chunked_array(chunks, pa.string())


def is_topic(text: str) -> bool:
    """Return whether a text looks like an app topic, and not like a key or token."""
    return not text or bool(_TOPIC.fullmatch(text) and not _LOOKS_SECRET.search(text))


def is_word(text: str) -> bool:
    """Return whether a text looks like a reason or code of this server, and not like a key or token."""
    return bool(_WORD.fullmatch(text) and not _LOOKS_SECRET.search(text))
