#!/usr/bin/env bash
# run_unit.sh - one test program in C; what it said is shown in one piece.
set -u

log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$1" >"$log" 2>&1
status=$?
{
    echo "== $1"
    if [ "$status" -eq 0 ]; then
        grep -aE '^\[  PASSED|^\[  SKIPPED' "$log"
    else
        cat "$log"
        echo "error: $1 left with $status"
    fi
} | cat
# 255 makes xargs stop.
[ "$status" -eq 0 ] || exit 255
