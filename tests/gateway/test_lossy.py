"""Stock clients with retries; the network loses a third of the answers.

Each orders so many things and must end with the app's answer to each, and the
app must have got each order once. The same run straight to the app, without
the gateway, must show orders that ran twice: else it would prove nothing.
"""

import collections
import itertools
import json
import os
import pathlib
import subprocess
import urllib.parse

import pytest
import urllib3

from support import build
from support.app import App
from support.gateway import guard
from support.lossy import BODY, HEAD, LEFT, NOTHING, RESET, WAYS, Lossy
from support.node import need_node, node_modules

HERE = pathlib.Path(__file__).resolve().parent
SECRET = "0123456789abcdef0123456789abcdef"
WAIT = "idempotency_wait 20s;"


class Ledger(App):
    """Answers as Stripe would, and knows which order came how often."""

    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)
        self.answers = collections.defaultdict(list)

    def manner_of(self, call):
        call.manner = dict(super().manner_of(call), status=200, delay=0.01)
        return call.manner

    def record(self, call):
        order = order_of(call.body)
        answer = {"id": "cus_%d" % next(self.numbers), "object": "customer",
                  "order": order, "filler": "x" * 2000}
        call.manner["body"] = json.dumps(answer)
        with self.changed:
            self.answers[order].append(answer)
        super().record(call)


def order_of(body):
    text = body.decode()
    if text.startswith("{"):
        return json.loads(text)["order"]
    return int(dict(urllib.parse.parse_qsl(text))["metadata[order]"])


# ---- the clients: each orders 0..count-1 and yields the answers ----

def run_curl(url, count, folder):
    """All at once: curl waits a whole second before it tries again."""
    runs = []
    for number in range(count):
        out = folder / ("answer-%d" % number)
        runs.append((out, subprocess.Popen(
            ["curl", "-sS", "--fail", "-o", str(out), "-m", "60",
             "--retry", "30", "--retry-all-errors", "--retry-connrefused",
             "--retry-delay", "1", "-H", "X-API-Key: acme", "-H",
             "Idempotency-Key: curl-%d" % number, "-H",
             "Content-Type: application/json", "--data-binary",
             json.dumps({"order": number}), url],
            stderr=subprocess.PIPE)))
    for out, process in runs:
        _, said = process.communicate(timeout=120 * build.patience())
        assert process.returncode == 0, said
        yield json.loads(out.read_bytes())


def run_urllib3(url, count, folder):
    pool = urllib3.PoolManager(retries=urllib3.Retry(
        total=30, allowed_methods=["POST"], backoff_factor=0))
    for number in range(count):
        answer = pool.request(
            "POST", url, body=json.dumps({"order": number}),
            headers={"Content-Type": "application/json", "X-API-Key": "acme",
                     "Idempotency-Key": "urllib3-%d" % number},
            # Without it a body that was cut would count as an answer.
            enforce_content_length=True)
        assert answer.status == 200, answer.data
        yield json.loads(answer.data)


def run_node(script):
    def run(url, count, folder):
        need_node()
        modules = node_modules(HERE / "clients",
                               "gateway-clients") / "node_modules"
        result = subprocess.run(
            ["node", str(HERE / "clients" / script), url, str(count)],
            env=dict(os.environ, NODE_PATH=str(modules)),
            capture_output=True, text=True, timeout=120 * build.patience())
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]
    return run


# curl and Python take a header that was cut for a whole one, and Stripe's
# client waits for ever for the rest of a body: there is nothing to retry.
CLIENTS = {
    "curl": (run_curl, 20, (NOTHING, RESET, BODY, LEFT)),
    "urllib3": (run_urllib3, 40, (NOTHING, RESET, BODY, LEFT)),
    "fetch": (run_node("fetch.js"), 40, WAYS),
    "got": (run_node("got.js"), 40, WAYS),
    "stripe": (run_node("stripe.js"), 40, (NOTHING, RESET, HEAD, LEFT)),
}


@pytest.fixture
def ledger():
    app = Ledger().start()
    yield app
    app.finish()


@pytest.fixture
def gateway(make_gateway, ledger, tmp_path):
    """Keys, and the credential that Stripe's client sends as the tenant."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    return make_gateway(
        app=ledger, http="idempotency_secret %s;" % secret,
        locations=guard("/", WAIT) + guard(
            "/v1/", WAIT, tenant="$http_authorization hashed"))


def order_through(port, client, folder, seed):
    """Lets the client order; its answers and the network."""
    run, count, ways = CLIENTS[client]
    with Lossy(port, seed, ways=ways) as network:
        answers = list(run("http://127.0.0.1:%d/" % network.port, count,
                           folder))
    assert [answer["order"] for answer in answers] == list(range(count))
    assert set(network.lost) == set(ways), "not every way of losing was tried"
    return answers, network


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stock_client_that_retries_orders_each_thing_once(
        gateway, ledger, client, tmp_path):
    # C01, C02, C11
    answers, network = order_through(gateway.port, client, tmp_path, seed=7)
    for answer in answers:
        assert ledger.answers[answer["order"]] == [answer]
    assert ledger.count() == len(answers)
    assert network.passed >= len(answers)
    replays = [entry for entry in gateway.access()
               if entry["verdict"] == "replay"]
    assert replays and len(replays) <= network.lost.total()
    if client == "stripe":
        assert all(entry["tenant"].startswith("h:") for entry in replays)
        keys = {call.key for call in ledger.calls}
        assert all(key.startswith("stripe-node-retry-") for key in keys)
        assert "sk_test" not in gateway.access_log.read_text()


@pytest.mark.parametrize("client", CLIENTS)
def test_without_the_gateway_the_same_client_orders_things_twice(
        ledger, client, tmp_path):
    # The run above can fail.
    port = int(ledger.address.rsplit(":", 1)[1])
    answers, network = order_through(port, client, tmp_path, seed=7)
    doubles = [order for order, given in ledger.answers.items()
               if len(given) > 1]
    assert doubles and ledger.count() > len(answers)


def test_the_same_seed_loses_the_same_answers(ledger, tmp_path):
    port = int(ledger.address.rsplit(":", 1)[1])
    runs = [order_through(port, "urllib3", tmp_path, seed=3)[1].lost
            for _ in range(2)]
    assert runs[0] == runs[1]
    other = order_through(port, "urllib3", tmp_path, seed=4)[1].lost
    assert other != runs[0]
