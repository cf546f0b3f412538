"""Reads tables from CSV and Parquet files; needs the extra `pandas`."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

from ipfl.data.archives import refuse_damaged
from ipfl.data.dataset import Dataset
from ipfl.data.tables import read_table
from ipfl.errors import InputError, require_extra

if TYPE_CHECKING:
    from ipfl.data.settings import TaskConfig

DELIMITERS = ",;\t|"
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>", "#N/A"]
"""What stands for a missing value."""


def read_csv(path: Path, settings: TaskConfig) -> Dataset:
    """A CSV file (also `.tsv`, also gzipped): names of the columns first, then a row per point.

    Which of `,`, `;`, tab and `|` parts the columns is taken from the first line.
    """
    pandas = require_extra("pandas", "pandas")
    _require(path)
    with refuse_damaged(path):
        separator = _delimiter(path)
        columns = pandas.read_csv(path, sep=separator, nrows=0).columns
        rows = pandas.read_csv(
            path,
            sep=separator,
            # Names of clients as they are written: 007 stays 007, and NA may be a country.
            dtype={} if settings.client is None else {settings.client: str},
            na_values={column: MISSING for column in columns if column != settings.client},
            keep_default_na=False,
            low_memory=False,
        )
    return read_table(rows, settings, path.name)


def _delimiter(path: Path) -> str:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        line = file.readline(1 << 20).decode("utf-8", errors="replace")
    return max(DELIMITERS, key=line.count)


def read_parquet(path: Path, settings: TaskConfig) -> Dataset:
    """A Parquet file, or a folder of Parquet files."""
    pandas = require_extra("pandas", "pandas")
    require_extra("pyarrow", "pandas")
    _require(path)
    with refuse_damaged(path):
        rows = pandas.read_parquet(path, engine="pyarrow")
    return read_table(rows, settings, path.name)


def _require(path: Path) -> None:
    if not path.exists():
        raise InputError(f"there is no file {path}")
