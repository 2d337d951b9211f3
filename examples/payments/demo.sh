#!/usr/bin/env bash
# demo.sh - Latchkey in front of a payments API: first request by request, then
# in numbers, with and without it; then (demo_outbox.sh) calls to a provider,
# with kill -9 in the middle. Everything is in a temporary folder.
#
#   examples/payments/demo.sh [CUSTOMERS]
#
# On a terminal it stays up at the end, to be tried out, until Ctrl-C.
# LATCHKEY_BUILD names another build folder, LATCHKEY_NGINX another nginx.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(realpath "${LATCHKEY_BUILD:-build}")
nginx=${LATCHKEY_NGINX:-nginx}
customers=${1:-100}
price=1250 # cents
me=acme:demo
PATH=$PATH:/usr/sbin

bold='' dim='' red='' green='' off=''
if [ -t 1 ]; then
    bold=$'\033[1m' dim=$'\033[2m' red=$'\033[31m' green=$'\033[32m'
    off=$'\033[0m'
fi

fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

title() { printf '\n%s%s%s\n\n' "$bold" "$*" "$off"; }
say() { printf '  %s\n' "$@"; }
after() { echo && say "$@"; }

for program in payments provider lossy latchkeyd latchkey ngx_http_latchkey_module.so; do
    [ -e "$build/$program" ] || fail "$build/$program is not built: run make"
done
for program in "$nginx" curl; do
    command -v "$program" >/dev/null || fail "$program is not installed"
done

# ---- starting and stopping ---------------------------------------------------

home=$(mktemp -d "${TMPDIR:-/tmp}/latchkey-demo.XXXXXX")
declare -A pids

stop() {
    trap '' INT TERM HUP
    # PostgreSQL would wait for its clients with any other signal.
    [ -z "${pids[postgres]-}" ] || kill -INT "${pids[postgres]}" || true
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$home"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# start NAME PROGRAM...: its output goes to NAME.log.
start() {
    local name=$1
    shift
    "$@" </dev/null >"$home/$name.log" 2>&1 &
    pids[$name]=$!
}

# await NAME COMMAND...: until the command succeeds, while NAME lives.
await() {
    local name=$1
    shift
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "${pids[$name]}" 2>/dev/null || break
        sleep 0.1
    done
    cat "$home/$name.log" "$home/error.log" >&2 2>/dev/null || true
    fail "$name did not start"
}

is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The port that people expect, or the next free one.
free_port() {
    local port=$1
    until is_free "$port"; do
        port=$((port + 10))
    done
    echo "$port"
}

# For our own programs, which choose a port and print it.
address_of() { sed -n 's/^listening on //p' "$home/$1.log"; }

start_app() {
    start app "$build/payments" --ledger "$home/ledger.jsonl" \
        --listen "127.0.0.1:$(free_port 8081)"
    await app grep -q '^listening' "$home/app.log"
    app=$(address_of app)
}

start_daemon() {
    socket=$home/latchkeyd.sock
    echo demo >"$home/password"
    login=(--user demo --password-file "$home/password")
    start latchkeyd "$build/latchkeyd" --store "sqlite:$home/latchkey.db" \
        --listen "unix:$socket" --set "users.demo=operate file:$home/password" \
        --set "courier.gateway=unix:$home/courier.sock" \
        --set courier.gateway_concurrency=4 --set courier.lease=2s
    export LATCHKEY_SERVER=unix:$socket
    await latchkeyd "$build/latchkey" ping
}

# The sample configuration, with this folder's addresses in it.
start_gateway() {
    local port root=''
    port=$(free_port 8080)
    gateway=127.0.0.1:$port
    echo "acme:{PLAIN}demo" >"$home/users"
    ln -s "$build" "$home/modules"
    sed -e "s|127.0.0.1:8081|$app|" -e "s|127.0.0.1:8080|$gateway|" \
        -e "s|unix:/run/.*/latchkeyd.sock|unix:$socket|" \
        -e "s|unix:/run/.*/courier.sock|unix:$home/courier.sock|" \
        examples/payments/nginx.conf >"$home/nginx.conf"
    # Only root can give its workers another user, who could not enter here.
    [ "$(id -u)" -ne 0 ] || root='user root;'
    start nginx "$nginx" -p "$home" -c "$home/nginx.conf" -e "$home/error.log" \
        -g "daemon off; $root"
    await nginx curl -s -o "$home/up" "http://$gateway/counters"
}

# ---- request by request ------------------------------------------------------

quote() {
    case $1 in
    '&') printf ' &' ;;
    *[!A-Za-z0-9_:/.=-]*) printf " '%s'" "$1" ;;
    *) printf ' %s' "$1" ;;
    esac
}

show_command() {
    local word
    printf '  %s$ curl' "$bold"
    for word in "$@"; do
        case $word in
        -H | --json) printf ' \\\n        ' ;;
        esac
        quote "$word"
    done
    printf '%s\n' "$off"
}

# With a space between members, where lines may be folded.
show_body() {
    sed 's/,"/, "/g' "$1" | fold -s -w 74 | sed -e 's/^/    /' -e 's/ *$//'
    [ -z "$(tail -c 1 "$1")" ] || echo
}

# Only the headers that matter here.
show_response() {
    sed 's/ *\r$//' "$home/response.head" | grep -i -e '^HTTP/' -e '^Idempot' \
        -e '^Location' -e '^Retry-After' -e '^Content-Type' \
        -e '^Preference-Applied' | sed 's/^/    /'
    echo
    show_body "$home/response.body"
}

# Shows the command, runs it, and shows the response, which is stored in two files.
ask() {
    show_command "$@"
    curl "$@" >"$home/response" || fail "curl failed"
    sed '/^\r$/q' "$home/response" >"$home/response.head"
    sed '1,/^\r$/d' "$home/response" >"$home/response.body"
    show_response
}

reference_of() { sed -n 's/^Idempotency-Reference: \(.*\)\r$/\1/ip' "$1"; }
order() { printf '{"amount":%s,"currency":"eur","customer":"%s"}' "$1" "$2"; }
charges() { ledger charges; }
ledger() { curl -s "http://$app/ledger" | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }

tell_requests() {
    local url=http://$gateway/charges reference before slow

    title "1. A customer pays 42 euros"
    say "The key names her order. The gateway claims it, calls the app, stores" \
        "the response, and only then passes it on. (Only the headers that" \
        "matter here are shown; bodies are folded.)"
    echo
    ask -si -u $me "$url" -H 'Idempotency-Key: order-1' \
        --json "$(order 4200 cus_1)"
    reference=$(reference_of "$home/response.head")
    mv "$home/response.body" "$home/first.body"

    title "2. She retries"
    say "Suppose the response got lost. The same bytes come back, and the app" \
        "is not called. The same JSON in another spelling is the same request."
    echo
    ask -si -u $me "$url" -H 'Idempotency-Key: order-1' \
        --json '{ "customer": "cus_1", "amount": 42e2, "currency": "eur" }'
    cmp "$home/first.body" "$home/response.body" ||
        fail "the retry got another response"
    after "The same, byte for byte. Charges so far: $(charges)."

    title "3. The same key, another amount"
    say "A mistake in the client. It gets 422; the app is not called."
    echo
    ask -si -u $me "$url" -H 'Idempotency-Key: order-1' \
        --json "$(order 9900 cus_1)"

    title "4. A retry while the first request is still running"
    say "The app takes two seconds for this one. The retry gets 409."
    echo
    before=$(charges)
    show_command -s -u $me "$url?delay=2000" -H 'Idempotency-Key: order-2' \
        --json "$(order 1500 cus_2)" '&'
    curl -s -u $me "$url?delay=2000" -H 'Idempotency-Key: order-2' \
        --json "$(order 1500 cus_2)" -o "$home/slow.body" &
    slow=$!
    until [ "$(charges)" -gt "$before" ]; do
        kill -0 $slow || fail "the request did not reach the app"
        sleep 0.05
    done
    echo
    ask -si -u $me "$url?delay=2000" -H 'Idempotency-Key: order-2' \
        --json "$(order 1500 cus_2)"
    wait $slow
    after "Then the response of the first request:"
    echo
    show_body "$home/slow.body"

    title "5. The state of an operation"
    say "By the reference that came with its first response."
    echo
    ask -si -u $me "http://$gateway/operations?reference=$reference"

    title "6. The app vanishes in the middle of a request"
    say "It charges and closes the connection without a response. The gateway" \
        "cannot know that, and reports it; a retry does not run it again."
    echo
    ask -si -u $me "$url?drop=1" -H 'Idempotency-Key: order-3' \
        --json "$(order 700 cus_3)"
    echo
    ask -si -u $me "$url?drop=1" -H 'Idempotency-Key: order-3' \
        --json "$(order 700 cus_3)"
    after "An operator, or a comparison with the app's ledger, decides it."
}

# ---- in numbers --------------------------------------------------------------

# Pays once for one customer, as a careful client does: it repeats the request,
# with its key, until there is a response. Counts in `sent` and `lost`.
pay() {
    local url=$1 customer=$2 status
    for _ in $(seq 40); do
        sent=$((sent + 1))
        status=$(curl -s -u $me -H "Idempotency-Key: order-of-$customer" \
            --json "$(order $price "$customer")" \
            -o "$home/paid" -w '%{http_code}' "$url") || true
        case $status in
        201) return ;;
        000) lost=$((lost + 1)) ;;
        *) fail "a payment got status $status: $(cat "$home/paid")" ;;
        esac
    done
    fail "no response in 40 attempts"
}

# compare NAME ADDRESS: every customer pays once, through the lossy network.
compare() {
    local name=$1 to=$2 charges_before twice_before number
    charges_before=$(charges)
    twice_before=$(ledger charged_more_than_once)
    start "lossy-$name" "$build/lossy" --listen 127.0.0.1:0 --to "$to" \
        --lose 33 --seed 4
    await "lossy-$name" grep -q '^listening' "$home/lossy-$name.log"
    sent=0 lost=0
    for number in $(seq "$customers"); do
        pay "http://$(address_of "lossy-$name")/charges" "$name-$number"
    done
    made=$(($(charges) - charges_before))
    twice=$(($(ledger charged_more_than_once) - twice_before))
}

euros() { printf '%d.%02d EUR' $(($1 / 100)) $(($1 % 100)); }
row() { printf '  %-26s %14s %20s\n' "$@"; }

tell_numbers() {
    local sent lost made twice direct_sent direct_lost direct_made direct_twice
    local colour=$green

    title "7. $customers customers pay $(euros $price) once each"
    say "The network loses a third of the responses. The client then sends the" \
        "same request again, with the same key, until it gets a response." \
        "First straight to the app, then through Latchkey: the same client," \
        "the same losses."
    echo
    compare direct "$app"
    direct_sent=$sent direct_lost=$lost direct_made=$made direct_twice=$twice
    compare guarded "$gateway"

    [ "$twice" -eq 0 ] || colour=$red
    printf '%s' "$bold"
    row "" "straight" "through Latchkey"
    printf '%s' "$off"
    row "requests sent" "$direct_sent" "$sent"
    row "responses lost" "$direct_lost" "$lost"
    row "charges made" "$direct_made" "$made"
    printf '  %-26s %s%14s%s %s%20s%s\n' "charged more than once" \
        "$red" "$direct_twice" "$off" "$colour" "$twice" "$off"
    row "charged too much" "$(euros $(((direct_made - customers) * price)))" \
        "$(euros $(((made - customers) * price)))"
    if [ "$twice" -ne 0 ] || [ "$made" -ne "$customers" ]; then
        fail "Latchkey let a charge through twice"
    fi
}

tell_more() {
    title "Everything is still running. Try it:"
    cat <<END
  curl -i -u $me http://$gateway/charges \\
       -H 'Idempotency-Key: mine' --json '$(order 100 me)'
  curl http://$app/ledger
  curl http://$gateway/counters
  $build/latchkey list --state uncertain \\
       --server unix:$socket --user demo --password-file $home/password
  curl http://${provider:-}/v1/charges
  $build/latchkey jobs --state delivered \\
       --server unix:$home/shop.sock --user demo --password-file $home/password

  Logs, ledger and store: $home
  ${dim}Ctrl-C stops everything and removes it.${off}
END
}

. examples/payments/demo_outbox.sh

title "Starting"
start_app
say "the payments API     http://$app   charges once per request"
start_daemon
say "latchkeyd            unix:$socket"
start_gateway
say "nginx with Latchkey  http://$gateway   in front of the API"

tell_requests
tell_numbers
tell_later
if postgres=$(postgres_programs) &&
    /usr/bin/python3 -c 'import psycopg' 2>/dev/null; then
    tell_outbox
    tell_doubt
else
    title "10. Orders in PostgreSQL, their money at a provider"
    say "Left out: PostgreSQL or python3-psycopg is not installed."
fi
if [ -t 0 ] && [ -t 1 ]; then
    trap 'echo; exit 0' INT
    tell_more
    wait "${pids[app]}"
fi
