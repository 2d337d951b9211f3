/*
 * provider.c - a payment provider: a service that takes money, far away, and
 * not always in the mood to say so.
 *
 * Its ledger is durable and its own. It honours Idempotency-Key or does not,
 * and it can fail, hang, send no response after it has acted, or die, as its
 * callers or the one who tests them ask for.
 */
#include "provider.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct provider provider = {.honours = true};

static const char USAGE[] =
    "usage: provider [options]\n"
    "\n"
    "  --listen ADDRESS      HOST:PORT or unix:PATH (127.0.0.1:8082)\n"
    "  --ledger FILE|none    where charges are kept (provider.jsonl)\n"
    "  --honour-keys yes|no  the same Idempotency-Key is the same charge "
    "(yes)\n"
    "  --token TEXT          callers must show Authorization: Bearer TEXT\n"
    "  --calls FILE          a line of JSON there for each call\n"
    "  --manner JSON         how it misbehaves, from the start\n"
    "  --seed N              of what happens by chance (1)\n"
    "  --pad BYTES           makes the response to a charge that much larger\n"
    "\n"
    "  POST /v1/charges      {\"amount\":4200,\"currency\":\"eur\","
    "\"customer\":\"cus_1\"}\n"
    "                        with \"manner\":{...}: for this one\n"
    "  GET  /v1/charges      all; ?idempotency_key=K: of that key\n"
    "  GET  /v1/charges/ID   one; /v1/keys/K: the one of that key\n"
    "  GET  /v1/charges.csv  all, for a comparison; /v1/charges.jsonl\n"
    "  POST /control         {manner} from now on; {\"release\":1}: what hangs "
    "goes on\n"
    "  GET  /control         how many calls, charges, in flight\n"
    "  GET  /control/calls   for each key how many calls and charges\n"
    "\n"
    "manner: \"drop\", \"hang\", \"die\": \"before\" or \"after\" it has "
    "acted;\n"
    "  \"fail\":STATUS, \"retry_after\":TEXT, \"redirect\":URL, \"delay\":MS,\n"
    "  \"pace\":MS (byte by byte), \"giant\":BYTES, \"garbage\":1, \"cut\":1\n"
    "  only for: \"times\":N calls of a key, the \"next\":N calls,\n"
    "  \"chance\":N of a hundred; of a hundred calls also\n"
    "  \"drop_before\":N, \"drop_after\":N, \"fail_503\":N, \"delay_20\":N\n";

static bool yes_or_no(const char *argument)
{
    if (strcmp(argument, "yes") != 0 && strcmp(argument, "no") != 0) {
        die("--honour-keys takes yes or no, not %s", argument);
    }
    return strcmp(argument, "yes") == 0;
}

static void set_manner(const char *argument)
{
    const char *wrong = manner_set(text_of(argument));

    if (wrong) {
        die("--manner: %s", wrong);
    }
}

struct places {
    const char *listen;
    const char *ledger;
};

static void set_option(int option, const char *name, struct places *places)
{
    switch (option) {
    case 'l':
        places->listen = optarg;
        break;
    case 'f':
        places->ledger = strcmp(optarg, "none") == 0 ? NULL : optarg;
        break;
    case 'k':
        provider.honours = yes_or_no(optarg);
        break;
    case 't':
        provider.token = optarg;
        break;
    case 'c':
        calls_open(optarg);
        break;
    case 'm':
        set_manner(optarg);
        break;
    case 's':
        manner_seed(option_number(name, optarg));
        break;
    case 'p':
        provider.pad = option_number(name, optarg);
        break;
    case 'h':
        fputs(USAGE, stdout);
        exit(0);
    default:
        fputs(USAGE, stderr);
        exit(2);
    }
}

static void read_options(int argc, char **argv, struct places *places)
{
    static const struct option names[] = {
        {"listen", required_argument, NULL, 'l'},
        {"ledger", required_argument, NULL, 'f'},
        {"honour-keys", required_argument, NULL, 'k'},
        {"token", required_argument, NULL, 't'},
        {"calls", required_argument, NULL, 'c'},
        {"manner", required_argument, NULL, 'm'},
        {"seed", required_argument, NULL, 's'},
        {"pad", required_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {0}};

    for (int option, at = 0;
         (option = getopt_long(argc, argv, "", names, &at)) != -1;) {
        set_option(option, names[at].name, places);
    }
    if (optind < argc) {
        die("unexpected: %s", argv[optind]);
    }
}

int main(int argc, char **argv)
{
    struct places places = {"127.0.0.1:8082", "provider.jsonl"};
    struct rlimit files;

    read_options(argc, argv, &places);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    ledger_open(places.ledger);
    keys_open();
    server_run(places.listen);
}
