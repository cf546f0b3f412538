"""Reads tables from CSV and Parquet files; needs the extra `pandas`."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

from ipfl.data.archives import refuse_damaged
from ipfl.data.dataset import Dataset
from ipfl.data.settings import dataset_of
from ipfl.data.tables import read_table
from ipfl.errors import InputError, require_extra

if TYPE_CHECKING:
    import pandas as pd

    from ipfl.data.settings import TaskConfig

DELIMITERS = ",;\t|"
MISSING_VALUES = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A"]
"""What stands for a missing value."""


def read_csv(path: Path, settings: TaskConfig) -> Dataset:
    """A CSV file (also `.tsv`, also gzipped): names of the columns first, then a row per point."""
    return read_table(_csv_rows(path, settings.client), settings, path.name)


def read_parquet(path: Path, settings: TaskConfig) -> Dataset:
    """A Parquet file, or a folder of Parquet files."""
    return read_table(_parquet_rows(path), settings, path.name)


def is_table(path: Path) -> bool:
    """Whether a file holds a table, by its name."""
    return path.exists() and dataset_of(path) in ("csv", "parquet")


def read_rows(path: Path, client: str | None) -> pd.DataFrame:
    """The rows of a table's file; `client` is the column with the names of clients, if there is one."""
    return _parquet_rows(path) if dataset_of(path) == "parquet" else _csv_rows(path, client)


def _csv_rows(path: Path, client: str | None) -> pd.DataFrame:
    """Which of `,`, `;`, tab and `|` parts the columns is taken from the first line."""
    pandas = require_extra("pandas", "pandas")
    _require(path)
    with refuse_damaged(path):
        separator = _delimiter(path)
        columns = pandas.read_csv(path, sep=separator, nrows=0).columns
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
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        line = file.readline(1 << 20).decode("utf-8", errors="replace")
    return max(DELIMITERS, key=line.count)


def _parquet_rows(path: Path) -> pd.DataFrame:
    pandas = require_extra("pandas", "pandas")
    require_extra("pyarrow", "pandas")
    _require(path)
    with refuse_damaged(path):
        return pandas.read_parquet(path, engine="pyarrow")


def _require(path: Path) -> None:
    if not path.exists():
        raise InputError(f"there is no file {path}")
