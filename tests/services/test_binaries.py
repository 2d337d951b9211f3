"""What was built, as a person who packages it would look at it: hardening, and
the packages that the build asks for."""

import pathlib
import re
import subprocess

import pytest

from support import build

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ["latchkeyd", "latchkey"]
LIBRARIES = ["liblatchkey.so", "ngx_http_latchkey_module.so"]


def read(binary, *options):
    return subprocess.run(["readelf", "-W", *options, str(build.BUILD / binary)],
                          check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("binary", PROGRAMS + LIBRARIES)
def test_a_binary_is_hardened(binary):
    """Full RELRO, no executable stack, stack protector, FORTIFY_SOURCE."""
    segments = read(binary, "--segments")
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK .* RW ", segments)
    assert "BIND_NOW" in read(binary, "--dynamic")
    symbols = read(binary, "--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert re.search(r" __\w+_chk@", symbols.replace("__stack_chk", ""))


@pytest.mark.parametrize("binary", PROGRAMS)
def test_a_program_is_loaded_anywhere(binary):
    assert "Flags: NOW PIE" in read(binary, "--dynamic")


def test_a_build_without_its_libraries_says_what_to_install(tmp_path):
    """Which ones are missing, and the line that installs them: the same one as
    in the README."""
    make = subprocess.run(["make", "BUILD=%s" % tmp_path], cwd=ROOT,
                          env={"PATH": "/usr/bin:/bin",
                               "PKG_CONFIG_LIBDIR": str(tmp_path)},
                          capture_output=True, text=True)
    assert make.returncode != 0
    assert "does not find libuv sqlite3" in make.stderr
    line = subprocess.run([ROOT / "run", "packages"], check=True,
                          capture_output=True, text=True).stdout.strip()
    assert line in make.stderr
    readme = (ROOT / "README.md").read_text().replace("\\\n", "")
    assert line.split() == next(
        one.split() for one in readme.splitlines() if "libuv1-dev" in one)


def test_only_what_is_missing_is_installed(tmp_path):
    """And nothing that is there is upgraded on the way."""
    for name, script in {
            "dpkg-query": '[ "${@: -1}" = libuv1-dev ] || echo "install ok installed"',
            "apt-get": 'echo "apt-get $*" >>"%s/said"; [ "$1" = update ]' % tmp_path,
            "sudo": '"$@"', "node": ":", "npm": ":"}.items():
        (tmp_path / name).write_text("#!/bin/bash\n%s\n" % script)
        (tmp_path / name).chmod(0o755)
    run = subprocess.run([ROOT / "run", "demo"], capture_output=True, text=True,
                         env={"PATH": "%s:/usr/bin:/bin" % tmp_path})
    update, install = (tmp_path / "said").read_text().splitlines()
    assert install.split()[1:] == [
        "install", "--no-install-recommends", "--no-upgrade", "-y", "-qq",
        "libuv1-dev"]
    assert run.returncode == 1
    assert "apt-get install --no-install-recommends --no-upgrade libuv1-dev" \
        in run.stderr
