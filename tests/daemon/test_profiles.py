"""Profiles of the tool: which daemon it asks, as whom, and what is refused."""

import json
import os
import subprocess

import pytest

from support import build
from support.daemon import secret_of

USUAL = "/run/latchkey/latchkeyd.sock"


class Home:
    """A home folder with a file of profiles."""

    def __init__(self, folder, daemon):
        self.folder = folder
        self.daemon = daemon
        self.address = daemon.tcp_address  # where the kernel vouches for none
        self.path = folder / ".config/latchkey/config"
        self.path.parent.mkdir(parents=True)
        self.password("operator")

    def password(self, name, mode=0o600):
        file = self.folder / (name + ".password")
        file.write_text(secret_of("operator") + "\n")
        file.chmod(mode)
        return file

    def write(self, text):
        self.path.write_text(text.replace("SERVER", self.address))

    def run(self, *args, **env):
        return subprocess.run(
            [str(build.BUILD / "latchkey"), *args], capture_output=True,
            text=True, timeout=60 * build.patience(),
            env={"HOME": str(self.folder), **env})


@pytest.fixture
def home(tmp_path, daemon):
    return Home(tmp_path, daemon)


OPERATOR = "user = operator\npassword_file = ~/operator.password\n"


def test_without_options_the_default_profile_is_asked(home):
    home.write("# mine\n[default]\nserver = SERVER\n" + OPERATOR)
    result = home.run("stats")
    assert result.returncode == 0, result
    assert result.stderr == ""


def test_a_profile_is_chosen_by_option_or_environment(home):
    home.write("[default]\nserver = unix:/nonexistent/s\n"
               "[real]\nserver = SERVER\n" + OPERATOR)
    assert home.run("stats").returncode == 3
    assert home.run("stats", "--profile", "real").returncode == 0
    assert home.run("stats", LATCHKEY_PROFILE="real").returncode == 0
    chosen = home.run("stats", "--profile", "real",
                      LATCHKEY_PROFILE="default", LATCHKEY_SERVER="unix:/x",
                      LATCHKEY_USER="nobody", LATCHKEY_PASSWORD="wrong")
    assert chosen.returncode == 0, chosen


def test_options_and_environment_go_before_a_profile(home):
    home.write("[default]\nserver = unix:/nonexistent/s\n")
    address = home.address
    assert home.run("ping", "--server", address).returncode == 0
    assert home.run("ping", LATCHKEY_SERVER=address).returncode == 0
    home.write("[default]\nserver = SERVER\nuser = nobody\n")
    assert home.run("stats", LATCHKEY_USER="operator",
                    LATCHKEY_PASSWORD=secret_of("operator")).returncode == 0
    assert home.run("stats", "--user", "operator", "--password-file",
                    str(home.folder / "operator.password")).returncode == 0


def test_a_password_goes_to_its_own_server_and_user_only(home):
    home.write("[default]\nserver = unix:/nonexistent/s\n" + OPERATOR)
    elsewhere = home.run("stats", "--server", home.address)
    assert elsewhere.returncode == 4, elsewhere
    elsewhere = home.run("stats", LATCHKEY_SERVER=home.address,
                         LATCHKEY_PROFILE="default")
    assert elsewhere.returncode == 4, elsewhere
    named = home.run("stats", "--server", home.address, "--profile",
                     "default")
    assert named.returncode == 0, named
    home.write("[default]\nserver = SERVER\n" + OPERATOR)
    other = home.run("stats", "--user", "reader")
    assert other.returncode == 2 and "needs a password" in other.stderr


def test_a_broken_file_does_not_matter_where_it_is_not_asked(home):
    home.write("nonsense")
    assert home.run("ping", "--server", home.address).returncode == 0


@pytest.mark.parametrize("text, line, cause, cure", [
    ("[default]\nsever = x\n", 2, '"sever"', "server, user"),
    ("[default]\n\npassword = x\n", 3, "file of its own", "password_file"),
    ("server = x\n", 1, "not in a profile", "[default]"),
    ("[default]\nnonsense\n", 2, "neither", "name = value"),
    ("[default]\nuser =\n", 2, "no value", "remove"),
    ("[a]\nserver = x:1\n[b]\n[a]\nserver = y:1\n", 5, "twice", "remove"),
    ("[default]\npassword_file = pw\n", 2, '"pw"', "~/"),
    ("[default]\nserver = %s\n" % ("x" * 300), 2, "too long", "the most"),
    ("[default]\nserver = nowhere\n", 2, '"nowhere"', "HOST:PORT"),
])
def test_what_is_wrong_with_the_file_is_said_with_its_line(home, text, line,
                                                           cause, cure):
    home.write(text)
    result = home.run("ping")
    assert result.returncode == 2, result
    assert "%s:%d: " % (home.path, line) in result.stderr
    assert cause in result.stderr and cure in result.stderr
    assert result.stdout == ""


def test_an_unknown_profile_comes_with_those_there_are(home):
    nothing = home.run("ping", "--profile", "staging")
    assert nothing.returncode == 2
    assert str(home.path) in nothing.stderr and "[staging]" in nothing.stderr
    home.write("[staging]\nserver = SERVER\n[live]\nserver = SERVER\n")
    result = home.run("ping", "--profile", "stagin")
    assert result.returncode == 2
    assert '"stagin"' in result.stderr and "staging, live" in result.stderr
    no_up = home.run("ping", "--profile", "up-8080")
    assert no_up.returncode == 2 and "latchkey up" in no_up.stderr


def test_files_that_cannot_or_should_not_be_read_are_refused(home):
    home.write("[default]\nserver = SERVER\nuser = operator\n"
               "password_file = ~/gone\n")
    gone = home.run("ping")
    assert gone.returncode == 2 and str(home.folder / "gone") in gone.stderr
    home.password("open", 0o644)
    home.write("[default]\nserver = SERVER\nuser = operator\n"
               "password_file = ~/open.password\n")
    refused = home.run("ping")
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr and "open.password" in refused.stderr
    home.path.unlink()
    home.path.mkdir()
    broken = home.run("ping")
    assert broken.returncode == 2 and str(home.path) in broken.stderr


def test_profiles_are_listed_without_secrets(home):
    home.write("[default]\nserver = SERVER\n" + OPERATOR +
               "[other]\nserver = 10.0.0.5:7379\n")
    listed = home.run("profiles").stdout
    assert [line.split() for line in listed.splitlines()] == [
        ["PROFILE", "USER", "SERVER"],
        ["default", "operator", home.address],
        ["other", "-", "10.0.0.5:7379"]]
    document = json.loads(home.run("profiles", "--json").stdout)
    assert document["profiles"][1] == {"name": "other",
                                       "server": "10.0.0.5:7379"}
    elsewhere = home.folder / "x"
    (elsewhere / "latchkey").mkdir(parents=True)
    (elsewhere / "latchkey/config").write_text("[only]\nserver = a:1\n")
    listed = home.run("profiles", XDG_CONFIG_HOME=str(elsewhere)).stdout
    assert "only" in listed and "default" not in listed


# ---- beside a running latchkey up ----


def pretend_up(home, name):
    """A folder as latchkey up has it, with the daemon of the test in it."""
    folder = home.folder / ("dir-" + name)
    folder.mkdir(exist_ok=True)
    os.symlink(home.daemon.address[5:], folder / "latchkeyd.sock")
    running = home.folder / ".local/state/latchkey/running"
    running.mkdir(parents=True, exist_ok=True)
    os.symlink(folder, running / name)


@pytest.mark.skipif(os.path.exists(USUAL), reason="a daemon is installed")
def test_beside_one_up_no_option_is_needed_C35(home, make_daemon):
    home.daemon = make_daemon(own=True)
    pretend_up(home, "up-8080")
    result = home.run("stats")
    assert result.returncode == 0, result
    assert "profile up-8080" in result.stderr
    assert home.run("stats", "--json").stderr == ""
    for name in ("up", "up-8080"):
        assert home.run("stats", "--profile", name).stderr == ""
    assert "up-8080" in home.run("profiles").stdout
    home.write("[default]\nserver = unix:/nonexistent/s\n")
    assert home.run("stats").returncode == 3
    home.write("[up-8080]\nserver = unix:/nonexistent/s\n")  # yours go first
    assert home.run("stats", "--profile", "up-8080").returncode == 3


@pytest.mark.skipif(os.path.exists(USUAL), reason="a daemon is installed")
def test_of_several_ups_one_is_named_and_a_killed_one_does_not_count(
        home, make_daemon):
    home.daemon = make_daemon(own=True)
    pretend_up(home, "up-8080")
    pretend_up(home, "up-9090")
    for words in (("stats",), ("stats", "--profile", "up")):
        several = home.run(*words)
        assert several.returncode == 2, several
        assert "up-8080, up-9090" in several.stderr
    assert home.run("stats", "--profile", "up-9090").returncode == 0
    socket = home.folder / "dir-up-8080/latchkeyd.sock"
    socket.unlink()  # as after a power loss
    assert "profile up-9090" in home.run("stats").stderr
    home.daemon.kill()
    gone = home.run("stats")
    assert gone.returncode == 3 and USUAL in gone.stderr
