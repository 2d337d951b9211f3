/*
 * main.c - a small payments API that charges as often as it is asked to.
 *
 * Latchkey is in front of it in the demo and in the benchmarks:
 * quick, durable, and deliberately not idempotent.
 */
#include "payments.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

struct options options = {.listen = "127.0.0.1:8081", .ledger = "ledger.jsonl"};

static const char USAGE[] =
    "usage: payments [options]\n"
    "\n"
    "  --listen ADDRESS   HOST:PORT or unix:PATH (127.0.0.1:8081)\n"
    "  --ledger FILE      where charges are kept (ledger.jsonl)\n"
    "  --no-ledger        charges are counted, not kept: for benchmarks\n"
    "  --delay MS         charges at once, responds that much later\n"
    "  --fail N           every Nth request: 503, nothing is charged\n"
    "  --drop N           every Nth charge: charged, but without a response\n"
    "  --pad BYTES        makes the response to a charge that much larger\n"
    "\n"
    "  POST /charges      {\"amount\":4200,\"currency\":\"eur\","
    "\"customer\":\"cus_1\"}\n"
    "                     ?delay=MS, ?fail=STATUS, ?drop=1 for this one\n"
    "  GET  /charges      all of them; /charges/ID: one\n"
    "  GET  /ledger       how many, of how many customers, and the totals\n";

static void read_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"listen", required_argument, NULL, 'l'},
        {"ledger", required_argument, NULL, 'f'},
        {"no-ledger", no_argument, NULL, 'n'},
        {"delay", required_argument, NULL, 'd'},
        {"fail", required_argument, NULL, 'e'},
        {"drop", required_argument, NULL, 'x'},
        {"pad", required_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {0}};

    for (int option, at;
         (option = getopt_long(argc, argv, "", names, &at)) != -1;) {
        switch (option) {
        case 'l':
            options.listen = optarg;
            break;
        case 'f':
            options.ledger = optarg;
            break;
        case 'n':
            options.ledger = NULL;
            break;
        case 'd':
            options.delay_ms = option_number(names[at].name, optarg);
            break;
        case 'e':
            options.fail = option_number(names[at].name, optarg);
            break;
        case 'x':
            options.drop = option_number(names[at].name, optarg);
            break;
        case 'p':
            options.pad = option_number(names[at].name, optarg);
            break;
        case 'h':
            fputs(USAGE, stdout);
            exit(0);
        default:
            fputs(USAGE, stderr);
            exit(2);
        }
    }
    if (optind < argc) {
        die("unexpected: %s", argv[optind]);
    }
}

int main(int argc, char **argv)
{
    struct rlimit files;

    read_options(argc, argv);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (options.ledger) {
        ledger_open(options.ledger);
    }
    server_run(options.listen);
}
