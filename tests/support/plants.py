"""Bugs to be planted: small changes of copies of the sources, each of which
linear must find. The sources themselves know nothing of this.

A plant is a store, a file and changes of its text; each text that is changed
must be there exactly once, so that a plant that no longer fits is noticed.
"""

import os
import subprocess

from . import build, rules

DECIDE, APPLY, KEEP = (
    "store/sqlite_decide.c", "store/sqlite_apply.c", "store/sqlite_keep.c")
MACHINE = "lib/machine.c"
LUA, SQL = "store/lua/latchkey.lua", "store/sql/02_decide.sql"

PLANTS = {
    # ---- the embedded store, the machine, the daemon ----
    "EXTEND is ignored": ("sqlite", DECIDE, [
        ("uint64_t until = now + lock_of(store, op);",
         "uint64_t until = entry->deadline;")]),
    "an old token counts": ("sqlite", DECIDE, [
        ("standing.token_current = op->token == entry->token;",
         "standing.token_current = op->token <= entry->token;")]),
    "a release needs no token": ("sqlite", MACHINE, [
        ("    RULE(BY_HOLDER,       EVERY_STATE,            NO,          "
         "IF(TOKEN_CURRENT), ",
         "    RULE(BY_HOLDER & ~EVENT(RELEASE), EVERY_STATE, NO, "
         "IF(TOKEN_CURRENT), ")]),
    "a proof counts for any claim": ("sqlite", MACHINE, [
        ("EVERY_STATE & ~STATE(UNCERTAIN), IF(PROOF), NO, ",
         "STATE(ABSENT), IF(PROOF), NO, "),
        ("STATE(UNCERTAIN),                IF(PROOF), IF(TOKEN_CURRENT), ",
         "STATE(ABSENT), IF(PROOF), IF(TOKEN_CURRENT), ")]),
    "published before it is committed": ("sqlite", APPLY, [
        ("        status = commit_open(store);\n",
         "        publish_batch(store);\n"
         "        status = commit_open(store);\n")]),
    "a failed commit is acknowledged": ("sqlite", APPLY, [
        ("    enum lk_status status = lk_sqlite_run(store, "
         "LK_STATEMENT_COMMIT);\n",
         "    (void)!lk_sqlite_run(store, LK_STATEMENT_COMMIT);\n"
         "    enum lk_status status = LK_OK;\n")]),
    "acknowledged before it is synced": ("sqlite", "store/sqlite_schema.c", [
        ("PRAGMA synchronous=FULL; PRAGMA cache_size",
         "PRAGMA synchronous=OFF; PRAGMA cache_size")]),
    "the sweeper releases": ("sqlite", KEEP, [
        ("lk_sqlite_outcome(store, entry, LK_ROW_LAPSE, entry->deadline)",
         "lk_sqlite_outcome(store, entry, LK_ROW_RELEASE, "
         "entry->deadline + 1000)")]),
    "attempts are not counted": ("sqlite", DECIDE, [
        ("row.attempt += !accepted;",
         "row.attempt += !accepted && !renewed;")]),
    "every owner is the same": ("sqlite", DECIDE, [
        ("lk_owner_hash(store, op->owner) == entry->owner", "true"),
        ("standing->same_owner = row.same_owner;",
         "standing->same_owner = true;")]),
    "every fingerprint is the same": ("sqlite", DECIDE, [
        ("lk_fingerprint_hash(store, op->fingerprint) == entry->fingerprint",
         "true")]),
    "KEEP makes it shorter": ("sqlite", DECIDE, [
        ("return until <= entry->deadline\n", "return until == 0\n")]),
    "fields of a reply are swapped": ("sqlite", "daemon/reply.c", [
        ("    W(write_number(out, stored->at_ms));\n"
         "    W(write_number(out, outcome->expires_ms));\n"
         "    W(lk_write_reference(out, store, outcome->number));\n",
         "    W(write_number(out, outcome->expires_ms));\n"
         "    W(write_number(out, stored->at_ms));\n"
         "    W(lk_write_reference(out, store, outcome->number));\n")]),
    "a peek overtakes what was sent before": ("sqlite", "daemon/command_operation.c", [
        ("    if (!conn->head) {\n        step = peek(",
         "    if (conn) {\n        step = peek(")]),
    # ---- Redis ----
    "the TTL counts from the claim": ("redis", LUA, [
        ("    return now + max(asked", "    return claimed + max(asked")]),
    "a completion is overwritten": ("redis", LUA, [
        ("        if not token_current then\n"
         "            return 11, 0, state -- STALE\n        end\n"
         "        if state == 4 --[[ completed ]] then\n"
         "            return 10, 0, state -- KEPT\n        end\n",
         "        if not token_current then\n"
         "            return 11, 0, state -- STALE\n        end\n"),
        ("        if event == 3 --[[ complete ]] and (state == 2 "
         "--[[ in_progress ]] or state == 3 --[[ uncertain ]]) then\n",
         "        if event == 3 then\n")]),
    "another run's answer is replayed": ("redis", LUA, [
        ("    call('SET', name, start .. args[i] .. args[i + 1])\n",
         "    call('SETRANGE', name, 0, start .. args[i] .. args[i + 1])\n"),
        ("        sub(record, HEAD + 1, HEAD + fingerprint + owner) .. why .. "
         "response\n",
         "        sub(record, HEAD + 1, HEAD + fingerprint + owner) .. why ..\n"
         "        (#record > HEAD + fingerprint + owner + 40 and\n"
         "            becomes == COMPLETED and why == '' and\n"
         "            sub(record, HEAD + fingerprint + owner + 1) or "
         "response)\n")]),
    # ---- PostgreSQL ----
    "a lapsed lock holds": ("postgres", SQL, [
        (" AND NOT lapsed\n            THEN 3 /* INFLIGHT */\n",
         "\n            THEN 3 /* INFLIGHT */\n")]),
    "a doubt is forgotten": ("postgres", SQL, [
        ("            reason = CASE p.event\n"
         "                WHEN 3 /* complete */ THEN nullif(p.reason, '')\n"
         "                WHEN 5 /* doubt */ THEN p.reason END\n",
         "            reason = CASE p.event\n"
         "                WHEN 3 /* complete */ THEN nullif(p.reason, '') "
         "END\n")]),
}

# Those that every run of the tests looks for.
USUAL = ("EXTEND is ignored", "published before it is committed",
         "the TTL counts from the claim")


def change(path, changes):
    text = (build.ROOT / path).read_text()
    if path in (LUA, SQL):  # as the daemon has it: with the rules filled in
        text = rules.run("lua" if path == LUA else "sql", text=text)
    for old, new in changes:
        assert text.count(old) == 1, "%s has %d times: %s" % (
            path, text.count(old), old)
        text = text.replace(old, new)
    return text


def build_daemon(name, path, changes):
    """A folder with a latchkeyd that has the bug."""
    folder = build.BUILD / "planted" / name.replace(" ", "-")
    source = folder / path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(change(path, changes))
    result = subprocess.run(
        ["make", "--no-print-directory", "-s", "BUILD=%s" % build.BUILD,
         "planted-daemon", "PLANT=%s" % folder, "PLANTED=%s" % path],
        cwd=build.ROOT, capture_output=True, text=True,
        env={**os.environ, "MAKEFLAGS": ""}, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder
