"""What nginx -t says of asynchronous requests, before the first one."""

import pytest

from support.gateway import check_config, guard
from support.later import OPERATIONS, later

ASYNC = ("idempotency_async always;",
         "idempotency_async_location /operations/;")


def refused(*words, **options):
    checked = check_config(**options)
    assert not checked.ok, "it was accepted"
    message = next(line for line in checked.text.splitlines()
                   if "[emerg]" in line)
    for word in words:
        assert word in message, message
    return checked


def warned(*words, **options):
    checked = check_config(**options)
    assert checked.ok, checked.text
    lines = [line for line in checked.text.splitlines() if "[warn]" in line
             and all(word in line for word in words)]
    assert len(lines) == 1, checked.text


@pytest.mark.parametrize("parameter, message", [
    ("user=nobody-of-that-name", "there is no user"),
    ("user=", "only \"user=NAME\" is known"),
    ("group=root", "only \"user=NAME\" is known")])
def test_a_courier_is_a_user_that_there_is(folder, parameter, message):
    refused("idempotency_courier", message, http=courier(folder, parameter))
    assert check_config(http=courier(folder, "user=root")).ok


def courier(folder, parameter):
    return ("idempotency_courier unix:%s/g %s;\n"
            "server { listen unix:%s/g; }\n" % (folder, parameter, folder))


def test_a_place_to_ask_is_needed():
    refused("idempotency_async_location", "idempotency_operation",
            locations=guard("/", "idempotency_async always;"))
    assert check_config(guard("/", "idempotency_async off;")).ok


def test_without_a_courier_there_is_a_warning():
    warned("idempotency_courier", "never run",
           locations=guard("/", *ASYNC) + guard("/b", *ASYNC))


@pytest.mark.parametrize("size", ["0", "257m"])
def test_a_limit_that_is_none_is_refused(folder, size):
    refused("idempotency_async_body", **later(
        folder, route=["idempotency_async_body %s;" % size]))


def test_a_retry_after_more_than_a_day_is_refused(folder):
    refused("idempotency_async_retry", **later(
        folder, route=["idempotency_async_retry 2d;"]))


@pytest.mark.parametrize("address", [
    "127.0.0.1:8080", "localhost", "/run/x", "unix:"])
def test_the_courier_comes_through_a_unix_socket(address):
    refused("idempotency_courier", "unix:PATH",
            locations="", http="idempotency_courier %s;" % address)


def test_the_courier_is_named_once_and_in_http(folder):
    line = "idempotency_courier unix:%s/g;" % folder
    refused("idempotency_courier", "duplicate", http=line + line)
    refused("idempotency_courier", "not allowed", server=line)
    refused("idempotency_courier", "not allowed",
            locations="location / { %s }" % line)


def test_a_server_must_listen_where_the_courier_comes_in(folder):
    refused("idempotency_courier", "%s/x" % folder, "listen",
            http="idempotency_courier unix:%s/x;" % folder,
            listen=["unix:%s/xy" % folder])


def test_a_tenant_is_needed_where_clients_come_in(folder):
    # Only a server for the courier alone may do without.
    options = later(folder)
    assert check_config(**options).ok
    options["http"] = options["http"].replace(
        "listen unix:", "listen 127.0.0.1:1; listen unix:")
    refused("idempotency_tenant", **options)


def test_asking_needs_a_tenant(folder):
    refused("idempotency_operation", "idempotency_tenant", locations="""
        location /operations/ { idempotency_operation; }""")


def test_asking_has_a_location_of_its_own():
    refused("idempotency_operation", "location of its own", locations="""
        location /operations/ { idempotency_tenant $remote_addr;
                                idempotency_operation;
                                proxy_pass http://127.0.0.1:9; }""")
    for line in ("idempotency_operation;", "idempotency_status;",
                 "idempotency_counters;"):
        assert not check_config("""
            location /operations/ { idempotency_tenant $remote_addr;
                                    idempotency_operation; %s }"""
                                % line).ok


@pytest.mark.parametrize("options", ["rate=often", "burst=0", "often"])
def test_asking_has_a_rate_that_means_something(options):
    refused("idempotency_operation", options,
            locations=OPERATIONS % options)


def test_a_body_that_is_accepted_but_not_let_in_again_is_warned_of(folder):
    warned("client_max_body_size", "idempotency_async_body", **later(
        folder, route=["idempotency_async_body 2m;"]))


def test_a_socket_that_everybody_can_reach_is_refused(folder):
    folder.chmod(0o755)
    refused("every user", "courier", "user=", **later(folder))
    options = later(folder)
    options["http"] = options["http"].replace("/g;", "/g user=root;", 1)
    assert check_config(**options).ok
    folder.chmod(0o750)
    assert check_config(**later(folder)).ok
