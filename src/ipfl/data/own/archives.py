"""Opens archives and `.npz` files that may be damaged or hostile.

What a damaged file raises becomes an InputError of one line. Nothing here unpickles, and a small file
cannot unpack to gigabytes.
"""

from __future__ import annotations

import math
import struct
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.errors import InputError

MAX_UNPACKED_BYTES = 2**28
MAX_UNPACKED_RATIO = 200
"""A file may unpack to 256 MB plus 200 times its size; the published ones need far less."""

_ERRORS_OF_DAMAGED_FILES = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    ArithmeticError,  # a number too large for a float or an int64
    RuntimeError,  # too deeply nested; encrypted; links in a circle
    SyntaxError,  # the header of an array is a Python literal
    tokenize.TokenError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


@contextmanager
def refuse_damaged(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into an InputError of one line that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says everything, in one line
            yield
    except InputError:
        raise
    except MemoryError as error:
        raise too_large(path) from error
    except _ERRORS_OF_DAMAGED_FILES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path}: damaged or not in its published format ({reason})") from error


def too_large(path: Path) -> InputError:
    """The error for a file that asks for more memory than there is, or than files of its size may."""
    return InputError(f"cannot read {path}: it unpacks to more than fits into memory")


def max_unpacked_bytes(path: Path) -> int:
    """Number of bytes that a file, or all files of a folder, may unpack to."""
    files = path.rglob("*") if path.is_dir() else [path]
    return MAX_UNPACKED_BYTES + MAX_UNPACKED_RATIO * sum(one.stat().st_size for one in files)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive; refuses unusual compression and too large members with a ValueError."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        # bzip2, for example, unpacks a kilobyte to gigabytes in one step, whatever size the archive states.
        if not {member.compress_type for member in members} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("compressed in another way than deflate")
        if (size := sum(member.file_size for member in members)) > max_unpacked_bytes(path):
            raise ValueError(f"would unpack to {size} bytes")
        yield archive


def read_arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    """Reads all arrays of an `.npz` file; pickled objects are refused.

    Raises:
        InputError: The file does not exist, is damaged, or holds pickled objects.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    with refuse_damaged(path), open_zip(path) as archive:
        if not all(name.isprintable() for name in archive.namelist()):
            raise ValueError("an array without a readable name")
        members = archive.infolist()
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


def read_points(path: Path) -> Mapping[str, NDArray[Any]]:
    """Reads an `.npz` file of somebody's own points: `x` and `y`, and perhaps `x_test` and `y_test`.

    Raises:
        InputError: As `read_arrays`, or `x` or `y` is missing.
    """
    points = read_arrays(path)
    if missing := [name for name in ("x", "y") if name not in points]:
        raise InputError(
            f"{path} has no {' and no '.join(missing)}; it holds {', '.join(points) or 'nothing'}"
        )
    return points


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Reads one array, if its header states its true size: NumPy allocates that much before it reads."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(member) as file:
        shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
        stated, actual = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds pickled objects, which could run code")
    if not dtype.itemsize or stated != actual:
        raise ValueError(f"{member.filename} should have {stated} bytes of {dtype}, but has {actual}")
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
