"""The documents, as a reader pastes them: each block of a document runs, in
order, on a machine of its own.

The word after the fence says how: sh runs in one shell for the whole document,
"sh stays" does not come back and is stopped before the next; nginx is checked by nginx -t,
in whichever context it fits; ini by latchkeyd --check-config; sql by psql;
python runs with the names that a fragment leaves open (names.py); json is read;
text is output or a drawing.
"""

import json
import pathlib
import re
import shlex
import subprocess
import textwrap

import pytest

from support import build
from support.hosts import need_hosts
from support.postgres import programs

HERE = pathlib.Path(__file__).resolve().parent
FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.M)

# What must be seen in what a document's blocks print: that they not only run
# but do what the text around them says.
PROOFS = {
    "README.md": ["Latchkey is up", "Idempotent-Replayed: true",
                  "everything is reconciled"],
    "docs/postgres.md": ["responded 201", "tps = "],
    "docs/outbox.md": ["delivered", "answered 422", "dropped"],
    "docs/operations.md": ["backed up to", "is an older copy"],
    "docs/nginx.md": ["HTTP/1.1 202 Accepted"],
}

# What a document takes for granted: that its reader has followed these.
BEFORE = {
    "docs/nginx.md": ("docs/operations.md", "## Install\n", "\n## "),
    "docs/postgres.md": ("README.md", "", "\n## What it promises"),
    "docs/outbox.md": ("README.md", "", "\n## What it promises"),
}

SHELL = r"""
set -eE -o pipefail
trap 'echo "this failed: $BASH_COMMAND" >&2' ERR

# What stays says that it is ready, and is stopped, as by Ctrl-C, before one goes
# on.
stays=
stay() {
    setsid bash /tmp/stays >/tmp/stays-said 2>&1 &
    stays=$!
    until grep -qE 'Ctrl-C stops it|event=ready' /tmp/stays-said; do
        kill -0 $stays
        sleep 0.1
    done
    cat /tmp/stays-said
}
interrupt() {
    if [ -n "$stays" ]; then
        kill -- "-$stays"
        wait "$stays" || true
        stays=
    fi
}

# One of these is in the context that the block is meant for.
check_nginx() {
    >/tmp/said
    for file in /etc/nginx/block.*; do
        nginx -t -q -c $file 2>>/tmp/said && return
    done
    cat /tmp/said >&2
    return 1
}
"""


def blocks(document, start="", end=None):
    """Line, words after the fence, text; of all, or from `start` to `end`."""
    text = (build.ROOT / document).read_text()
    begin = text.index(start) + len(start)
    text = text[:text.index(end, begin) if end else None]
    return [(text.count("\n", 0, match.start()) + 1, match[2].split(),
             textwrap.dedent(match[3])) for match in FENCE.finditer(text, begin)]


def here(text):
    return "<<'END OF BLOCK'\n%sEND OF BLOCK\n" % text


CONTEXTS = ["%s", "http {\n%s}\n", "http {\nserver {\n%s}\n}\n",
            "http {\nserver {\nlocation / {\n%s}\n}\n}\n"]

# What a reader's configuration has, unless the block itself brings it.
READERS = [
    ("upstream app", "upstream app { server 127.0.0.1:3000; }\n"),
    ("$account {", "map $http_x_api_key $account { default acme; }\n")]


def nginx(text):
    module = build.BUILD / "ngx_http_latchkey_module.so"
    start = "load_module %s;\nevents {}\n" % module
    around = "".join(lines for name, lines in READERS if name not in text)
    files = [start + (context % text).replace("http {\n", "http {\n" + around, 1)
             for context in CONTEXTS]
    return "rm -f /etc/nginx/block.*\n%scheck_nginx\n" % "".join(
        "cat >/etc/nginx/block.%d %s" % (i, here(text))
        for i, text in enumerate(files))


def python(text):
    """As the database's own user where it needs a connection."""
    user = "runuser -u postgres -- " if "connection" in text else ""
    return "%s/usr/bin/python3 - %s" % (user, here(
        (HERE / "names.py").read_text() + text))


RUN = {
    ("sh",): lambda text: "interrupt\n" + text,
    ("sh", "stays"): lambda text: "cat >/tmp/stays %sstay\n" % here(text),
    ("nginx",): nginx,
    ("ini",): lambda text: "cat >/tmp/block %s%s/latchkeyd --check-config "
    "--config /tmp/block\n" % (here(text), build.BUILD),
    ("sql",): lambda text: "runuser -u postgres -- psql -q -v ON_ERROR_STOP=1 "
    "shop %s" % here(text),
    ("python",): python,
    ("json",): lambda text: json.loads(text) and "",
    ("text",): lambda text: "",
}


def script(document):
    parts = [SHELL]
    if document in BEFORE:
        parts += commands(*BEFORE[document])
    return "\n".join(parts + commands(document))


def commands(document, *part):
    parts = []
    for line, words, text in blocks(document, *part):
        where = "%s:%d" % (document, line)
        assert tuple(words) in RUN, "%s says %r" % (where, " ".join(words))
        parts.append("echo %s\n" % shlex.quote("== " + where))
        parts.append(RUN[tuple(words)](text))
    return parts


@pytest.mark.parametrize("document", PROOFS)
def test_a_document_works_as_pasted(document, tmp_path):
    need_hosts()
    (tmp_path / "script").write_text(script(document))
    run = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
         "--mount-proc", HERE / "machine.sh", tmp_path / "script"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
             "POSTGRES_BIN": str(programs())},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
    assert "[warn]" not in run.stdout, run.stdout
    for proof in PROOFS[document]:
        assert proof in run.stdout, run.stdout
