"""Stream of the rows of one query: from PostgreSQL by COPY, through PyArrow, into one Parquet file.

Memory holds three chunks, for any size of the table.
"""

import re
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

CHUNK_SIZE = 8 * 1024 * 1024
OTHER = "(other)"
# Clients choose the app topic. Only a text that looks like a topic is exported, and none that looks like a secret.
_TOPIC = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,40}(\.[A-Za-z0-9-]{1,40}){1,7}")
_LOOKS_SECRET = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{25}")
_TOPIC_COLUMNS = frozenset({"app_topic", "previous_app_topic"})
# Reasons and codes are words of this server. A text that looks like anything else is not exported.
_WORD = re.compile(r"[A-Za-z0-9_ .:-]{0,64}")
_WORD_COLUMNS = frozenset({"reason", "code"})

_TEXT = pa.dictionary(pa.int32(), pa.string())


def copy_rows(session: psycopg.Connection[Any], query: str, schema: pa.Schema, path: Path) -> int:
    """Write the rows of ``query`` into a file, and return their number.

    One chunk is written while the next one is read. An error of the writer, such as a full disk, ends the reading.
    """
    with (
        pq.ParquetWriter(path, schema, compression="zstd") as file,
        ThreadPoolExecutor(1) as writer,
        closing(_read(session, query)) as chunks,
    ):

        def write(chunk: bytes) -> int:
            rows = parse(chunk, schema)
            file.write_table(rows)
            return int(rows.num_rows)

        total = 0
        writing: Future[int] | None = None
        for chunk in filter(None, chunks):
            total += writing.result() if writing else 0
            writing = writer.submit(write, chunk)
        return total + (writing.result() if writing else 0)


def _read(session: psycopg.Connection[Any], query: str) -> Generator[bytes]:
    """Yield whole lines of CSV, some megabytes at a time.

    Each line is copied into a buffer at once. Keeping the objects that psycopg returns, one for each row, would cost
    several times as much in Python's garbage collector as reading them.
    """
    lines = bytearray()
    with psycopg.Cursor(session) as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()) as rows:
        for line in rows:
            lines += line
            if len(lines) >= CHUNK_SIZE:
                yield bytes(lines)
                lines.clear()
    yield bytes(lines)


def parse(chunk: bytes, schema: pa.Schema) -> pa.Table:
    """Return rows of CSV as a table. An empty value is null, except in texts, which are never null."""
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
