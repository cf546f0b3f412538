"""A user's own code, named `module:callable` in a config: data sets, models and methods."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipfl.errors import InputError

_IMPORTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""`module:callable`: all that is ever imported."""
_REFERENCE = re.compile(r"(?!ipfl\.methods\.)[^\W\d][\w.]*:[^\W\d][^=]*")
"""What a foreign folder may not name: whatever is imported, but for our own methods, and `hf:NAME`.
Not `10:90`, `classes:2` or `NAME:key=value`, which `_IMPORTED` does not match."""
_allowed_modules: tuple[str, ...] | None = None
"""None: all."""


_own_code: set[str] = set()
"""What runs of this process have named."""
_config_folders: dict[str, None] = {}
"""Folders of config files, in which code was looked for."""


def allow_modules(modules: Iterable[str]) -> None:
    """From now on, this process imports these modules and those inside them for a config, and no others.

    A node calls it: its configs come from the server, which must not choose what code runs on the node.
    """
    global _allowed_modules
    _allowed_modules = tuple(modules)


def _is_allowed(module: str) -> bool:
    return _allowed_modules is None or any(
        module == allowed or module.startswith(allowed + ".") for allowed in _allowed_modules
    )


def look_beside(config: Path) -> None:
    """Lets `module:callable`, and what it imports, also be files beside a config file.

    The folder comes last on Python's path, so that it hides no installed package; worker processes have the
    same path.
    """
    folder = str(config.resolve().parent)
    _config_folders[folder] = None
    if folder not in sys.path:
        sys.path.append(folder)


class CodeRefusedError(InputError):
    """A folder of results names code to import, and nobody said that it may be imported."""

    keyword, option = "use trust=True", "use --trust"

    def __init__(self, folder: Path, named: Iterable[str], how: str = "trust=True"):
        self.folder, self.named = folder, tuple(named)
        super().__init__(
            f"{folder} names code to import ({', '.join(self.named)}): if you trust its origin, use {how}"
        )


def remember_code(settings: Any) -> None:
    """Notes what a run of this process names: its folder may be read again without being asked."""
    _own_code.update(_references(settings))


def _references(settings: Any) -> Iterator[str]:
    return (one for one in _texts(settings) if _REFERENCE.fullmatch(one))


def refuse_code(settings: Any, folder: Path) -> None:
    """Refuses a folder of results that names code: it may come from somebody else.

    Code that a run of this process named is fine: it was imported already.

    Args:
        settings: What was read there: texts, in mappings and lists of any depth. All are looked at, because
            many settings may name code.
        folder: Where it was read, for the message.

    Raises:
        CodeRefusedError: One of them would be imported.
    """
    if named := sorted({*_references(settings)} - _own_code):
        raise CodeRefusedError(folder, named)


def _texts(settings: Any) -> Iterator[str]:
    """All texts in settings."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping | list | tuple):
        for one in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _texts(one)


def load_callable(reference: str, what: str) -> Callable[..., Any]:
    """Imports `module:callable`: from the current folder, an installed package, or beside the config file.

    Args:
        reference: `module:callable`.
        what: What it is meant for, for the error message.

    Raises:
        InputError: It cannot be imported, is not there, or cannot be called.
    """
    module, _, name = reference.partition(":")
    if not _is_allowed(module):
        raise InputError(f"{what} {reference!r}: the node does not allow its module (`modules` in node.toml)")
    if not _IMPORTED.fullmatch(reference):  # the only form that `refuse_code` looks for
        raise InputError(f"{what} {reference!r} cannot be imported: it is not module:callable")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        hint = ""
        if error.name == module:
            where = " or ".join([here, *(str(folder) for folder in _config_folders)])
            hint = (
                f" (no such package, and no {module}.py in {where}; "
                "its folder has to be the current one, that of the config file, or one in PYTHONPATH)"
            )
        raise InputError(f"{what} {reference!r} cannot be imported: {error}{hint}") from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise InputError(f"{what} {reference!r} cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise InputError(f"{what} {reference!r} is not callable")
    return found  # type: ignore[no-any-return]


@lru_cache
def source_commit() -> str | None:
    """Commit of the source tree that is running; None for an installed package."""
    if not shutil.which("git"):
        return None
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
