"""Where the built programs are, and what kind of build it is."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def _folder(variable, default):
    folder = pathlib.Path(os.environ.get(variable) or default)
    return folder if folder.is_absolute() else ROOT / folder


def _faults_default(build):
    """The Makefile's place for the same build with FAULTS=1."""
    if build.name == "build":
        return build / "faults"
    return build.parent / (build.name + "-faults")


BUILD = _folder("LATCHKEY_BUILD", "build")
FAULTS_BUILD = _folder("LATCHKEY_FAULTS_BUILD", _faults_default(BUILD))


def is_sanitized(build=BUILD):
    return any(word in build.name
               for word in ("address", "thread", "undefined"))


def patience():
    """How much longer than usual things may take before a test gives up."""
    return 6 if is_sanitized() else 1
