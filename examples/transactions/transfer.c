/* transfer.c - a money transfer that is made once, with libpq.
 *
 *     cc -o transfer transfer.c $(pkg-config --cflags --libs libpq)
 *     ./transfer CONNINFO KEY FROM TO AMOUNT
 *
 * Claim, account rows, ledger line, a job for later and the stored response are
 * one transaction: all of it or nothing, wherever it is interrupted. A client
 * that does not know the outcome of a transfer runs the same again.
 *
 * Prints the status and the response; exit status 0: made, now or before; 1:
 * not made; 2: wrong command line.
 */
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME     "'bank', 'transfer', $1"
#define TYPE     "E'Content-Type: application/json\\r\\n'"
#define PATIENCE 30 /* seconds */

enum result { DONE, AGAIN, REFUSED };

struct order {
    const char *key;
    const char *source;
    const char *target;
    const char *amount;
};

struct response {
    char status[8];
    char body[512]; /* of this example; a real one has no such limit */
    bool replayed;
};

/* ---- one statement ---- */

/*
 * Runs a statement; the result must have the status `want`. NULL: it failed,
 * and *result says whether to run the whole transaction again.
 */
static PGresult *ask(PGconn *db, ExecStatusType want, enum result *result,
                     const char *text, int count, const char *const *values)
{
    PGresult *rows = PQexecParams(db, text, count, NULL, values, NULL, NULL, 0);
    if (PQresultStatus(rows) == want) {
        return rows;
    }
    const char *code = PQresultErrorField(rows, PG_DIAG_SQLSTATE);
    /* Another transaction was in the way, or the connection is gone. */
    bool again = PQstatus(db) != CONNECTION_OK ||
                 (code != NULL &&
                  (strcmp(code, "40001") == 0 || strcmp(code, "40P01") == 0 ||
                   strcmp(code, "55P03") == 0));
    if (!again) {
        fprintf(stderr, "transfer: %s", PQerrorMessage(db));
    }
    *result = again ? AGAIN : REFUSED;
    PQclear(rows);
    return NULL;
}

static bool run(PGconn *db, ExecStatusType want, enum result *result,
                const char *text, int count, const char *const *values)
{
    PGresult *rows = ask(db, want, result, text, count, values);
    PQclear(rows);
    return rows != NULL;
}

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

/* ---- the transaction ---- */

/* The business itself. No money, or no account: nothing was changed. */
static bool move(PGconn *db, const struct order *order, enum result *result,
                 struct response *response)
{
    const char *pair[] = {order->source, order->target};
    const char *from[] = {order->source, order->amount};
    const char *to[] = {order->target, order->amount};
    const char *line[] = {order->key, order->source, order->target,
                          order->amount};
    bool moved = false;

    /* In order of their names, so that two transfers do not lock crosswise. */
    if (!run(db, PGRES_TUPLES_OK, result,
             "SELECT FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE",
             2, pair)) {
        return false;
    }
    PGresult *rows = ask(db, PGRES_TUPLES_OK, result,
                         "UPDATE account SET balance = balance - $2::bigint"
                         " WHERE id = $1 AND balance >= $2::bigint RETURNING 1",
                         2, from);
    if (rows == NULL) {
        return false;
    }
    moved = PQntuples(rows) == 1;
    PQclear(rows);
    if (!moved) {
        copy(response->status, sizeof response->status, "402");
        copy(response->body, sizeof response->body,
             "{\"error\": \"not enough money\"}");
        return true;
    }
    if (!run(db, PGRES_COMMAND_OK, result,
             "UPDATE account SET balance = balance + $2::bigint WHERE id = $1",
             2, to)) {
        return false;
    }
    rows = ask(db, PGRES_TUPLES_OK, result,
               "INSERT INTO ledger (key, source, target, amount)"
               " VALUES ($1, $2, $3, $4) RETURNING json_build_object("
               "'transfer', id, 'from', source, 'to', target,"
               " 'amount', amount)",
               4, line);
    if (rows == NULL) {
        return false;
    }
    copy(response->status, sizeof response->status, "201");
    copy(response->body, sizeof response->body, PQgetvalue(rows, 0, 0));
    PQclear(rows);
    return true;
}

/* The claim was NEW: move the money, leave a job, store the response. */
static bool finish(PGconn *db, const struct order *order, const char *token,
                   enum result *result, struct response *response)
{
    if (!move(db, order, result, response)) {
        return false;
    }
    const char *values[] = {order->key, token, response->body,
                            response->status};
    /* Delivered later, by the courier, once this has been committed. */
    if (strcmp(response->status, "201") == 0 &&
        !run(db, PGRES_TUPLES_OK, result,
             "SELECT latchkey.enqueue(" NAME ", $2, 'receipt', 'mail',"
             " '/receipts', 'POST', " TYPE ", convert_to($3, 'UTF8'))",
             3, values)) {
        return false;
    }
    return run(db, PGRES_TUPLES_OK, result,
               "SELECT latchkey.complete(" NAME ", $2, $4, " TYPE
               ", convert_to($3, 'UTF8'))",
               4, values);
}

/* What to do on each verdict; false: roll back, *result says what then. */
static bool decide(PGconn *db, const struct order *order, enum result *result,
                   struct response *response)
{
    const char *values[] = {order->key, order->source, order->target,
                            order->amount};
    /* The fingerprint says what the request means. */
    PGresult *claim =
        ask(db, PGRES_TUPLES_OK, result,
            "SELECT verdict, token, status, convert_from(body, 'UTF8')"
            " FROM latchkey.claim(" NAME ", 'transfer:' || encode(sha256("
            "convert_to(concat_ws(' ', $2::text, $3::text, $4::text), 'UTF8')),"
            " 'hex'))",
            4, values);
    if (claim == NULL) {
        return false;
    }
    const char *verdict = PQgetvalue(claim, 0, 0);
    bool done = false;
    if (strcmp(verdict, "NEW") == 0) {
        done = finish(db, order, PQgetvalue(claim, 0, 1), result, response);
    } else if (strcmp(verdict, "REPLAY") == 0) {
        copy(response->status, sizeof response->status,
             PQgetvalue(claim, 0, 2));
        copy(response->body, sizeof response->body, PQgetvalue(claim, 0, 3));
        response->replayed = done = true;
    } else if (strcmp(verdict, "INFLIGHT") == 0) {
        *result = AGAIN;
    } else {
        /* MISMATCH: the key was used for another transfer. */
        fprintf(stderr, "transfer: %s\n", verdict);
        *result = REFUSED;
    }
    PQclear(claim);
    return done;
}

/* A connection lost at COMMIT is AGAIN: the next claim finds out. */
static enum result transfer(PGconn *db, const struct order *order,
                            struct response *response)
{
    enum result result = DONE;
    if (!run(db, PGRES_COMMAND_OK, &result, "BEGIN", 0, NULL)) {
        return result;
    }
    if (decide(db, order, &result, response)) {
        run(db, PGRES_COMMAND_OK, &result, "COMMIT", 0, NULL);
    } else {
        PQclear(PQexec(db, "ROLLBACK"));
    }
    return result;
}

/* ---- until there is a response ---- */

static enum result keep_trying(const char *conninfo, const struct order *order,
                               struct response *response)
{
    enum result result = AGAIN;
    useconds_t pause = 10000;
    time_t deadline = time(NULL) + PATIENCE;
    PGconn *db = PQconnectdb(conninfo);
    srand((unsigned)getpid());
    for (;;) {
        if (PQstatus(db) == CONNECTION_OK) {
            result = transfer(db, order, response);
        }
        if (result != AGAIN || time(NULL) > deadline) {
            break;
        }
        usleep((useconds_t)rand() % pause);
        pause = pause < 500000 ? pause * 2 : pause;
        if (PQstatus(db) != CONNECTION_OK) {
            PQreset(db);
        }
    }
    if (result == AGAIN) {
        fprintf(stderr, "transfer: not made: %s\n",
                PQstatus(db) == CONNECTION_OK ? "another client is running it"
                                              : PQerrorMessage(db));
    }
    PQfinish(db);
    return result;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: transfer CONNINFO KEY FROM TO AMOUNT\n");
        return 2;
    }
    struct order order = {argv[2], argv[3], argv[4], argv[5]};
    struct response response = {0};
    if (keep_trying(argv[1], &order, &response) != DONE) {
        return 1;
    }
    printf("%s %s %s\n", response.status,
           response.replayed ? "(stored)" : "(new)", response.body);
    return 0;
}
