"""Where the built programs are, and what kind of build it is."""

import os
import pathlib
import shutil
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def _folder(variable, default):
    folder = pathlib.Path(os.environ.get(variable) or default)
    return folder if folder.is_absolute() else ROOT / folder


def is_sanitized(build=None):
    return any(word in (build or BUILD).name
               for word in ("address", "thread", "undefined"))


def _faults_default(build):
    """The Makefile's place for the same build with FAULTS=1."""
    if is_sanitized(build):
        return build
    if build.name == "build":
        return build / "faults"
    return build.parent / (build.name + "-faults")


BUILD = _folder("LATCHKEY_BUILD", "build")
FAULTS_BUILD = _folder("LATCHKEY_FAULTS_BUILD", _faults_default(BUILD))


def _scratch():
    """In memory, if there is room: what is proven about the disk is proven by
    fault points and by tests in C, and kill -9 leaves files as they are."""
    memory, needed = "/dev/shm", 2 << 30
    serves = (os.access(memory, os.W_OK) and
              not os.statvfs(memory).f_flag & os.ST_NOEXEC and
              shutil.disk_usage(memory).free > needed)
    return os.environ.get("LATCHKEY_SCRATCH") or (
        memory if serves else "/tmp")


SCRATCH = _scratch()


def folder(prefix):
    """A new one, for a server or a store. Short: the path of a unix socket has
    at most 107 bytes."""
    return pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=SCRATCH))


def patience():
    """How much longer than usual things may take before a test gives up."""
    return 6 if is_sanitized() else 1
