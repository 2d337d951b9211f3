"""Another user, for this thread alone.

glibc's seteuid() signals every thread of the process. A thread that was still
blocked in accept() on a descriptor that has been closed then begins that call
again, on whatever has this descriptor's number now.
"""

import contextlib
import ctypes
import os
import platform
import pwd

import pytest

_libc = ctypes.CDLL(None, use_errno=True)
_calls = {
    "x86_64": {"setgroups": 116, "setresuid": 117, "setresgid": 119},
    "aarch64": {"setgroups": 159, "setresuid": 147, "setresgid": 149},
}


def may_be_others():
    """Is this root, with all users of the machine?"""
    with open("/proc/self/uid_map") as lines:
        ranges = [tuple(map(int, line.split())) for line in lines]
    return os.geteuid() == 0 and any(
        first == 0 and count > 65534 for first, _, count in ranges)


as_root = pytest.mark.skipif(not may_be_others(),
                             reason="only root can be another user")


def _call(name, *arguments):
    number = _calls[platform.machine()][name]
    if _libc.syscall(number, *arguments):
        raise OSError(ctypes.get_errno(), name)


def _set_groups(groups):
    _call("setgroups", len(groups), (ctypes.c_uint32 * len(groups))(*groups))


@contextlib.contextmanager
def acting_as(user, *groups):
    """Connections made in it are that user's (a name or a number), in these
    groups. Only root can do this."""
    if isinstance(user, str):
        user = pwd.getpwnam(user).pw_uid
    before = os.getgroups()
    _set_groups(groups)
    _call("setresgid", -1, groups[0] if groups else user, -1)
    _call("setresuid", -1, user, -1)
    try:
        yield
    finally:
        _call("setresuid", -1, 0, -1)
        _call("setresgid", -1, 0, -1)
        _set_groups(before)
