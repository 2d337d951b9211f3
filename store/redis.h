/*
 * redis.h - the Redis store's own types: links (connections), places (who is
 * the primary now), and the store itself.
 *
 * Everything is decided by the functions of store/lua/latchkey.lua. Each lane
 * has a link of its own, used by the lane's thread alone; the reader has one,
 * and long work opens another. When a link fails, the place is *down*:
 * callers are refused at once, while the scout, a thread of its own, looks for
 * the primary. Lock order: reader, then place, then numbers.
 */
#ifndef LK_REDIS_H
#define LK_REDIS_H

#include "lib/resp.h"
#include "store/store.h"

#include <pthread.h>

/* ---- redis_link.c: one connection -----------------------------------------
 */

struct lk_link {
    int fd; /* -1: not connected */
    struct lk_resp_reader reader;
    struct lk_buf out; /* commands, of which `sent` bytes are gone */
    size_t sent;
    uint64_t epoch;   /* of the place, when it was made */
    int64_t heard_ms; /* when the last reply came */
    char version[24]; /* of the server */
    char why[256];    /* it failed; no secret is in it */
};

/* Connects to "HOST:PORT" or "unix:PATH". The link may be closed and opened
 * again; start it as {.fd = -1}. */
LK_MUST_CHECK enum lk_status lk_link_open(struct lk_link *link,
                                          const char *address,
                                          int64_t deadline);
void lk_link_close(struct lk_link *link);
/* Has Redis closed the connection while no reply was owed? A link that has just
 * received a reply is not looked at. */
bool lk_link_is_stale(const struct lk_link *link);

/* No reply is owed: the output starts again. */
void lk_link_reset(struct lk_link *link);
/* A command is a header with the number of its words, then the words. */
LK_MUST_CHECK enum lk_status lk_link_begin(struct lk_link *link, size_t words);
LK_MUST_CHECK enum lk_status lk_link_word(struct lk_link *link,
                                          struct lk_slice word);
LK_MUST_CHECK enum lk_status lk_link_number(struct lk_link *link,
                                            uint64_t number);
LK_MUST_CHECK enum lk_status lk_link_command(struct lk_link *link,
                                             const struct lk_slice *words,
                                             size_t count);
/*
 * Sends what is queued, as far as Redis takes it, and waits for the next reply,
 * which is valid until the next call with this link. LK_TIMEOUT, LK_CLOSED,
 * LK_IO, LK_MALFORMED, LK_TOO_LARGE, LK_NOMEM: the link is closed, `why` says
 * so, and `sent` is still what had been sent.
 */
LK_MUST_CHECK enum lk_status lk_link_next(struct lk_link *link,
                                          int64_t deadline,
                                          const struct lk_reply **reply);
/* The same; the reply is the caller's, who frees it with free. */
LK_MUST_CHECK enum lk_status lk_link_reply(struct lk_link *link,
                                           int64_t deadline,
                                           struct lk_reply **reply);
/* Queue, send, receive. */
LK_MUST_CHECK enum lk_status lk_link_ask(struct lk_link *link, int64_t deadline,
                                         const struct lk_slice *words,
                                         size_t count, struct lk_reply **reply);

bool lk_reply_is_error(const struct lk_reply *reply, const char *code);
struct lk_slice lk_reply_text(const struct lk_reply *reply);
/* An integer, or a string of digits; 0 for anything else. */
uint64_t lk_reply_number(const struct lk_reply *reply);

/* ---- redis_link.c: what a URL says ------------------------------------------
 */

enum { LK_REDIS_NODES = 16 };

struct lk_redis_url {
    char *text; /* holds everything below; wiped when freed */
    char *user; /* NULL: none */
    char *password;
    char *nodes[LK_REDIS_NODES];
    size_t count;
    char *service; /* of Sentinels; NULL: the nodes are servers */
    unsigned database;
};

/* LK_INVALID: `error` gets a sentence, without any secret. */
LK_MUST_CHECK enum lk_status lk_redis_url_parse(const char *text,
                                                struct lk_redis_url *url,
                                                struct lk_buf *error);
void lk_redis_url_free(struct lk_redis_url *url);

/* ---- redis_link.c: finding the primary ----------------------------------
 */

/* A link to a primary, with its user and its database. LK_DENIED: it does not
 * let us in. LK_AGAIN: it is there, but not fit to write to now. */
LK_MUST_CHECK enum lk_status lk_redis_greet(struct lk_link *link,
                                            const struct lk_redis_url *url,
                                            const char *address,
                                            int64_t deadline);
/*
 * Asks the Sentinels, or tries the nodes, and opens the link to the primary.
 * `token_key` (may be NULL) decides between two that both say they are: the one
 * that has handed out more. `address` gets its address.
 */
enum { LK_REDIS_ADDRESS = 300 };
LK_MUST_CHECK enum lk_status lk_redis_find(struct lk_link *link,
                                           const struct lk_redis_url *url,
                                           const char *token_key,
                                           uint64_t timeout_ms,
                                           char address[LK_REDIS_ADDRESS]);

/* ---- The store -------------------------------------------------------------
 */

enum lk_redis_key {
    LK_REDIS_INDEX,
    LK_REDIS_DUE,
    LK_REDIS_TOKEN,
    LK_REDIS_KEEPER,
    LK_REDIS_AUDIT,
    LK_REDIS_META,
    LK_REDIS_CHECK,
    LK_REDIS_MARK,
    LK_REDIS_KEYS,
};

/* How the functions are called. */
enum lk_redis_way { LK_WAY_FUNCTION, LK_WAY_SCRIPT };

enum { LK_SHA1_TEXT = 40 };

/* What the server's settings are, as far as it lets us see. */
struct lk_redis_settings {
    bool policy_known;
    bool evicts;
    bool aof_known;
    bool aof;
    bool fsync_known;
    char fsync[16]; /* always, everysec, no */
    bool saves_known;
    bool saves; /* snapshots */
    char policy[32];
};

/* Who is the primary, and whether it answers. */
struct lk_redis_place {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool up;
    bool stopping;
    uint64_t epoch; /* rises whenever a primary is found */
    int anchor;     /* of that epoch's first connection: while it is open, the
                       server     has not been restarted. -1: none */
    uint64_t tries; /* of the scout, without success */
    char address[LK_REDIS_ADDRESS];
    char failure[LK_FAILURE_SIZE];
    atomic_int way; /* enum lk_redis_way */
};

/* An op of a batch in progress. */
struct lk_redis_pending {
    struct lk_op *op;
    size_t end;     /* of its call in the link's output */
    size_t group;   /* ops in the call, in the first of them */
    bool sent;      /* it may have happened; that is not known */
    bool written;   /* by its call */
    bool uncertain; /* it rests on a write that WAIT has to confirm */
    bool settled;
};

struct lk_redis_lane {
    struct lk_link link;
    struct lk_redis_pending *pending;
    size_t room;
    struct lk_buf scratch; /* an operation's key, an encoded response */
    bool wrote;            /* by this batch */
    bool full; /* Redis lacks memory: the rest of the batch begins nothing */
};

struct lk_redis {
    struct lk_store store;
    struct lk_store_config config;
    struct lk_redis_url url;
    struct lk_redis_settings settings;
    struct lk_buf names; /* holds the keys */
    struct lk_slice keys[LK_REDIS_KEYS];
    struct lk_slice prefix; /* "{latchkey}:" */
    char holder[33];        /* our name as a keeper */
    char sha1[LK_SHA1_TEXT + 1];
    uint64_t revision;

    struct lk_redis_place place;
    pthread_t scout;
    bool scouting;
    atomic_uint warned; /* of which settings, see redis_place.c */
    atomic_bool full;   /* Redis was out of memory, last time */

    struct lk_redis_lane *lanes;
    pthread_mutex_t reader_lock;
    struct lk_link reader;
    atomic_bool stopping; /* long work ends early */

    pthread_mutex_t numbers_lock; /* guards all below */
    struct lk_store_stats numbers;
    uint64_t seen_ms; /* the server's clock, */
    int64_t seen_us;  /* when ours, the monotonic one, said this */
};

void lk_redis_log(struct lk_redis *store, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* redis_place.c: up, down, and the scout */
LK_MUST_CHECK enum lk_status lk_redis_place_start(struct lk_redis *store);
void lk_redis_place_stop(struct lk_redis *store);
/* A link of ours is fit for use, or LK_UNAVAILABLE at once. */
LK_MUST_CHECK enum lk_status lk_redis_ready(struct lk_redis *store,
                                            struct lk_link *link,
                                            int64_t deadline);
/* The link failed, or the server said that it is not to be written to. */
void lk_redis_lost(struct lk_redis *store, struct lk_link *link,
                   const char *why);
/* Waits until the scout has found a primary. `patient`: also after it has
 * tried without success. */
LK_MUST_CHECK enum lk_status lk_redis_await(struct lk_redis *store,
                                            int64_t deadline, bool patient);

/* redis_library.c: the functions in the server */

/* Begins a call of a function ("latchkey_claim"); `args` more words follow. */
LK_MUST_CHECK enum lk_status lk_redis_begin(const struct lk_redis *store,
                                            struct lk_link *link,
                                            const char *function,
                                            const struct lk_slice *keys,
                                            size_t key_count, size_t args);
/*
 * Calls `function` on a link that is fit for use: `keys` first, `count` words
 * in all. An error reply is a reply.
 */
LK_MUST_CHECK enum lk_status lk_redis_call(
    struct lk_redis *store, struct lk_link *link, int64_t deadline,
    const char *function, size_t keys, const struct lk_slice *words,
    size_t count, struct lk_reply **reply);
/*
 * Makes sure that the functions are there, in one way or the other, and reads
 * secrets and counts. LK_DENIED, LK_VERSION or LK_INVALID: `error` says what to
 * do. `first`: of this process; later, secrets may not change.
 */
LK_MUST_CHECK enum lk_status lk_redis_hello(struct lk_redis *store,
                                            struct lk_link *link,
                                            int64_t deadline, bool first,
                                            struct lk_buf *error);
/*
 * Loads the functions into the server that the URL names, as a user who may;
 * `report` gets a line. The daemon's own user need not be allowed to.
 */
LK_MUST_CHECK enum lk_status lk_redis_migrate(const char *url,
                                              struct lk_buf *report);
/* The text of the library, for --print. */
struct lk_slice lk_redis_library(void);

/* redis_place.c: what settings promise */
LK_MUST_CHECK enum lk_status lk_redis_check(struct lk_redis *store,
                                            struct lk_link *link,
                                            int64_t deadline,
                                            struct lk_buf *error);
void lk_redis_promise(struct lk_store *store, char text[LK_PROMISE_SIZE]);
enum lk_status lk_redis_describe(struct lk_store *store, struct lk_buf *text,
                                 bool *strict);

/* redis_batch.c */
void lk_redis_apply(struct lk_store *store, struct lk_batch *batch);
enum lk_status lk_redis_note(struct lk_store *store,
                             const struct lk_audit_entry *entry);
/* An error reply as a status and a constant sentence. LK_AGAIN: look for the
 * primary and send it again; nothing has happened. */
enum lk_status lk_redis_refusal(const struct lk_reply *reply,
                                const char **sentence);

/* redis_read.c: an operation's bytes and its key */
struct lk_redis_head {
    unsigned state, flags;
    uint64_t attempt, token, number, generation, claimed, deadline, ttl, keep,
        at;
    struct lk_slice fingerprint, owner, reason;
    struct lk_slice response; /* encoded; empty: none, or not given */
};

enum {
    LK_REDIS_HEAD = 76,
    LK_REDIS_OMITTED = 1,
    LK_REDIS_EVICTED = 2,
};

/* Appends the key of the operation of that name. */
LK_MUST_CHECK enum lk_status lk_redis_name(const struct lk_redis *store,
                                           struct lk_name name,
                                           struct lk_buf *key);
/* The name in a key; the slices point into it. False: it is not the key of an
 * operation. */
bool lk_redis_name_read(const struct lk_redis *store, struct lk_slice key,
                        struct lk_name *name);
/* `bytes` may be only the head: then the slices are empty. LK_CORRUPT. */
LK_MUST_CHECK enum lk_status lk_redis_head_read(struct lk_slice bytes,
                                                struct lk_redis_head *head);
LK_MUST_CHECK enum lk_status lk_redis_head_write(
    const struct lk_redis_head *head, struct lk_buf *bytes);
/* What a retry gets. LK_CORRUPT, LK_NOMEM. */
LK_MUST_CHECK enum lk_status lk_redis_stored(const struct lk_redis_head *head,
                                             struct lk_stored **stored);
uint64_t lk_redis_get64(const char *bytes);
/* An audit entry without time and token. */
LK_MUST_CHECK enum lk_status lk_redis_audit_write(
    const struct lk_audit_entry *entry, struct lk_buf *bytes);
LK_MUST_CHECK enum lk_status lk_redis_audit_read(struct lk_slice bytes,
                                                 struct lk_audit_entry *entry);

/* redis_read.c */
enum lk_status lk_redis_load(struct lk_store *store, struct lk_op *op);
enum lk_status lk_redis_lookup(struct lk_store *store, struct lk_name name,
                               struct lk_operation *operation);
enum lk_status lk_redis_find_number(struct lk_store *store,
                                    struct lk_slice tenant, uint64_t number,
                                    struct lk_operation *operation);
enum lk_status lk_redis_list(struct lk_store *store,
                             const struct lk_list_query *query,
                             lk_operation_fn row, void *context,
                             uint64_t *next);
enum lk_status lk_redis_audit(struct lk_store *store,
                              const struct lk_audit_query *query,
                              lk_audit_fn row, void *context);
enum lk_status lk_redis_verify(struct lk_store *store, lk_progress_fn progress,
                               void *context, struct lk_buf *report);
/* Calls a function over the reader's link, on another one after a failure.
 * *reply is the caller's. An error reply becomes a status. */
LK_MUST_CHECK enum lk_status lk_redis_read(struct lk_redis *store,
                                           const char *function, size_t keys,
                                           const struct lk_slice *words,
                                           size_t count,
                                           struct lk_reply **reply);

/* redis_import.c */
enum lk_status lk_redis_import(struct lk_store *store,
                               const struct lk_operation *operations,
                               size_t count, struct lk_import *result);
enum lk_status lk_redis_import_audit(struct lk_store *store,
                                     const struct lk_audit_entry *entries,
                                     size_t count);
enum lk_status lk_redis_adopt(struct lk_store *store,
                              const uint8_t reference_secret[LK_REFERENCE_KEY]);

/* redis.c: numbers for INFO */
/* Counts as hello() and tend() return them: five states, operations, token. */
void lk_redis_count(struct lk_redis *store, const struct lk_reply *counts);
void lk_redis_heard(struct lk_redis *store, uint64_t now_ms);

#endif
