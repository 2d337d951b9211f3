#!/usr/bin/env bash
# walk.sh - one operation's life, told with redis-cli against a fresh daemon
# on a temporary store. Leaves the daemon running.
set -euo pipefail
cd "$(dirname "$0")/.."

home=$(mktemp -d "${TMPDIR:-/tmp}/latchkey-demo.XXXXXX")
socket=$home/latchkeyd.sock
log=$home/latchkeyd.log

setsid build/latchkeyd --store "sqlite:$home/latchkey.db" \
    --listen "unix:$socket" \
    --set "users.demo=operate demo" --set store.sweep_interval=200ms \
    </dev/null >"$log" 2>&1 &
daemon=$!

for _ in $(seq 100); do
    redis-cli -s "$socket" ping >/dev/null 2>&1 && break
    kill -0 $daemon 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.1
done

bold=$'\033[1m' dim=$'\033[2m' off=$'\033[0m'
if [ ! -t 1 ]; then bold='' dim='' off=''; fi

step() { printf '\n%s%s%s\n' "$bold" "$1" "$off"; shift
    printf '%s%s%s\n' "$dim" "$*" "$off"; }
say() {
    printf '  $ redis-cli'
    printf ' %q' "$@"
    echo
    reply=$(redis-cli -s "$socket" "$@")
    printf '%s\n' "$reply" | sed 's/^/    /'
}
token() { printf '%s\n' "$reply" | sed -n 2p; }

echo "latchkeyd runs as process $daemon on $socket"

step "1. NEW" "The first claim of a key wins: run the payment. The numbers are" \
    "the token, the end of the lock, the attempt and a reference for people."
say CLAIM acme "POST /payments" key-1 fp-10-euros OWNER web-1
first=$(token)

step "2. INFLIGHT" "A retry arrives while the first one still works: wait" \
    "that many milliseconds and ask again."
say CLAIM acme "POST /payments" key-1 fp-10-euros OWNER web-2

step "3. the same NEW" "The first caller lost the reply and asks again with" \
    "its OWNER: it gets the same token, not a second one."
say CLAIM acme "POST /payments" key-1 fp-10-euros OWNER web-1

step "4. MISMATCH" "The same key for another request is refused, always."
say CLAIM acme "POST /payments" key-1 fp-99-euros OWNER web-2

step "5. REPLAY" "The payment is done; its answer is stored durably. From now" \
    "on every retry gets it, byte for byte."
say COMPLETE acme "POST /payments" key-1 "$first" 201 \
    $'Content-Type: application/json\r\n' '{"id":"pay_1","amount":10}'
say CLAIM acme "POST /payments" key-1 fp-10-euros OWNER web-2

step "6. UNCERTAIN" "A holder that vanishes: this lock lasts half a second," \
    "and nobody completes it. Did it happen? Nobody knows, and Latchkey says so."
say CLAIM acme "POST /payments" key-2 fp-20-euros OWNER web-1 LOCK 500
second=$(token)
sleep 1
say CLAIM acme "POST /payments" key-2 fp-20-euros OWNER web-2

step "7. STALE" "web-2 asks to run it again all the same (REEXECUTE) and gets the" \
    "next token. web-1 comes back late with the old one: it counts no more."
say CLAIM acme "POST /payments" key-2 fp-20-euros OWNER web-2 REEXECUTE
third=$(token)
say COMPLETE acme "POST /payments" key-2 "$second" 201 "" "from web-1"
say COMPLETE acme "POST /payments" key-2 "$third" 201 "" "from web-2"
say CLAIM acme "POST /payments" key-2 fp-20-euros

step "8. what an operator sees" "latchkey list"
LATCHKEY_SERVER=unix:$socket LATCHKEY_USER=demo LATCHKEY_PASSWORD=demo \
    build/latchkey list 2>&1 | sed 's/^/    /'

cat <<EOF

The daemon is still running. Try it with any Redis client:
    redis-cli -s $socket
    build/latchkey --server unix:$socket get acme "POST /payments" key-1
Stop it, and remove what it wrote:
    kill $daemon && rm -r $home
EOF
