"""What the process that runs a node's messages may touch: less than the user that it runs as.

- Landlock (Linux 5.13 or later; no privileges needed): from then on the process and its children can open
  only the files that were listed, cannot look into other processes, send them no signals (6.12), and connect
  to no TCP port but the listed ones (6.7). It cannot be undone. UDP and Unix sockets with a path are not
  restricted.
- `become_user`: another user, where the worker was started by root.

There is no maintained library for Landlock; these are the three system calls of `man 7 landlock`, by number.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ipfl.errors import InputError

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_FOR_VERSION = 1
PATH_RULE, PORT_RULE = 1, 2
SET_NO_NEW_PRIVILEGES = 38
READ_FILE, WRITE_FILE, EXECUTE, READ_DIR, TRUNCATE, IOCTL_DEV = (
    1 << 2,
    1 << 1,
    1 << 0,
    1 << 3,
    1 << 14,
    1 << 15,
)
READ = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule for a single file can give; the others are about folders."""
FILE_RIGHTS = ((1, (1 << 13) - 1), (2, 1 << 13), (3, TRUNCATE), (5, IOCTL_DEV))
"""Since which version of Landlock which rights over files exist."""
CONNECT_TCP, ALL_OF_TCP, TCP_VERSION = 1 << 1, 0b11, 4
ALL_SCOPES, SCOPES_VERSION = 0b11, 6
"""No signals to, and no abstract Unix sockets of, processes outside."""

SYSTEM_FILES = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys"),
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "sys")),
    *(f"/etc/{name}" for name in ("ld.so.cache", "hosts", "host.conf", "nsswitch.conf", "resolv.conf")),
    *(f"/etc/{name}" for name in ("passwd", "group", "localtime", "ssl", "alternatives")),
)
"""What Python and its packages read of a system."""
DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "nvidia*", "kfd", "dri")
"""Below /dev, and writable: no disks."""


@dataclass(frozen=True)
class Sandbox:
    """What a process may touch."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    ports: tuple[int, ...] = ()
    """TCP ports that it may connect to, on any machine."""

    @classmethod
    def for_python(cls, readable: Iterable[Path], writable: Iterable[Path], ports: Iterable[int]) -> Sandbox:
        """The same, and what this Python needs: its packages, the system's libraries, devices."""
        packages = (sys.prefix, sys.base_prefix, *sys.path, *SYSTEM_FILES)
        devices = (path for name in DEVICES for path in Path("/dev").glob(name))
        return cls(
            (*(Path(path) for path in packages if path), *readable), (*writable, *devices), tuple(ports)
        )

    def enter(self) -> int:
        """Restricts this process and its children; returns the version of Landlock, 0 if there is none."""
        version = landlock_version()
        if version == 0:
            return 0
        rights = sum(bits for since, bits in FILE_RIGHTS if since <= version)
        fields = [rights]
        if version >= TCP_VERSION:
            fields.append(ALL_OF_TCP)
        if version >= SCOPES_VERSION:
            fields.append(ALL_SCOPES)
        attributes = struct.pack(f"={len(fields)}Q", *fields)
        ruleset = _call(CREATE_RULESET, attributes, len(attributes), 0)
        try:
            for path in self.readable:
                _allow_path(ruleset, path, READ & rights)
            for path in self.writable:
                _allow_path(ruleset, path, rights)
            for port in self.ports if version >= TCP_VERSION else ():
                _call(ADD_RULE, ruleset, PORT_RULE, struct.pack("=QQ", CONNECT_TCP, port), 0)
            if ctypes.CDLL(None, use_errno=True).prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
            _call(RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
        return version


def landlock_version() -> int:
    """The kernel's version of Landlock; 0 if there is none, or it is switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return _call(CREATE_RULESET, None, 0, ASK_FOR_VERSION)
    except OSError:
        return 0


def _call(number: int, *arguments: int | bytes | None) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(library.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
    return result


def _allow_path(ruleset: int, path: Path, rights: int) -> None:
    """Allows something for a file, or for a folder and all below it; nothing if there is no such path."""
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= OF_FILES
        _call(ADD_RULE, ruleset, PATH_RULE, struct.pack("=Qi", rights, file), 0)
    finally:
        os.close(file)


def find_user(name: str) -> pwd.struct_passwd:
    """The user with this name.

    Raises:
        InputError: There is none, or this process is not root's and cannot become another user.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"there is no user {name!r} on this machine") from None
    if os.geteuid() != 0 and user.pw_uid != os.geteuid():
        raise InputError(f"only root can run messages as another user ({name})")
    return user


def give_folder(folder: Path, user: pwd.struct_passwd) -> None:
    """Makes a user the owner of a folder and of all in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def become_user(user: pwd.struct_passwd) -> None:
    """From now on this process runs as that user, for good."""
    if user.pw_uid != os.geteuid():
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
