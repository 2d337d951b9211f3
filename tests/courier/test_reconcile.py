"""latchkey reconcile: a provider's export against the ledger of jobs (C32)."""

import csv
import io
import json
import os
import pty
import re
import socket
import subprocess
import threading
import time

import pytest

from support.daemon import secret_of
from support.life import until
from support.outbox import JSON_TYPE
from support.provider import charge

HEADER = "id,idempotency_key,amount,currency,customer,created"


class Books:
    """A daemon, a provider that honours no keys, and the comparison."""

    def __init__(self, box, provider, folder):
        self.box = box
        self.provider = provider
        self.folder = folder

    def leave(self, state, amount=100, **manner):
        """A job that is in that state soon; the job."""
        key = self.box.leave(charge("cus_1", amount, **manner))
        return self.box.wait_job(key, state)

    def job(self, job):
        return self.box.show(job["id"])

    def export(self, form="csv", name=None):
        """What the provider says it has, now."""
        path = self.folder / (name or "export." + form)
        path.write_bytes(self.provider.ask("GET", "/v1/charges." + form)[2]
                         if form == "csv" else self.lines())
        return path

    def lines(self):
        return "".join(json.dumps(line) + "\n" for line in
                       self.provider.charges()).encode()

    def rows(self):
        text = self.export().read_text()
        return list(csv.DictReader(io.StringIO(text)))

    def write(self, rows, name="made.csv", header=HEADER, ends="\n"):
        """An export of our own."""
        path = self.folder / name
        names = header.split(",")
        lines = [header] + [",".join(str(row.get(n, "")) for n in names)
                            for row in rows]
        path.write_bytes("".join(line + ends for line in lines).encode())
        return path

    def run(self, path, *options, status=None, user="operator"):
        result = self.box.daemon.cli("reconcile", "pay", "--export", path,
                                     *options, user=user)
        if status is not None:
            assert result.returncode == status, result.stdout + result.stderr
        return result

    def counts(self, path, *options, status=None):
        result = self.run(path, "--json", *options, status=status)
        return json.loads(result.stdout)

    def audit(self):
        entries = json.loads(
            self.box.daemon.cli("audit", "--json").stdout)["entries"]
        return [entry for entry in entries
                if entry["who"].endswith("latchkey reconcile")]


@pytest.fixture
def books(box, make_provider, tmp_path):
    provider = make_provider(honours=False)
    box.target("pay", provider, timeout="2s", connect_timeout="2s").start(
        "courier.probes=no")
    return Books(box, provider, tmp_path)


def now():
    """A time after all that has happened."""
    time.sleep(0.01)
    return str(int(time.time() * 1000))


def settled():
    """A time at which nothing is on its way any more: the time-out is over."""
    time.sleep(2.01)
    return now()


def classes(document, *names):
    return {name: document[name] for name in names or (
        "matched", "differing", "only_there", "only_here", "happened",
        "did_not_happen", "uncertain")}


def make_all(books):
    """One of each; what each is."""
    made = {
        "matched": books.leave("delivered", 100),
        "differing": books.leave("delivered", 200),
        "only_here": books.leave("delivered", 300),
        "happened": books.leave("uncertain", 400, drop="after"),
        "absent": books.leave("uncertain", 500, drop="before"),
        "dead": books.leave("dead", 600, fail=400),
    }
    rows = []
    for row in books.rows():
        if row["idempotency_key"] == made["differing"]["downstream-key"]:
            row["amount"] = "201"
        if row["idempotency_key"] != made["only_here"]["downstream-key"]:
            rows.append(row)
    rows.append({"id": "ch_foreign", "idempotency_key": "foreign",
                 "amount": 1})
    return made, rows


# ---- what meets ----

OWN = "id,order_id,amount,created"  # an export that knows nothing of keys


def leave_order(books, state, customer, amount=100, **manner):
    key = books.box.leave(charge(customer, amount, **manner),
                          headers=JSON_TYPE + "X-Order: h-%s\r\n" % customer)
    return books.box.wait_job(key, state)


def write_own(books, *more):
    rows = [{**row, "order_id": row["customer"]} for row in books.rows()]
    return books.write(rows + list(more), header=OWN)


def test_a_reference_of_ours_finds_what_has_neither_key_nor_id_C32(books):
    delivered = leave_order(books, "delivered", "o-1")
    happened = leave_order(books, "uncertain", "o-2", drop="after")
    absent = leave_order(books, "uncertain", "o-3", drop="before")
    path = write_own(books)
    # Without it nothing can be said.
    document = books.counts(path, status=1)
    assert (document["uncertain"], document["only_there"]) == (2, 1)
    complete = settled()
    for match in ("customer=order_id", "/customer=order_id"):
        document = books.counts(path, "--match", match, "--compare",
                                "amount=amount", status=1)
        assert classes(document) == {
            "matched": 1, "differing": 0, "only_there": 0, "only_here": 0,
            "happened": 1, "did_not_happen": 0, "uncertain": 1}
    found = {one["class"]: one for one in document["findings"]}
    assert found["happened"]["match"] == "o-2"
    assert found["happened"]["line_key"] == "o-2"
    books.run(path, "--match", "customer=order_id", "--complete-until",
              complete, "--apply", status=0)
    assert books.job(happened)["state"] == "delivered"
    assert books.job(happened)["provider-id"]
    until(lambda: books.job(absent)["attempts"] == 2)
    assert books.job(delivered)["attempts"] == 1
    assert any("by customer=order_id" in entry["why"]
               for entry in books.audit())


def test_a_reference_may_be_in_a_header_or_in_a_form_C32(books):
    happened = leave_order(books, "uncertain", "o-1", drop="after")
    path = books.write([{"id": "ch_1", "order_id": "h-o-1"}], header=OWN)
    assert books.counts(path, "--match", "header:x-order=order_id",
                        status=1)["happened"] == 1
    key = books.box.leave(b"order%5Bid%5D=o+2&amount=5",
                          headers=b"Content-Type: application/"
                          b"x-www-form-urlencoded\r\n")
    books.box.wait_job(key, "dead")  # this provider takes JSON
    path = books.write([{"id": "ch_2", "order_id": "o 2"}], header=OWN)
    document = books.counts(path, "--match", "form:order[id]=order_id",
                            status=1)
    assert (document["happened"], document["uncertain"]) == (1, 1)
    assert books.job(happened)["state"] == "uncertain"


def test_a_reference_that_several_have_resolves_nothing_C32(books):
    twins = [leave_order(books, "uncertain", "o-1", drop="after"),
             leave_order(books, "uncertain", "o-1", drop="before")]
    double = leave_order(books, "uncertain", "o-2", drop="after")
    # A job that was never called explains no line.
    books.box.operator("TARGET", "PAUSE", "pay", "WHO", "o", "WHY", "test")
    waiting = leave_order(books, "waiting", "o-3")
    path = write_own(books, {"id": "ch_again", "order_id": "o-2"},
                     {"id": "ch_other", "order_id": "o-3"})
    result = books.run(path, "--match", "customer=order_id", "--apply",
                       "--complete-until", settled(), status=1)
    assert "7 open" in result.stdout and "others have the same value" in (
        result.stdout)
    assert "this job was never called" in result.stdout
    document = books.counts(path, "--match", "customer=order_id", status=1)
    # Two jobs and a line, a job and two lines, and the one never called.
    assert document["ambiguous"] == 7 and document["happened"] == 0
    for job in [*twins, double]:
        assert books.job(job)["state"] == "uncertain"
    assert books.job(waiting)["state"] == "waiting"
    assert books.audit() == []


def test_a_reference_that_the_provider_cuts_is_not_taken_for_absent_C32(books):
    leave_order(books, "delivered", "o-1")
    absent = leave_order(books, "uncertain", "o-12345678", drop="before")
    match = ("--match", "customer=order_id", "--apply", "--complete-until",
             settled())
    path = write_own(books, {"id": "ch_cut", "order_id": "o-1234"})
    result = books.run(path, *match, status=1)
    assert "a value of --match that no job has" in result.stdout
    assert books.job(absent)["attempts"] == 1 and books.audit() == []
    # Without such a line it is.
    books.run(write_own(books), *match, status=0)
    until(lambda: books.job(absent)["attempts"] == 2)


def test_nothing_against_nothing_is_not_reconciled_C32(books):
    path = books.write([])
    result = books.run(path, status=1)
    assert "nothing was compared" in result.stdout
    assert "reconciled" not in result.stdout
    assert books.counts(path, status=1)["open"] == 0


# ---- what is found ----

def test_all_classes_are_told_apart_and_nothing_is_done_C32(books):
    made, rows = make_all(books)
    path = books.write(rows)
    document = books.counts(path, "--compare", "amount=amount", status=1)
    assert classes(document) == {
        "matched": 1, "differing": 1, "only_there": 1, "only_here": 1,
        "happened": 1, "did_not_happen": 0, "uncertain": 1}
    assert document["neither"] == 1 and document["jobs"] == 6
    assert document["lines"] == len(rows) and document["malformed"] == 0
    found = {one["class"]: one for one in document["findings"]}
    assert found["differing"]["differs"] == [
        {"what": "amount=amount", "here": "200", "there": "201"}]
    assert found["differing"]["job"] == made["differing"]["id"]
    assert found["only-there"]["line_id"] == "ch_foreign"
    assert found["only-here"]["job"] == made["only_here"]["id"]
    assert found["happened"]["job"] == made["happened"]["id"]
    assert found["happened"]["outcome"] == "proposed"
    assert found["uncertain"]["job"] == made["absent"]["id"]
    for job in made.values():
        assert books.job(job)["state"] == job["state"]
    assert books.audit() == []


def test_apply_resolves_what_is_proven_and_nothing_else_C32(books):
    made, rows = make_all(books)
    rows += [row for row in books.rows() if row["idempotency_key"] ==
             made["only_here"]["downstream-key"]]
    path = books.write(rows)
    document = books.counts(path, "--compare", "amount=amount", "--apply",
                            "--complete-until", settled(), status=1)
    assert classes(document) == {
        "matched": 2, "differing": 1, "only_there": 1, "only_here": 0,
        "happened": 1, "did_not_happen": 1, "uncertain": 0}
    assert document["resolved_delivered"] == 1
    assert document["resolved_again"] == 1 and document["refused"] == 0
    assert document["open"] == 2
    job = books.job(made["happened"])
    assert job["state"] == "delivered"
    charged, = [row for row in rows if row["idempotency_key"] ==
                job["downstream-key"]]
    assert job["provider-id"] == charged["id"]
    # It is called again, and is in doubt again: the provider still drops it.
    until(lambda: books.job(made["absent"])["attempts"] == 2)
    for name in ("matched", "differing", "only_here", "dead"):
        after = books.job(made[name])
        assert (after["state"], after["attempts"]) == (
            made[name]["state"], made[name]["attempts"]), name
    entries = books.audit()
    assert len(entries) == 2
    assert all(path.name in entry["why"] for entry in entries)
    assert any("line " in entry["why"] for entry in entries)
    assert any("complete until" in entry["why"] for entry in entries)


def test_twice_is_harmless_and_then_all_is_reconciled_C32(books):
    books.leave("delivered", 100)
    books.leave("uncertain", 400, drop="after")
    absent = books.leave("uncertain", 500, drop="before", times=1)
    path = books.export()
    until_ms = settled()
    books.run(path, "--apply", "--complete-until", until_ms, status=0)
    until(lambda: books.job(absent)["state"] == "delivered")
    again = books.counts(path, "--apply", "--complete-until", until_ms,
                         status=0)
    # The one that was called again came after the export.
    assert classes(again, "matched", "later", "happened", "did_not_happen") \
        == {"matched": 2, "later": 1, "happened": 0, "did_not_happen": 0}
    final = books.run(books.export(), "--complete-until", now(), status=0)
    assert "everything is reconciled" in final.stdout
    assert len(books.provider.charges()) == 3
    assert len(books.audit()) == 2


def test_absence_proves_nothing_unless_the_export_is_complete_C32(books):
    books.leave("delivered", 100)
    before = now()
    job = books.leave("uncertain", 500, drop="before")
    path = books.export()
    for options in ((), ("--complete-until", before)):
        document = books.counts(path, "--apply", *options, status=1)
        assert classes(document, "did_not_happen", "uncertain") == {
            "did_not_happen": 0, "uncertain": 1}, options
    assert books.job(job)["attempts"] == 1


def test_absence_proves_nothing_while_a_call_may_be_on_its_way_C32(books):
    books.leave("delivered", 100)
    job = books.leave("uncertain", 500, drop="before")
    path = books.export()
    before = str(job["ended-ms"] + 1999)
    time.sleep(2.01)
    document = books.counts(path, "--apply", "--complete-until", before,
                            status=1)
    assert classes(document, "did_not_happen", "uncertain") == {
        "did_not_happen": 0, "uncertain": 1}
    assert books.job(job)["attempts"] == 1


def test_absence_proves_nothing_if_the_export_is_doubtful_C32(books):
    books.leave("delivered", 100)
    books.leave("delivered", 101)
    job = books.leave("uncertain", 500, drop="before")
    rows = books.rows()
    cases = {
        "could not be read": rows + [{"customer": "neither key nor id"}],
        "without a key": rows + [{"id": "ch_x"}],
        "may hold other keys": [dict(row, idempotency_key="k" + row["id"])
                               for row in rows],
        # Filtered, cut off, or of another account.
        "not in the export": rows[:1],
        "are not in": [],
    }
    complete = settled()
    for text, lines in cases.items():
        document = books.counts(books.write(lines), "--apply",
                                "--complete-until", complete, status=1)
        assert document["did_not_happen"] == 0, text
        assert text in document["absence_fault"]
    path = books.write(rows)
    path.write_bytes(path.read_bytes()[:-1])
    document = books.counts(path, "--apply", "--complete-until", complete,
                            status=1)
    assert "may be cut off" in document["absence_fault"]
    assert books.job(job)["state"] == "uncertain"
    assert books.job(job)["attempts"] == 1


def test_the_id_alone_matches_but_proves_no_absence_C32(books):
    made = books.leave("delivered", 100)
    lost = books.leave("uncertain", 500, drop="before")
    path = books.write([{"id": made["provider-id"]}], header="id")
    document = books.counts(path, "--apply", "--complete-until", now(),
                            status=1)
    assert classes(document, "matched", "uncertain", "did_not_happen") == {
        "matched": 1, "uncertain": 1, "did_not_happen": 0}
    assert books.job(lost)["state"] == "uncertain"


def test_a_dead_job_that_the_provider_has_is_delivered_C29_C32(books):
    dead = books.leave("dead", 100, fail=400)
    rows = [{"id": "ch_9", "idempotency_key": dead["downstream-key"]}]
    document = books.counts(books.write(rows), "--apply", status=0)
    assert document["resolved_delivered"] == 1
    job = books.job(dead)
    assert (job["state"], job["provider-id"]) == ("delivered", "ch_9")


def test_a_waiting_job_that_the_provider_has_is_not_called_C32(books):
    books.box.daemon.cli("target", "pause", "pay", "--why", "x", check=True)
    waiting = books.leave("waiting", 100)
    rows = [{"id": "ch_9", "idempotency_key": waiting["downstream-key"]}]
    books.counts(books.write(rows), "--apply", status=0)
    books.box.daemon.cli("target", "resume", "pay", "--why", "x", check=True)
    assert books.job(waiting)["state"] == "delivered"
    books.leave("delivered", 7)
    assert [line["amount"] for line in books.provider.charges()] == [7]


def test_a_second_charge_of_one_job_is_found_C32(books):
    job = books.leave("delivered", 100)
    row, = books.rows()
    document = books.counts(
        books.write([row, row, dict(row, id="ch_second")]), status=1)
    assert classes(document, "matched", "repeated", "only_there") == {
        "matched": 1, "repeated": 1, "only_there": 1}
    finding, = document["findings"]
    assert finding["line_id"] == "ch_second" and finding["job"] == job["id"]


def test_a_job_that_differs_is_not_resolved_C32(books):
    job = books.leave("uncertain", 400, drop="after")
    row, = books.rows()
    path = books.write([dict(row, amount="40")])
    document = books.counts(path, "--apply", "--compare", "amount=amount",
                            status=1)
    assert classes(document, "differing", "happened") == {
        "differing": 1, "happened": 0}
    assert books.job(job)["state"] == "uncertain"


class Between:
    """Passes bytes on to a daemon; `hook` runs before the first order."""

    def __init__(self, folder, daemon, word, hook):
        self.path = folder / "between"
        self.daemon, self.word, self.hook = daemon, word, hook
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.daemon.socket))
            threading.Thread(target=self.carry, args=(server, client),
                             daemon=True).start()
            threading.Thread(target=self.carry, args=(client, server, True),
                             daemon=True).start()

    def carry(self, source, sink, hook=False):
        try:
            while data := source.recv(1 << 16):
                if hook and self.hook and self.word in data:
                    run, self.hook = self.hook, None
                    run()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.mark.stores("sqlite")
def test_a_job_that_moved_on_meanwhile_is_left_alone_C32(books):
    """The attempt that was read is the fence."""
    job = books.leave("uncertain", 400, drop="after", times=2)
    path = books.write(books.rows())

    def meddle():
        assert books.box.order("AGAIN", job) == "OK"
        until(lambda: books.job(job)["attempts"] == 2 and
              books.job(job)["state"] == "uncertain")

    between = Between(books.folder, books.box.daemon, b"DELIVERED", meddle)
    document = books.counts(path, "--apply", "--server",
                            "unix:%s" % between.path, status=1)
    assert document["refused"] == 1 and document["resolved_delivered"] == 0
    assert document["findings"][0]["outcome"] == "refused"
    assert books.job(job)["state"] == "uncertain"


@pytest.mark.stores("sqlite")
def test_a_file_that_changes_meanwhile_proves_nothing_C32(books):
    job = books.leave("uncertain", 400, drop="after")
    path = books.write(books.rows())

    def meddle():
        text = path.read_text()
        path.write_text(text.replace(job["downstream-key"], "0" * 32))

    between = Between(books.folder, books.box.daemon, b"JOBS", meddle)
    result = books.run(path, "--apply", "--server", "unix:%s" % between.path,
                       status=3)
    assert "has changed" in result.stderr
    assert books.job(job)["state"] == "uncertain"


@pytest.mark.stores("sqlite")
def test_an_id_that_cannot_be_kept_is_proof_all_the_same_C32(books):
    job = books.leave("uncertain", 400, drop="after")
    folder = books.folder / ("a" * 200) / ("b" * 200)
    folder.mkdir(parents=True)
    rows = [{"id": "\u00e9\x1b[31m", "idempotency_key":
             " %s\t" % job["downstream-key"]}]
    path = books.write(rows).rename(folder / ("\x1b" * 200 + ".csv"))
    result = books.run(path, "--apply", status=0)
    assert books.job(job)["state"] == "delivered"
    assert not books.job(job)["provider-id"]
    assert "\x1b" not in result.stdout + result.stderr


# ---- times ----

@pytest.mark.stores("sqlite")
def test_only_the_time_that_is_asked_for_counts(books):
    books.leave("delivered", 100)
    middle = now()
    books.leave("delivered", 200)
    empty = books.write([])
    assert books.counts(empty)["only_here"] == 2
    for options, here in ((("--since", middle), 1), (("--until", middle), 1),
                          (("--since", "1h"), 2), (("--until", "1h"), 0)):
        assert books.counts(empty, *options)["only_here"] == here, options
    rows = [{"id": "a", "created": "2020-01-01T00:00:00Z"},
            {"id": "b", "created": middle}]
    document = books.counts(books.write(rows), "--since", middle,
                            "--time-column", "created")
    assert document["only_there"] == 1
    assert document["outside"] == 2


# ---- files ----

@pytest.mark.stores("sqlite")
def test_json_lines_are_read_as_well(books):
    made, _ = make_all(books)
    path = books.export("jsonl")
    document = books.counts(path, "--key-column", "key", "--compare",
                            "amount=amount", "--compare",
                            "/customer=/customer")
    assert classes(document, "matched", "happened", "uncertain",
                   "malformed") == {
        "matched": 3, "happened": 1, "uncertain": 1, "malformed": 0}
    text = path.read_text()
    path.write_text(text + "{oops\n\n" + '{"key":"a","key":"b"}\n')
    document = books.counts(path, "--key-column", "key", status=1)
    bad = [one for one in document["findings"] if one["class"] == "malformed"]
    first = len(text.splitlines()) + 1
    assert [one["line"] for one in bad] == [first, first + 2]


@pytest.mark.stores("sqlite")
def test_csv_as_other_programs_write_it(books):
    job = books.leave("delivered", 100)
    path = books.folder / "odd.csv"
    path.write_bytes(
        b"\xef\xbb\xbfnote;\"Key\";amount\r\n"
        b"\"two\r\nlines; \"\"quoted\"\"\";%s;1.00E+2\r\n" %
        job["downstream-key"].encode())
    books.run(path, "--delimiter", ";", "--key-column", "Key", "--compare",
              "amount=amount", status=0)


@pytest.mark.stores("sqlite")
def test_malformed_lines_are_counted_and_named(books):
    job = books.leave("delivered", 100)
    path = books.folder / "bad.csv"
    path.write_text("id,idempotency_key\n"
                    "a,b,c\n"
                    'x,y"z\n'
                    "%s,%s\n"
                    ",\n" % (job["provider-id"], job["downstream-key"]))
    result = books.run(path, status=1)
    for text in ("line 2:", "line 3:", "line 5:", "3  malformed"):
        assert text in result.stdout, text
    assert "1  matched" in result.stdout
    document = books.counts(path, status=1)
    assert (document["lines"], document["malformed"]) == (1, 3)


@pytest.mark.stores("sqlite")
def test_people_see_a_few_of_each_kind(books):
    job = books.leave("delivered", 100)
    rows = [{"id": "ch_%d" % i, "idempotency_key": "k%d" % i}
            for i in range(30)]
    rows.append({"id": job["provider-id"], "amount": 99,
                 "idempotency_key": job["downstream-key"]})
    out = books.run(books.write(rows), "--compare", "amount=amount",
                    status=1).stdout
    assert out.count("only-there ") == 5
    assert "amount=amount: 100 here, 99 there" in out
    assert "lists all 31" in out and "31 open" in out


def run_on_terminal(books, path):
    """What is shown on the terminal, and what is said on standard output."""
    daemon = books.box.daemon
    environment = {**daemon.environment(), "LATCHKEY_SERVER": daemon.address,
                   "LATCHKEY_USER": "operator",
                   "LATCHKEY_PASSWORD": secret_of("operator")}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
            [str(daemon.build / "latchkey"), "reconcile", "pay", "--export",
             str(path)], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # how Linux says that a terminal is gone
            pass
        os.close(ours)
        told = process.stdout.read()
    assert process.returncode == 1
    return shown, told


@pytest.mark.stores("sqlite")
def test_a_terminal_sees_how_far_it_is_and_a_file_does_not(books):
    path = books.write([])
    count, steps = 0, []
    while not steps:  # what takes no time at all has no bar
        more = max(300000, 3 * count)
        with path.open("a") as file:
            file.writelines("ch_%d,foreign-%d,1,eur,cus,\n" % (i, i)
                            for i in range(count, count + more))
        count += more
        shown, told = run_on_terminal(books, path)
        assert b"%d" % count in told and b"%" not in told
        steps = re.findall(rb"(\w+) \[[#-]*\] +(\d+)%", shown)
    for word in {word for word, _ in steps}:
        shares = [int(share) for its, share in steps if its == word]
        assert shares == sorted(shares) and shares[-1] <= 100, shown
    assert shown.endswith(b"\r\033[K")
    assert "%" not in books.run(path, status=1).stderr


@pytest.mark.stores("sqlite")
def test_a_report_lists_what_is_not_matched(books):
    made, rows = make_all(books)
    path = books.folder / "report.jsonl"
    path.write_text("an earlier one, for all to read\n" * 100)
    path.chmod(0o644)
    books.run(books.write(rows), "--compare", "amount=amount", "--report",
              path, status=1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["class"] for line in lines) == [
        "differing", "happened", "only-here", "only-there", "summary",
        "uncertain"]
    assert lines[-1]["class"] == "summary" and lines[-1]["open"] == 5
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.stores("sqlite")
def test_what_cannot_run_says_so(books):
    books.leave("delivered", 100)
    good = books.export()
    broken = books.folder / "broken.csv"
    broken.write_text('id,idempotency_key\n"open,b\n')
    headless = books.folder / "headless.csv"
    headless.write_text("")
    other = books.write([], header="a,b")
    pipe = books.folder / "pipe.csv"
    os.mkfifo(pipe)
    twice = books.write([], "twice.csv", header="id,idempotency_key,id")
    for words, status, text in (
            (("pay", "--export", broken), 3, "line 2"),
            (("pay", "--export", headless), 3, "header"),
            (("pay", "--export", other), 2, "a, b"),
            (("pay", "--export", twice), 2, 'two columns "id"'),
            (("pay", "--export", good, "--report", good), 2, "overwrite"),
            (("pay", "--export", pipe), 2, "must be a file"),
            (("pay", "--export", good, "--key-column", "k"), 2, '"k"'),
            (("pay", "--export", good, "--compare", "amount=sum"), 2, '"sum"'),
            (("pay", "--export", good, "--compare", "amount"), 2, "HERE=THERE"),
            (("pay", "--export", good, "--memory", "1k"), 2, "1m"),
            (("pay", "--export", good, "--match", "order"), 2, "HERE=THERE"),
            (("pay", "--export", good, "--match", "form:=id"), 2,
             "HERE=THERE"),
            (("pay", "--export", good, "--match", "order=number"), 2,
             '"number"'),
            (("pay", "--export", good, "--match", "a=id", "--key-column",
              "id"), 2, "--key-column"),
            (("pay", "--export", good, "--complete-until", "2999-01-01"), 2,
             "future"),
            (("pay", "--export", "/nonexistent.csv"), 2, "cannot read"),
            (("pay",), 2, "--export"),
            (("pay", "--export", __file__), 2, "--format"),
            (("nowhere", "--export", good), None, "nowhere")):
        result = books.box.daemon.cli("reconcile", *words)
        assert result.returncode == status or status is None, (words, result)
        assert result.returncode > 1
        assert text in result.stderr, (words, result.stderr)
        assert result.stdout == ""


@pytest.mark.stores("sqlite")
def test_a_reader_compares_but_does_not_resolve(books):
    books.leave("uncertain", 400, drop="after")
    path = books.export()
    assert books.run(path, user="reader").returncode == 1
    result = books.run(path, "--apply", user="reader")
    assert result.returncode == 4 and "operate" in result.stderr


# ---- many ----

@pytest.mark.stores("sqlite")
def test_more_lines_than_memory_leave_no_files_behind(books):
    keys = books.box.leave_many(500, lambda key: charge("cus", 5))
    books.box.wait_settled()
    assert len(keys) == 500
    path = books.export()
    assert path.read_text().startswith(
        "id,amount,currency,customer,idempotency_key,created\n")
    folder = books.folder / "tmp"
    folder.mkdir()
    with path.open("a") as file:
        for i in range(200000):
            file.write("ch_x%d,1,eur,cus,foreign-%d,2026-01-01T00:00:00Z\n" %
                       (i, i))
    os.environ["TMPDIR"] = str(folder)
    try:
        document = books.counts(path, "--memory", "1m", "--compare",
                                "amount=amount", status=1)
    finally:
        del os.environ["TMPDIR"]
    assert classes(document, "matched", "only_there", "differing") == {
        "matched": 500, "only_there": 200000, "differing": 0}
    assert list(folder.iterdir()) == []


# ---- probe ----

def test_probe_has_the_daemon_ask_the_provider_C32(box, make_provider):
    provider = make_provider(honours=False)
    box.target("pay", provider, probe="/v1/keys/{key}", timeout="1s",
               connect_timeout="1s",
               probe_settle="1s", probe_interval="1h").start()
    key = box.leave(charge("cus_1", drop="after"))
    until(lambda: box.job_of(key, whole=False)["state"] in (
        "uncertain", "delivered"))
    result = box.daemon.cli("reconcile", "pay", "--probe", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert document["probe_open"] == 0
    assert box.wait_job(key)["provider-id"] == provider.charges()[0]["id"]


def test_a_target_without_a_probe_is_told_C32(box, provider):
    box.target("pay", provider).start()
    result = box.daemon.cli("reconcile", "pay", "--probe")
    assert result.returncode > 1 and "probe" in result.stderr


# ---- what is not kept any more ----

def test_what_is_older_than_what_is_kept_is_not_called_unknown(books):
    # C32: on every store, jobs go with their operation
    key = books.box.leave(charge("cus_1", 100), options=("TTL", 1))
    until(lambda: books.box.job_of(key, whole=False) is None)
    rows = books.rows()
    assert len(rows) == 1
    rows.append({"id": "ch_foreign", "idempotency_key": "foreign", "amount": 1,
                 "created": int(time.time() * 1000) + 3600000})
    path = books.write(rows)
    document = books.counts(path, "--time-column", "created", "--since", "26h",
                            status=1)
    assert (document["older"], document["only_there"]) == (1, 1)
    assert document["forgotten_ms"] > 0
    assert [one["line_id"] for one in document["findings"]] == ["ch_foreign"]
    path = books.write(rows[:1])
    result = books.run(path, "--time-column", "created", status=0)
    assert "older than what is stored here" in result.stdout
    assert "--time-column" in books.run(path, status=1).stdout
    # What a job that is gone may have done proves nothing of another that has
    # the same reference.
    lost = leave_order(books, "uncertain", "cus_1", drop="before")
    for more in ((), ("--time-column", "created")):
        document = books.counts(path, "--match", "customer=customer",
                                "--apply", *more, status=1)
        assert (document["ambiguous"], document["happened"]) == (1, 0)
    assert books.job(lost)["state"] == "uncertain"
    # It is not forgotten over a restart.
    books.box.daemon.stop()
    books.box.daemon.start()
    assert books.counts(path, "--time-column", "created",
                        status=1)["older"] == 1
