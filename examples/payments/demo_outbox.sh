# demo_outbox.sh - the second half of demo.sh, which reads it: what happens
# after the claim. Requests with a later response, orders that are paid at a
# remote provider, and kill -9 in the middle of both.
# shellcheck shell=bash disable=SC2154

# slay NAME: kill -9.
slay() {
    kill -9 "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || true
    unset "pids[$1]"
}

# until_true COMMAND...: up to a minute.
until_true() {
    for _ in $(seq 1200); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    fail "it did not happen in a minute: $*"
}

# ---- responses that come later -----------------------------------------------

location_of() { sed -n 's/^Location: \(.*\)\r$/\1/ip' "$1"; }
# Asks, and leaves the status in a variable. 202: later; 429: not so often.
has_response() {
    polled=$(curl -s -u $me -o "$home/polled" -w '%{http_code}' "$1")
    [ "$polled" -ne 202 ] && [ "$polled" -ne 429 ]
}
charges_are() { [ "$(charges)" -ge "$1" ]; }

# accept_orders COUNT: prints nothing; the place to ask for each goes to a file.
accept_orders() {
    local number
    for number in $(seq "$1"); do
        curl -si -u $me "http://$gateway/charges?delay=300" \
            -H "Idempotency-Key: later-$number" -H 'Prefer: respond-async' \
            --json "$(order $price "later-$number")" >"$home/accepted" ||
            fail "curl failed"
        location_of "$home/accepted"
    done >"$home/places"
    [ "$(grep -c . "$home/places")" -eq "$1" ] || fail "not all were accepted"
}

# How many of the accepted orders got which final response.
count_responses() {
    local place polled
    paid=0 open=0
    while read -r place; do
        until_true has_response "http://$gateway$place"
        case $polled in
        201) paid=$((paid + 1)) ;;
        409) open=$((open + 1)) ;;
        *) fail "an order got status $polled: $(cat "$home/polled")" ;;
        esac
    done <"$home/places"
}

tell_later() {
    local many=40 before paid open twice place polled

    title "8. She does not want to wait"
    say "Prefer: respond-async. The request is stored, and she gets the place" \
        "to ask. latchkeyd brings it to the app; a retry gets the same 202."
    echo
    ask -si -u $me "http://$gateway/charges?delay=300" \
        -H 'Idempotency-Key: order-4' -H 'Prefer: respond-async' \
        --json "$(order 2100 cus_4)"
    place=http://$gateway$(location_of "$home/response.head")
    until_true has_response "$place"
    after "A moment later the place has the app's own response:"
    echo
    ask -si -u $me "$place"

    title "9. kill -9 of latchkeyd, with $many orders on their way"
    before=$(charges)
    twice=$(ledger charged_more_than_once)
    accept_orders $many
    until_true charges_are $((before + 10))
    slay latchkeyd
    say "$many accepted, $(($(charges) - before)) charged when it was killed."
    start_daemon
    count_responses
    say "Started again. Now every order has its response:"
    echo
    row2 "orders accepted" $many
    row2 "response: paid" $paid
    row2 "response: unknown" $open
    row2 "charges made" $(($(charges) - before))
    row2 "charged more than once" $(($(ledger charged_more_than_once) - twice))
    [ $((paid + open)) -eq $many ] || fail "an order was forgotten"
    [ "$(ledger charged_more_than_once)" -eq "$twice" ] ||
        fail "an order was charged twice"
    [ $(($(charges) - before)) -ge $paid ] || fail "an order was not charged"
}

# ---- orders in PostgreSQL, money at a provider -------------------------------

row2() { printf '  %-32s %s%8s%s\n' "$1" "${3-}" "$2" "${3:+$off}"; }

postgres_programs() {
    local newest
    newest=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V |
        tail -1)
    [ -x "$newest" ] && dirname "$newest"
}

# PostgreSQL does not run as root, and its user may not enter the folder as it is.
start_postgres() {
    local as=()
    mkdir "$home/pg"
    if [ "$(id -u)" -eq 0 ]; then
        chmod 711 "$home"
        chown postgres: "$home/pg"
        as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
    fi
    (cd "$home/pg" && "${as[@]}" "$postgres/initdb" --no-sync --auth=trust \
        --encoding=UTF8 --locale=C --username=postgres -D "$home/pg/data") \
        >"$home/initdb.log" 2>&1 || fail "initdb: $(tail -3 "$home/initdb.log")"
    start postgres "${as[@]}" "$postgres/postgres" -D "$home/pg/data" \
        -c listen_addresses= -c unix_socket_directories="$home/pg"
    await postgres query postgres 'SELECT 1'
    query postgres 'CREATE DATABASE shop' >/dev/null
    for role in latchkey_owner latchkey_daemon latchkey_app; do
        query shop "CREATE ROLE $role" >/dev/null
    done
    query shop 'CREATE SCHEMA latchkey AUTHORIZATION latchkey_owner' >/dev/null
    store="postgres://postgres@/shop?host=$home/pg"
    "$build/latchkey" migrate "$store&options=-crole%3Dlatchkey_owner" \
        >"$home/migrate.log"
    "$postgres/psql" -X -q -v ON_ERROR_STOP=1 -h "$home/pg" -U postgres \
        -d shop -f examples/payments/orders.sql
}

# query DATABASE SQL: what psql prints, without headings.
query() {
    "$postgres/psql" -X -qAt -v ON_ERROR_STOP=1 -h "$home/pg" -U postgres \
        -d "$1" -c "$2"
}
shop() { query shop "$1"; }

# start_provider yes|no: does it honour keys?
start_provider() {
    start provider "$build/provider" --listen "${provider:-127.0.0.1:0}" \
        --ledger "$home/provider.jsonl" --calls "$home/calls.jsonl" \
        --honour-keys "$1" --seed 7 \
        --manner '{"drop_after":15,"fail_503":10,"delay_20":50}'
    await provider grep -q '^listening' "$home/provider.log"
    provider=$(address_of provider)
}

start_shop_daemon() {
    start shop-latchkeyd "$build/latchkeyd" --store "$store" \
        --listen "unix:$home/shop.sock" \
        --set "users.demo=operate file:$home/password" \
        --set courier.lease=2s --set target.provider.url="http://$provider" \
        --set target.provider.idempotency="$1" \
        --set target.provider.safe_statuses=503 \
        --set target.provider.id=json:/id --set target.provider.backoff=50ms \
        --set target.provider.backoff_max=500ms \
        --set target.provider.concurrency=8
    await shop-latchkeyd "$build/latchkey" ping --server "unix:$home/shop.sock"
}

charged() { grep -c . "$home/provider.jsonl"; }
has_charged() { [ "$(charged)" -ge "$1" ]; }
jobs_are_over() { [ "$(shop "SELECT count(*) FROM latchkey.job
    WHERE state IN (0, 1)")" -eq 0 ]; }

# take_orders FROM TO: by golden.py, in the background.
take_orders() {
    local number
    for number in $(seq "$1" "$2"); do
        echo "order-$number cus-$number $((1000 + number))"
    done | /usr/bin/python3 examples/payments/golden.py \
        "host=$home/pg dbname=shop user=shop" >"$home/golden.log" 2>&1 &
    pids[golden]=$!
}

# The orders and the charges, customer and cents on each line.
list_orders() { shop "SELECT customer || ' ' || amount FROM orders" | sort; }
list_charges() {
    sed 's/.*"amount":\([0-9]*\),.*"customer":"\([^"]*\)".*/\2 \1/' \
        "$home/provider.jsonl" | sort
}

# Counts what only one of the two has, and what is there twice.
compare_books() {
    list_orders >"$home/orders"
    list_charges >"$home/charges"
    only_here=$(uniq "$home/charges" | comm -23 "$home/orders" - | grep -c .) ||
        true
    only_there=$(uniq "$home/charges" | comm -13 "$home/orders" - | grep -c .) ||
        true
    double=$(uniq -d "$home/charges" | grep -c .) || true
}

tell_books() {
    local only_here only_there double bad=$green
    compare_books
    [ $((only_here + only_there + double)) -eq 0 ] || bad=$red
    row2 "orders in PostgreSQL" "$(grep -c . "$home/orders")"
    row2 "charges at the provider" "$(charged)"
    row2 "calls made" "$(grep -c . "$home/calls.jsonl")"
    row2 "orders without a charge" "$only_here" "$bad"
    row2 "charges without an order" "$only_there" "$bad"
    row2 "charged more than once" "$double" "$bad"
    [ "$double" -eq 0 ] || fail "an order was charged twice"
    [ "$only_there" -eq 0 ] || fail "a charge has no order"
}

start_outbox() {
    say "PostgreSQL starts, and a provider: a server of its own, with a ledger" \
        "of its own. It loses 15 of 100 responses after it has charged, and" \
        "responds to 10 of 100 calls with 503, when nothing has happened" \
        "(safe_statuses = 503)."
    start_postgres
    start_provider yes
    start_shop_daemon yes
}

kill_courier_at() {
    until_true has_charged "$1"
    slay shop-latchkeyd
    say "$(charged) charges: ${bold}kill -9 of latchkeyd${off}, and start it again."
    start_shop_daemon yes
}

tell_outbox() {
    title "10. $customers orders in PostgreSQL, their money at a provider"
    start_outbox
    say "golden.py takes an order in one transaction: claim, row in our" \
        "table, the payment as a job, and the response. latchkeyd's courier" \
        "makes the call, with the same Idempotency-Key, until it succeeds."
    echo
    take_orders 1 "$customers"
    kill_courier_at $((customers / 3))
    kill_courier_at $((customers * 2 / 3))
    wait "${pids[golden]}" || fail "golden.py: $(tail -5 "$home/golden.log")"
    unset "pids[golden]"
    until_true jobs_are_over
    after "When all is done:"
    echo
    tell_books
    cmp -s "$home/orders" "$home/charges" || fail "the books differ"
    after "Each order was charged exactly once, and both books agree:"
    echo
    reconcile
}

# The lines of the report that people read.
reconcile() {
    curl -s "http://$provider/v1/charges.csv" >"$home/charges.csv"
    printf '  %s$ latchkey reconcile provider --export charges.csv%s%s\n' \
        "$bold" "${*:+ $*}" "$off"
    (cd "$home" && "$build/latchkey" --server unix:shop.sock "${login[@]}" \
        reconcile provider --export charges.csv \
        --key-column idempotency_key --id-column id "$@") \
        >"$home/reconcile.log" 2>&1 ||
        fail "the books do not agree: $(cat "$home/reconcile.log")"
    sed 's/^/    /' "$home/reconcile.log"
}

tell_doubt() {
    local first=$((customers + 1)) many=40 doubtful

    title "11. The same provider, if it did not honour keys"
    say "A call that was sent and got no response must not be sent again." \
        "The courier marks it uncertain, and it waits for proof."
    echo
    slay provider
    slay shop-latchkeyd
    start_provider no
    start_shop_daemon no
    take_orders $first $((customers + many))
    wait "${pids[golden]}" || fail "golden.py: $(tail -5 "$home/golden.log")"
    unset "pids[golden]"
    until_true jobs_are_over
    doubtful=$(shop "SELECT count(*) FROM latchkey.job WHERE state = 2")
    row2 "further orders" $many
    row2 "paid, and known to be" $((many - doubtful))
    row2 "uncertain" "$doubtful"
    after "The provider's own list of charges is the proof:"
    echo
    reconcile --apply
    [ "$(shop "SELECT count(*) FROM latchkey.job WHERE state = 2")" -eq 0 ] ||
        fail "some are still uncertain"
    echo
    tell_books
    cmp -s "$home/orders" "$home/charges" || fail "the books differ"
}
