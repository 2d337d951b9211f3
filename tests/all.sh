#!/usr/bin/env bash
# all.sh - every test once, plain; with the word `all`, also with longer races,
# under sanitizers, fuzzed and linted. What runs where is in tests/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %d:%02d %s\033[0m\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
jobs=-j$(nproc)

# Shorter races, fewer kills.
shorten() {
    export LATCHKEY_KILLS=${LATCHKEY_KILLS:-24}
    export LATCHKEY_RACE_CLAIMS=${LATCHKEY_RACE_CLAIMS:-200000}
    export LATCHKEY_HANGS=${LATCHKEY_HANGS:-240}
    export LK_SEEDS=${LK_SEEDS:-60}
}

if [ "${1-}" != all ]; then
    shorten
    say "build"
    make "$jobs" all tests faults
    say "tests"
    make check
    say "all tests passed"
    exit
fi

say "format"
make fmt-check
mandoc -Tlint -Wwarning man/*.[158]

say "plain build"
make "$jobs" all tests faults

# The linters have what the tests leave: those wait now and then.
nice -n 15 make lint >build/lint.log 2>&1 &
lint=$!
trap 'kill $lint 2>/dev/null || true' EXIT

# Reloads every 100 ms for 20 s are what is promised; other runs have the
# defaults, which are shorter.
say "plain tests, and the linters beside them"
LATCHKEY_RELOAD_SECONDS=${LATCHKEY_RELOAD_SECONDS:-20} make check
say "the linters"
wait $lint || {
    cat build/lint.log
    exit 1
}

# The same tests on slower programs.
shorten
for sanitizer in address,undefined thread; do
    say "sanitizer: $sanitizer"
    make "$jobs" SANITIZE=$sanitizer all tests faults
    make SANITIZE=$sanitizer check
done

say "fuzzing, a few seconds each"
make "$jobs" fuzz SECONDS=10

say "all tests passed"
