/*
 * latchkey.h - the one public header of liblatchkey.
 *
 * The library is pure: no I/O, no clock, no global state, no output; the
 * client at the end of this file is the one exception and says so. Every
 * function may be called from any thread as long as two threads do not share
 * the same object. Names that begin with latchkey_ are functions, lk_ are
 * types; both keep their meaning within one major version.
 *
 * Words (tenant, scope, key, fingerprint, claim, owner, token, lock, TTL,
 * reference) are those of docs/concepts.md.
 */
#ifndef LATCHKEY_H
#define LATCHKEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LATCHKEY_VERSION        "0.1.0"
#define LATCHKEY_VERSION_NUMBER 0x000100

#define LK_MUST_CHECK __attribute__((warn_unused_result))

/* ---- Status: did the call work? -------------------------------------- */

/*
 * Every function that can fail returns one of these and is marked
 * must-check. What a claim *decided* is never a status: it is a verdict.
 */
#define LK_STATUS_MAP(X)                                                       \
    X(OK, "ok")                                                                \
    X(NOMEM, "out of memory")                                                  \
    X(INVALID, "invalid argument")                                             \
    X(TOO_LARGE, "larger than the limit")                                      \
    X(MALFORMED, "malformed input")                                            \
    X(VERSION, "written by a version that is not understood")                  \
    X(NOT_FOUND, "not found")                                                  \
    X(AGAIN, "not now, try again")                                             \
    X(TIMEOUT, "timed out")                                                    \
    X(CLOSED, "connection closed")                                             \
    X(IO, "input or output failed")                                            \
    X(FULL, "no space left")                                                   \
    X(BUSY, "owned by another process")                                        \
    X(CORRUPT, "stored data is damaged")                                       \
    X(UNAVAILABLE, "the store cannot decide now")                              \
    X(UNKNOWN, "the outcome of the commit is unknown")                         \
    X(DENIED, "not allowed")                                                   \
    X(REPLY, "the daemon answered with an error")

enum lk_status {
#define X(name, text) LK_##name,
    LK_STATUS_MAP(X)
#undef X
};

/* The name ("TIMEOUT") and a sentence fragment for people; never NULL. */
const char *latchkey_status_name(enum lk_status status);
const char *latchkey_status_text(enum lk_status status);

/* ---- Bytes ------------------------------------------------------------ */

/* A view of bytes that the caller or a buffer owns. Not NUL-terminated. */
struct lk_slice {
    const char *data;
    size_t len;
};

#define LK_SLICE(literal) ((struct lk_slice){(literal), sizeof(literal) - 1})

struct lk_slice latchkey_slice(const char *text); /* NULL gives length 0 */
bool latchkey_slice_equal(struct lk_slice a, struct lk_slice b);

/*
 * A buffer that grows. Start it as {0}; free it with latchkey_buf_free, which
 * leaves it ready for use again. A failed append changes nothing.
 */
struct lk_buf {
    char *data;
    size_t len;
    size_t cap;
};

/* Makes room for `more` bytes behind those that are there. LK_NOMEM. */
LK_MUST_CHECK enum lk_status latchkey_buf_reserve(struct lk_buf *buf,
                                                  size_t more);
/* The others append; LK_NOMEM. `data` may be NULL if `len` is 0. */
LK_MUST_CHECK enum lk_status latchkey_buf_add(struct lk_buf *buf,
                                              const void *data, size_t len);
LK_MUST_CHECK enum lk_status latchkey_buf_add_slice(struct lk_buf *buf,
                                                    struct lk_slice slice);
LK_MUST_CHECK enum lk_status latchkey_buf_add_text(struct lk_buf *buf,
                                                   const char *text);
LK_MUST_CHECK enum lk_status latchkey_buf_printf(struct lk_buf *buf,
                                                 const char *format, ...)
    __attribute__((format(printf, 2, 3)));
struct lk_slice latchkey_buf_slice(const struct lk_buf *buf);
void latchkey_buf_free(struct lk_buf *buf);

/* ---- Verdicts: what was decided --------------------------------------- */

/* The second column is the word on the wire. */
#define LK_VERDICT_MAP(X)                                                      \
    X(NEW, "NEW")             /* claim: yours, run it */                       \
    X(REPLAY, "REPLAY")       /* claim: finished, here is the response */      \
    X(OMITTED, "OMITTED")     /* claim: finished, no response was stored */    \
    X(INFLIGHT, "INFLIGHT")   /* claim: another holder is running it */        \
    X(ACCEPTED, "ACCEPTED")   /* claim: queued, will run later */              \
    X(UNCERTAIN, "UNCERTAIN") /* claim: it may or may not have happened */     \
    X(MISMATCH, "MISMATCH")   /* claim: the key was used for something else */ \
    X(LIMITED, "LIMITED")     /* claim: the tenant is over a limit */          \
    X(REFUSED, "REFUSED")     /* claim: would be NEW, but NONEW was given */   \
    X(DONE, "OK")             /* anything else: it happened */                 \
    X(KEPT, "KEPT")           /* the first completion counts */                \
    X(STALE, "STALE")         /* the token is not the current one */           \
    X(NIL, "NIL")             /* there is no such operation */                 \
    X(EXISTS, "EXISTS")       /* enqueue: it has a job of that name already */

enum lk_verdict {
#define X(name, word) LK_VERDICT_##name,
    LK_VERDICT_MAP(X)
#undef X
};

const char *latchkey_verdict_word(enum lk_verdict verdict);
/* False if the word is none of the above. */
bool latchkey_verdict_parse(struct lk_slice word, enum lk_verdict *verdict);

/* ---- Key --------------------------------------------------------------- */

#define LK_KEY_MAX 255

#define LK_KEY_FAULT_MAP(X)                                                    \
    X(NONE, "the key is valid")                                                \
    X(EMPTY, "the key is empty")                                               \
    X(TOO_LONG, "the key is longer than 255 characters")                       \
    X(BAD_CHARACTER, "the key contains a character that is not allowed")       \
    X(BAD_ESCAPE, "a backslash in a quoted key must precede \" or \\")         \
    X(UNTERMINATED, "the quoted key has no closing quote")                     \
    X(TRAILING, "there is something after the closing quote")

enum lk_key_fault {
#define X(name, text) LK_KEY_FAULT_##name,
    LK_KEY_FAULT_MAP(X)
#undef X
};

/*
 * Reads the value of one Idempotency-Key header, quoted (RFC 8941 string) or
 * bare, and appends the canonical key, 1 to 255 printable ASCII characters, to
 * `key`. Spaces and tabs around the value are ignored. LK_MALFORMED: `fault`
 * says why and `at` the offset of the offending byte in `value` (both may be
 * NULL); nothing is appended. LK_NOMEM: out of memory.
 */
LK_MUST_CHECK enum lk_status latchkey_key_parse(struct lk_slice value,
                                                struct lk_buf *key,
                                                enum lk_key_fault *fault,
                                                size_t *at);
const char *latchkey_key_fault_text(enum lk_key_fault fault);
const char *latchkey_key_fault_name(enum lk_key_fault fault); /* "empty" ... */

/* ---- Fingerprint -------------------------------------------------------- */

#define LK_FINGERPRINT_SIZE 32
/* Length of the text form: "1:" and 64 hexadecimal digits. */
#define LK_FINGERPRINT_TEXT 66

/* A header that takes part in the fingerprint. */
struct lk_header {
    struct lk_slice name;
    struct lk_slice value;
};

/* What a request means. Everything absent is an empty slice. */
struct lk_request {
    struct lk_slice method;
    struct lk_slice path;
    struct lk_slice query;
    struct lk_slice content_type;     /* the whole value, parameters and all */
    struct lk_slice content_encoding; /* "identity" is as good as none */
    const struct lk_header *headers;
    size_t header_count;
    struct lk_slice binding; /* a session or credential, hashed apart */
    struct lk_slice body;
    const struct lk_slice *ignore; /* JSON Pointers of members to leave out */
    size_t ignore_count;
};

/* How the body went into the digest. */
#define LK_BODY_FORM_MAP(X)                                                    \
    X(EMPTY, "empty")                                                          \
    X(JSON, "json")                                                            \
    X(FORM, "form")                                                            \
    X(MULTIPART, "multipart")                                                  \
    X(RAW, "raw")

enum lk_body_form {
#define X(name, word) LK_BODY_##name,
    LK_BODY_FORM_MAP(X)
#undef X
};

const char *latchkey_body_form_word(enum lk_body_form form);

struct lk_fingerprint {
    uint8_t digest[LK_FINGERPRINT_SIZE];
    enum lk_body_form form;
};

/*
 * Computes the fingerprint of `request`. Two requests that mean the same have
 * the same digest; see docs/fingerprint.md for what "the same" is. Takes time
 * and memory linear in the request. If `explain` is not NULL, the exact bytes
 * that were hashed are appended to it in a readable form, one field a line.
 * LK_INVALID: a pointer in `ignore` is not a JSON Pointer. LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status latchkey_fingerprint(
    const struct lk_request *request, struct lk_fingerprint *fingerprint,
    struct lk_buf *explain);

/* Writes "1:<hex>" and a NUL: the form that goes over the wire. */
void latchkey_fingerprint_text(const struct lk_fingerprint *fingerprint,
                               char text[LK_FINGERPRINT_TEXT + 1]);

/* ---- Reference ----------------------------------------------------------- */

#define LK_REFERENCE_TEXT 14 /* 7D3F-92AB-1C4E */
#define LK_REFERENCE_KEY  16
#define LK_REFERENCE_MAX  ((UINT64_C(1) << 48) - 1)

/*
 * An operation's number (at most LK_REFERENCE_MAX) as a code for people: a
 * keyed permutation. No one without `secret` can guess another one, and no
 * index is needed to find the number again.
 */
void latchkey_reference_encode(uint64_t number,
                               const uint8_t secret[LK_REFERENCE_KEY],
                               char text[LK_REFERENCE_TEXT + 1]);
/* Accepts lower case and missing dashes. LK_MALFORMED: not a reference. */
LK_MUST_CHECK enum lk_status latchkey_reference_decode(
    struct lk_slice text, const uint8_t secret[LK_REFERENCE_KEY],
    uint64_t *number);

/* ---- Stored response ------------------------------------------------------
 */

/* The statuses that HTTP has. */
#define LK_STATUS_MIN 100
#define LK_STATUS_MAX 599

/* The response to an operation: what a replay sends, byte for byte. */
struct lk_response {
    unsigned status;         /* HTTP status, LK_STATUS_MIN to LK_STATUS_MAX */
    struct lk_slice headers; /* lines of "Name: value\r\n"; COMPLETE refuses a
                                name that is not a token (RFC 9110) and a
                                control character, but tabs, in a value */
    struct lk_slice body;
};

/* Appends the response as one versioned block of bytes. LK_TOO_LARGE,
 * LK_NOMEM. */
LK_MUST_CHECK enum lk_status latchkey_response_encode(
    const struct lk_response *response, struct lk_buf *encoded);
/*
 * Reads such a block; the slices point into it. LK_VERSION: a later format.
 * LK_CORRUPT: anything else that is wrong, trailing bytes included.
 */
LK_MUST_CHECK enum lk_status latchkey_response_decode(
    struct lk_slice encoded, struct lk_response *response);

/*
 * Status and size of headers and body together, from the first
 * LK_RESPONSE_PREFIX bytes of a block. Returns as decode does.
 */
#define LK_RESPONSE_PREFIX 18
LK_MUST_CHECK enum lk_status latchkey_response_measure(struct lk_slice prefix,
                                                       unsigned *status,
                                                       uint64_t *bytes);

/* ---- Problem documents ----------------------------------------------------
 */

/* name, status, title */
#define LK_PROBLEM_MAP(X)                                                      \
    X(KEY_MISSING, "key-missing", 400, "Idempotency-Key is missing")           \
    X(KEY_INVALID, "key-invalid", 400, "Idempotency-Key is not valid")         \
    X(TENANT_MISSING, "tenant-missing", 400, "The caller is not identified")   \
    X(KEY_REUSED, "key-reused", 422, "Idempotency-Key is already used")        \
    X(IN_PROGRESS, "in-progress", 409,                                         \
      "A request is outstanding for this Idempotency-Key")                     \
    X(OUTCOME_UNKNOWN, "outcome-unknown", 409,                                 \
      "The outcome of the original request is unknown")                        \
    X(ANSWER_NOT_KEPT, "answer-not-kept", 409,                                 \
      "The original request was processed; its answer was not kept")           \
    X(LIMITED, "limited", 429, "Too many requests for this caller")            \
    X(TOO_OLD, "too-old", 400, "The request is too old to be started")         \
    X(UNAVAILABLE, "unavailable", 503,                                         \
      "Idempotency cannot be guaranteed right now")                            \
    X(NOT_FOUND, "not-found", 404, "There is no such operation")               \
    X(QUERY_INVALID, "query-invalid", 400, "The query is not valid")           \
    X(TOO_LARGE, "too-large", 413,                                             \
      "The request is too large to be accepted for later")                     \
    X(NOT_REACHED, "not-reached", 502, "The application was not reached")      \
    X(REQUEST_INVALID, "request-invalid", 400,                                 \
      "The request can be understood in several ways")

enum lk_problem_kind {
#define X(id, name, status, title) LK_PROBLEM_##id,
    LK_PROBLEM_MAP(X)
#undef X
};

struct lk_problem {
    enum lk_problem_kind kind;
    unsigned status;           /* 0: the kind's own */
    struct lk_slice type_base; /* prefix of the type URI; empty: built in */
    struct lk_slice detail;    /* what was wrong, for people; may be empty */
    struct lk_slice reference; /* may be empty */
    unsigned original_status;  /* of a response that was not stored; 0: none */
};

/* Appends an RFC 9457 document (application/problem+json). */
LK_MUST_CHECK enum lk_status latchkey_problem_write(
    const struct lk_problem *problem, struct lk_buf *json);
unsigned latchkey_problem_status(const struct lk_problem *problem);
/* Appends `text` as a JSON string, quotes included; bytes that are not UTF-8
 * become U+FFFD. */
LK_MUST_CHECK enum lk_status latchkey_json_quote(struct lk_slice text,
                                                 struct lk_buf *json);

/* ---- Time -----------------------------------------------------------------
 */

/*
 * Reads a point in time, in milliseconds since 1970: Unix time in seconds,
 * with a fraction or without, or in milliseconds (from 100000000000 on);
 * RFC 3339; or the HTTP-date that is in use (IMF-fixdate). LK_MALFORMED:
 * anything else, spaces around it too, or a time that is not within 1970 to
 * 9999.
 */
LK_MUST_CHECK enum lk_status latchkey_timestamp_parse(struct lk_slice text,
                                                      uint64_t *ms);
/* The time in a UUID of version 7. LK_MALFORMED: it is not such a UUID. */
LK_MUST_CHECK enum lk_status latchkey_uuid7_time(struct lk_slice uuid,
                                                 uint64_t *ms);

#define LK_TIMESTAMP_TEXT 24 /* 2023-11-14T22:13:20.123Z */
/* Writes RFC 3339 in UTC and a NUL; what is after 9999 is its last moment. */
void latchkey_timestamp_text(uint64_t ms, char text[LK_TIMESTAMP_TEXT + 1]);

/* ---- Client ----------------------------------------------------------------
 */

/*
 * A blocking connection to latchkeyd, for one thread at a time. The only part
 * of the library that does I/O.
 *
 * After LK_TIMEOUT, LK_CLOSED or LK_IO the connection is dead: close it, open
 * another and send the same claim again with the same owner. Nothing else is
 * needed: a claim whose reply was lost gets the same decision.
 */
struct lk_client;

struct lk_client_options {
    const char *address;         /* "unix:PATH" or "HOST:PORT" */
    const char *user;            /* NULL: none */
    const char *password;        /* NULL: none */
    unsigned connect_timeout_ms; /* 0: 2000 */
    unsigned timeout_ms;         /* for each reply; 0: 10000 */
};

/*
 * Connects, and authenticates if there is a password. On failure *client is
 * still set (unless LK_NOMEM), so that latchkey_client_error can say why;
 * close it in either case. LK_IO: errno is the cause, 0 if the host's name is
 * not known.
 */
LK_MUST_CHECK enum lk_status latchkey_client_open(
    const struct lk_client_options *options, struct lk_client **client);
void latchkey_client_close(struct lk_client *client); /* NULL is fine */
/* A sentence about the last failure; never NULL, valid until the next call. */
const char *latchkey_client_error(const struct lk_client *client);

enum lk_reply_type {
    LK_REPLY_NIL,
    LK_REPLY_INTEGER,
    LK_REPLY_TEXT,  /* a bulk or a simple string */
    LK_REPLY_ERROR, /* text is the message, its first word the code */
    LK_REPLY_ARRAY,
};

struct lk_reply {
    enum lk_reply_type type;
    int64_t integer;
    struct lk_slice text;
    struct lk_reply *elements;
    size_t count;
};

/*
 * Reads one reply (RESP2) from the bytes that have been received so far, for
 * programs with a connection of their own. Nothing is copied or allocated:
 * texts point into `bytes`, and elements into `nodes`, of which nodes[0] is
 * the reply.
 *
 * LK_OK: *used bytes belong to it. LK_AGAIN: incomplete; ask again when
 * there are *used bytes, not before. LK_TOO_LARGE: more than `node_max` nodes,
 * a text over 1 GiB or a line over 64 KiB. LK_MALFORMED: anything else, arrays
 * deeper than two included.
 */
LK_MUST_CHECK enum lk_status latchkey_reply_read(struct lk_slice bytes,
                                                 struct lk_reply *nodes,
                                                 size_t node_max, size_t *used);

/*
 * Writes the line that announces an array of `number` elements (type '*') or a
 * string of `number` bytes (type '$'), CR LF included, for programs that write
 * commands themselves. Returns the end; at most LK_ANNOUNCE_MAX bytes.
 */
#define LK_ANNOUNCE_MAX 23
char *latchkey_announce(char *to, char type, uint64_t number);

/*
 * Pipelining: queue any number of commands, flush, then receive as many
 * replies, in the same order. latchkey_client_queue copies what it is given.
 * latchkey_client_receive flushes by itself; *reply belongs to the client and
 * is valid until the next receive or call. An error reply is a reply: LK_OK.
 */
LK_MUST_CHECK enum lk_status latchkey_client_queue(struct lk_client *client,
                                                   const struct lk_slice *words,
                                                   size_t count);
LK_MUST_CHECK enum lk_status latchkey_client_flush(struct lk_client *client);
LK_MUST_CHECK enum lk_status latchkey_client_receive(
    struct lk_client *client, const struct lk_reply **reply);
/* queue, flush, receive. `timeout_ms` 0: the client's own. */
LK_MUST_CHECK enum lk_status latchkey_client_call(
    struct lk_client *client, const struct lk_slice *words, size_t count,
    unsigned timeout_ms, const struct lk_reply **reply);

/* The name of an operation. */
struct lk_name {
    struct lk_slice tenant;
    struct lk_slice scope;
    struct lk_slice key;
};

struct lk_claim {
    struct lk_name name;
    struct lk_slice fingerprint;
    struct lk_slice owner; /* a random nonce, the same on every repetition */
    uint64_t ttl_ms;       /* 0: the daemon's default */
    uint64_t lock_ms;      /* 0: the daemon's default */
    uint64_t wait_ms;      /* 0: do not wait */
    bool reexecute;        /* run again what is uncertain */
    bool no_new;           /* never start anything */
};

/* What the daemon decided. Fields that do not belong to the verdict are zero;
 * slices are valid until the next call on the client. */
struct lk_decision {
    enum lk_verdict verdict;
    uint64_t token;
    uint64_t lock_until_ms;
    uint64_t attempt;
    uint64_t retry_after_ms;
    uint64_t since_ms;
    uint64_t completed_ms;
    uint64_t expires_ms;
    struct lk_response response;
    struct lk_slice reason;
    struct lk_slice reference;
};

/*
 * The verdict in a reply to CLAIM, COMPLETE, RELEASE, DOUBT, RETURN, EXTEND,
 * ACCEPT or ENQUEUE; slices are those of the reply. LK_UNAVAILABLE: the store
 * cannot decide. LK_REPLY: any other error reply. LK_MALFORMED: no verdict.
 * Unless LK_OK, `answer` says NIL and nothing else.
 */
LK_MUST_CHECK enum lk_status latchkey_decision_read(
    const struct lk_reply *reply, struct lk_decision *decision);

/*
 * Reads the reply to a CLAIM, COMPLETE, RELEASE, DOUBT, RETURN, EXTEND,
 * ACCEPT or ENQUEUE that was queued by hand. Returns as latchkey_claim does,
 * and LK_MALFORMED.
 */
LK_MUST_CHECK enum lk_status latchkey_client_decision(
    struct lk_client *client, const struct lk_reply *reply,
    struct lk_decision *decision);

/*
 * LK_OK: `answer` holds the verdict. LK_UNAVAILABLE: the store cannot decide;
 * the app must not be called. LK_REPLY: any other error reply, see
 * latchkey_client_error. LK_TIMEOUT, LK_CLOSED, LK_IO: see above.
 */
LK_MUST_CHECK enum lk_status latchkey_claim(struct lk_client *client,
                                            const struct lk_claim *claim,
                                            struct lk_decision *decision);
/* DONE, KEPT (with the stored response) or STALE. `ttl_ms` 0: as claimed. */
LK_MUST_CHECK enum lk_status latchkey_complete(
    struct lk_client *client, struct lk_name name, uint64_t token,
    const struct lk_response *response, uint64_t ttl_ms,
    struct lk_decision *decision);
/* Completes without storing the response; `reason` says why ("too large"). */
LK_MUST_CHECK enum lk_status latchkey_complete_omitted(
    struct lk_client *client, struct lk_name name, uint64_t token,
    unsigned status, struct lk_slice reason, uint64_t ttl_ms,
    struct lk_decision *decision);
/* Nothing happened: the key is free again. DONE, KEPT or STALE. */
LK_MUST_CHECK enum lk_status latchkey_release(struct lk_client *client,
                                              struct lk_name name,
                                              uint64_t token,
                                              struct lk_decision *decision);
/* It may have happened: the operation is uncertain until it is resolved; the
 * reason says why. DONE, KEPT or STALE. */
LK_MUST_CHECK enum lk_status latchkey_doubt(struct lk_client *client,
                                            struct lk_name name, uint64_t token,
                                            struct lk_slice reason,
                                            struct lk_decision *decision);
/* Still running: the lock is valid for at least `lock_ms` from now. DONE, KEPT
 * or STALE. */
LK_MUST_CHECK enum lk_status latchkey_extend(struct lk_client *client,
                                             struct lk_name name,
                                             uint64_t token, uint64_t lock_ms,
                                             struct lk_decision *decision);

/* A request that is to run later, through the gateway. */
struct lk_accept {
    struct lk_name name;
    struct lk_slice fingerprint;
    struct lk_slice method;
    struct lk_slice path;    /* with the query */
    struct lk_slice headers; /* "Name: value\r\n" lines */
    struct lk_slice body;
    uint64_t ttl_ms; /* 0: the daemon's default */
    bool reexecute;  /* what was sent and lost may run again */
};

/*
 * ACCEPTED, or the verdict that a claim of that operation would get; never NEW.
 * The operation and its request are durable together. Returns as latchkey_claim
 * does; a caller that gets no reply sends the same again.
 */
LK_MUST_CHECK enum lk_status latchkey_accept(struct lk_client *client,
                                             const struct lk_accept *accept,
                                             struct lk_decision *decision);

/* A call to another service that an operation leaves behind. */
struct lk_enqueue {
    struct lk_name name; /* of the operation */
    uint64_t token;      /* of its claim */
    struct lk_slice job; /* a name, unique within the operation */
    struct lk_slice target;
    struct lk_slice path;    /* behind the target's URL, with the query */
    struct lk_slice method;  /* empty: POST */
    struct lk_slice headers; /* "Name: value\r\n" lines */
    struct lk_slice body;
    uint64_t delay_ms; /* 0: at once */
};

/* DONE, EXISTS (it has a job of that name already), KEPT or STALE. */
LK_MUST_CHECK enum lk_status latchkey_enqueue(struct lk_client *client,
                                              const struct lk_enqueue *job,
                                              struct lk_decision *decision);

#ifdef __cplusplus
}
#endif

#endif
