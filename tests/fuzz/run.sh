#!/usr/bin/env bash
# run.sh SECONDS FUZZER - one fuzzer for that long. New inputs go to
# build/fuzz/corpus; the seeds in tests/fuzz/corpus stay.
set -u
seconds=$1 fuzzer=$2
name=${fuzzer##*/fuzz_}
log=build/fuzz/$name.log

mkdir -p "build/fuzz/corpus/$name"
"$fuzzer" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/ \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || {
    tail -40 "$log"
    echo "error: fuzz $name"
    exit 255 # makes xargs stop
}
echo "fuzz $name, $seconds s, inputs:" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
