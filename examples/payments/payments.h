/* payments.h - what the payments API and its provider share. */
#ifndef PAYMENTS_H
#define PAYMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed text; not terminated. */
struct text {
    const char *data;
    size_t len;
};

/* Bytes that grow. */
struct buf {
    char *data;
    size_t len;
    size_t cap;
};

struct options {
    const char *listen; /* HOST:PORT or unix:PATH */
    const char *ledger; /* the file; NULL: charges are counted, not kept */
    unsigned delay_ms;  /* delay of the response to each charge */
    unsigned fail;      /* every Nth request: 503, nothing charged */
    unsigned drop;      /* every Nth charge: charged, no response */
    unsigned pad;       /* filler bytes in the response to a charge */
};

extern struct options options;

/* ---- text.c ---- */

/* Prints the program's name and the message, and exits with status 1. */
void die(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));

struct text text_of(const char *string);
bool text_is(struct text text, const char *string);
bool text_is_nocase(struct text text, const char *string);
/* False if it is not a whole number of up to 15 digits, all of it. */
bool text_number(struct text text, uint64_t *number);
/* The number that the option `name` was given; dies if it is not a number. */
unsigned option_number(const char *name, const char *argument);

/* Room for `more` further bytes; dies without memory. */
void buf_reserve(struct buf *buf, size_t more);
void buf_add(struct buf *buf, const void *data, size_t len);
void buf_printf(struct buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* As a JSON string, with its quotes. */
void buf_add_string(struct buf *buf, struct text text);
/* Takes the first `len` bytes out. */
void buf_skip(struct buf *buf, size_t len);

/*
 * A member of a JSON object that is not nested in another: a string without
 * its quotes (escapes stay as they are), or any other value as written.
 * Returns false if there is none, or if the text before it is not JSON; `value`
 * is then anything.
 */
bool json_member(struct text object, const char *name, bool *is_string,
                 struct text *value);

/* ---- address.c: HOST:PORT, HOST a number or localhost, or unix:PATH ---- */

/*
 * A listening socket that does not block. What to tell clients goes to
 * `shown`: with port 0 the system chooses one. Dies if it cannot be had.
 */
int address_listen(const char *address, char *shown, size_t size);

/* A connected socket, or -1. Dies if the address makes no sense. */
int address_connect(const char *address);

/* ---- http.c ---- */

struct request {
    struct text method;
    struct text path;
    struct text query;
    struct text key;           /* Idempotency-Key, as sent */
    struct text authorization; /* the same */
    struct text body;
    bool keep_alive;
    bool wants_continue; /* Expect: 100-continue, and no body yet */
    size_t size;         /* what it took of the input */
};

enum progress { READY, PARTIAL, BAD };

/*
 * Reads one request from the start of `in`. A chunked body is put together in
 * place, so call it again only for the next request once it said READY. The
 * request points into `in`.
 */
enum progress http_read(struct buf *in, struct request *request);

/* The value of `name` in the query string, as sent; false: it is not there. */
bool http_query(struct text query, const char *name, struct text *value);
/* The same; false also if it is not a number. */
bool http_query_number(struct text query, const char *name, uint64_t *number);

struct response {
    int status;
    const char *type;  /* of the body; NULL: JSON */
    char headers[512]; /* further ones, each with its CR LF */
    struct text body;  /* valid until the next request */
    bool bare;         /* the body is sent alone, without a head */
    uint64_t delay_ms; /* to be sent that much later */
    unsigned pace_ms;  /* a byte at a time, with that much between two */
    bool hang;         /* as a delay that only server_release ends */
    bool drop;         /* never to be sent: the connection closes */
    bool die;          /* kill -9 of this program once the ledger is synced */
};

void http_write(struct buf *out, const struct response *response,
                bool keep_alive);

/* ---- ledger.c ---- */

struct charge {
    uint64_t amount; /* in cents */
    struct text currency;
    struct text customer;
    struct text key; /* noted, never looked at: this API is not idempotent */
};

/*
 * Reads what is there; a last line that was cut short is removed. NULL: charges
 * are kept in memory only.
 */
void ledger_open(const char *path);

/*
 * Makes a charge and returns it as JSON, valid until the next one. It is
 * durable after ledger_sync, and must not get a response before.
 */
struct text ledger_charge(const struct charge *charge, uint64_t *number);

/* One sync for all the charges since the last. */
void ledger_sync(void);

uint64_t ledger_count(void);
bool ledger_find(uint64_t number, struct text *line);
/* All charges, oldest first, as a JSON array. */
void ledger_list(struct buf *out);
/* How many charges and customers, and the totals, as a JSON object. */
void ledger_sum(struct buf *out);
bool ledger_takes(struct text currency);

/* ---- charge.c ---- */

/* What a request asks for; NULL, or what is wrong with it. */
const char *charge_read(const struct request *request, struct charge *charge);

/* ---- api.c, or provider_api.c ---- */

/* `response` is all zeros at the call. */
void api_respond(const struct request *request, struct response *response);

/* ---- server.c ---- */

/* Prints the address once it listens. Serves until the process is ended. */
void server_run(const char *address) __attribute__((noreturn));
/* Responses that are delayed or hang, now and at most so far. */
void server_load(unsigned *now, unsigned *most);
/* Lets all of them go. */
void server_release(void);

#endif
