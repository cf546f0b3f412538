"""What the process that runs a node's messages may touch: less than the user that it runs as.

- Landlock (Linux 5.13 or later; no privileges needed): from then on the process and its children can open
  only the files that were listed, cannot look into other processes, send them no signals (6.12), and connect
  to no TCP port but the listed ones (6.7). It cannot be undone.
- A filter of system calls (seccomp, Linux on x86-64 and ARM64; no privileges needed), for what Landlock does
  not know: modes, owners and attributes of files cannot be changed, not even of one's own, and there are no
  Unix sockets but pairs of one's own. UDP is not restricted.

There is no maintained library for either; these are the system calls of `man 7 landlock` and `man 2 seccomp`,
by number.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class SystemCalls:
    """Numbers of system calls on one kind of processor."""

    architecture: int
    """How Linux calls it (AUDIT_ARCH)."""
    refused: tuple[int, ...]
    """chmod, chown, setxattr in all their forms, and io_uring_setup, which goes round such filters."""
    socket: int
    socketpair: int


CALLS = {
    "x86_64": SystemCalls(
        0xC000003E, (90, 91, 268, 452, 92, 93, 94, 260, 188, 189, 190, 463, 425), socket=41, socketpair=53
    ),
    "aarch64": SystemCalls(0xC00000B7, (52, 53, 452, 54, 55, 5, 6, 7, 463, 425), socket=198, socketpair=199),
}
OTHER_CALLS = 0x40000000
"""From here on, numbers of x86-64 are those of another set of calls (x32)."""
SET_FILTER, FILTER_MODE = 22, 2
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""Instructions of a filter."""
CALL_AT, ARCHITECTURE_AT, FAMILY_AT, KIND_AT = 0, 4, 16, 24
"""Where a filter finds the number of a call, the processor, and the first two arguments."""
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM

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
            _control(SET_NO_NEW_PRIVILEGES, 1)
            _call(RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
        return version


def refuse_system_calls() -> bool:
    """Takes chmod, chown, setxattr and Unix sockets from this process and its children, for good.

    Returns:
        False where that is not possible: another system, another processor, a kernel without filters.
    """
    calls = CALLS.get(platform.machine())
    if not sys.platform.startswith("linux") or calls is None:
        return False
    program = _filter_program(calls)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    try:
        _control(SET_NO_NEW_PRIVILEGES, 1)
        _control(SET_FILTER, FILTER_MODE, struct.pack("@HP", len(program), ctypes.addressof(code)))
    except OSError:
        return False
    return True


def _filter_program(calls: SystemCalls) -> list[tuple[int, int, int, int]]:
    """The filter: instructions with how many lines to skip if a comparison holds, and if not."""
    refuse, allow = (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)
    program = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, calls.architecture),
        refuse,  # a call of 32 bits
        (LOAD, 0, 0, CALL_AT),
        (AT_LEAST, 0, 1, OTHER_CALLS),
        refuse,
    ]
    for number in calls.refused:
        program += [(EQUAL, 0, 1, number), refuse]
    return [
        *program,
        *((EQUAL, 0, 4, calls.socket), (LOAD, 0, 0, FAMILY_AT), (EQUAL, 0, 1, socket.AF_UNIX), refuse, allow),
        # A pair of datagram sockets could be turned to a socket of somebody else; a pair of streams cannot.
        *((EQUAL, 0, 4, calls.socketpair), (LOAD, 0, 0, KIND_AT), (AND, 0, 0, 0xF)),
        *((EQUAL, 1, 0, socket.SOCK_STREAM), refuse, allow),
    ]


def _control(option: int, *arguments: int | bytes) -> None:
    """`prctl`; OSError if it fails."""
    given = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    given += [ctypes.c_ulong(0)] * (4 - len(given))
    if ctypes.CDLL(None, use_errno=True).prctl(option, *given):
        raise OSError(ctypes.get_errno(), "prctl")


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
