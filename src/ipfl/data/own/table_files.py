"""Reads tables from CSV and Parquet files; needs the extra `pandas`.

A small file can unpack to a thousand times its size, in ways that no footer needs to tell: repeated values,
compressed zeros, a column of text that becomes a hundred of numbers. So the sizes that a Parquet file states
are looked at before it is read, and all of the reading happens in bounded memory.
"""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ipfl.config.task_section import dataset_of
from ipfl.data.dataset import Dataset
from ipfl.data.own.archives import max_unpacked_bytes, refuse_damaged, too_large
from ipfl.data.own.data_frames import read_table, refuse_too_wide
from ipfl.errors import InputError, require_extra

if TYPE_CHECKING:
    import pandas as pd

    from ipfl.config.task_section import TaskConfig

DELIMITERS = (b",", b";", b"\t", b"|")
MISSING_VALUES = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A"]
"""Texts that stand for a missing value."""
BYTES_LOOKED_AT = 2**20
"""At the beginning of a CSV file, before it is read."""
VALUE_BYTES = 8
"""Of a value, when points are made of rows."""
_ONE_AT_A_TIME = threading.Lock()


def read_table_file(path: Path, settings: TaskConfig) -> Dataset:
    """A CSV file (also `.tsv`, also gzipped): names of the columns first, then a row per point; or Parquet.

    A Parquet folder has several files of the same columns.
    """
    with _bounded_memory(path):
        is_parquet = settings.dataset == "parquet"
        rows = _parquet_rows(path) if is_parquet else _csv_rows(path, settings.client)
        return read_table(rows, settings, path.name)


def is_table(path: Path) -> bool:
    """True if a file holds a table, by its name."""
    return path.exists() and dataset_of(path) in ("csv", "parquet")


def read_rows(path: Path, client: str | None) -> pd.DataFrame:
    """The rows of a table's file; `client` is the column with the names of clients, if there is one."""
    with _bounded_memory(path):
        return _parquet_rows(path) if dataset_of(path) == "parquet" else _csv_rows(path, client)


@contextmanager
def _bounded_memory(path: Path) -> Iterator[None]:
    """Refuses a table that makes this process grow too much, in one line; on Linux.

    The kernel keeps the limit, so that it holds whatever a library does with a hostile file. It is the limit
    of the process: only one table is read at a time.
    """
    if not path.exists():
        raise InputError(f"there is no file {path}")
    require_extra("pandas", "pandas")  # imported before, as it takes space that is not the file's
    arrow = require_extra("pyarrow", "pandas")
    require_extra("pyarrow.dataset", "pandas")
    pool = arrow.default_memory_pool()
    with _ONE_AT_A_TIME:
        arrow.set_memory_pool(arrow.system_memory_pool())  # others reserve a gigabyte in advance
        try:
            with _address_space(max_unpacked_bytes(path)):
                yield
        except MemoryError as error:
            raise too_large(path) from error
        finally:
            arrow.set_memory_pool(pool)


@contextmanager
def _address_space(more: int) -> Iterator[None]:
    """Lets this process reserve so many bytes more than it has."""
    if sys.platform != "linux":
        yield
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [pages * resource.getpagesize() + more, *(one for one in (before, hard) if one >= 0)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _csv_rows(path: Path, client: str | None) -> pd.DataFrame:
    """The rows of a CSV file; the first line tells which of `,`, `;`, tab and `|` parts the columns."""
    pandas = require_extra("pandas", "pandas")
    with refuse_damaged(path):
        separator = _delimiter(path)
        columns = pandas.read_csv(path, sep=separator, nrows=0).columns
        refuse_too_wide(len(columns), path.name)
        return pandas.read_csv(
            path,
            sep=separator,
            # Names of clients as they are written: 007 stays 007, and NA may be a country.
            dtype={} if client is None else {client: str},
            na_values={column: MISSING_VALUES for column in columns if column != client},
            keep_default_na=False,
            low_memory=False,
        )


def _delimiter(path: Path) -> str:
    """The character between columns, unless a line at the beginning has too many of them."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        lines = file.read(BYTES_LOOKED_AT).splitlines() or [b""]
    found = max(DELIMITERS, key=lines[0].count)
    refuse_too_wide(1 + max(line.count(found) for line in lines), path.name)
    return found.decode()


def _parquet_rows(path: Path) -> pd.DataFrame:
    pandas = require_extra("pandas", "pandas")
    with refuse_damaged(path):
        _check_footers(path)
        return pandas.read_parquet(path, engine="pyarrow", use_threads=False)


def _check_footers(path: Path) -> None:
    """Refuses a Parquet file, or a folder of them, whose own figures are too large; they may be too small."""
    dataset = require_extra("pyarrow.dataset", "pandas").dataset(path, format="parquet")
    refuse_too_wide(len(dataset.schema), path.name)
    footers = [part.metadata for part in dataset.get_fragments()]
    groups = [footer.row_group(number) for footer in footers for number in range(footer.num_row_groups)]
    stated = sum(group.total_byte_size for group in groups)
    values = sum(group.column(one).num_values for group in groups for one in range(group.num_columns))
    most = max_unpacked_bytes(path)
    if max(stated, VALUE_BYTES * values) > most:
        raise InputError(
            f"{path} holds {values} values in {stated} bytes, which do not fit into the {most >> 20} MB of "
            "memory that reading a table of its size may take"
        )
