/*
 * targets.h - the services that jobs may call, and what is known of routes, as
 * the configuration names them: [target NAME] and [route NAME].
 *
 * A job names a target and a path, never a host, so its jobs can only be sent
 * to the target's URL.
 */
#ifndef LK_TARGETS_H
#define LK_TARGETS_H

#include "store/jobs.h"

/* A set of HTTP statuses, "2xx 404 409": bit `status - 100`. */
struct lk_statuses {
    uint64_t bits[8];
};

bool lk_statuses_have(const struct lk_statuses *set, unsigned status);

enum lk_http_version { LK_HTTP_AUTO, LK_HTTP_1_1, LK_HTTP_2 };

/* How a service is asked about a key, and what its response proves. */
struct lk_probe {
    char *
        path; /* a template: {key} {id} {tenant} {scope} {reference}; or NULL */
    struct lk_statuses happened; /* 2xx */
    struct lk_statuses absent;   /* 404; with a list none */
    char *list;         /* JSON Pointer to an array: empty is absent; or NULL */
    uint64_t settle_ms; /* absence is proof after that, if seen twice */
    uint64_t interval_ms; /* between probes of one key, doubling */
};

struct lk_target {
    char *name;
    char *url;     /* http:// or https://, host, port, perhaps a path */
    char *socket;  /* url = unix:PATH, of a unix socket; else NULL */
    char *headers; /* "Name: value\r\n" lines, secrets put in; or NULL */
    uint64_t connect_timeout_ms;
    uint64_t timeout_ms; /* for the whole call */
    uint64_t concurrency;
    uint64_t rate;  /* calls a second; 0: any */
    uint64_t burst; /* at once, after a pause */
    uint64_t attempts;
    uint64_t
        max_age_ms; /* since it was queued, or an operator ordered it; 0: any */
    uint64_t backoff_ms; /* before the second attempt at most, doubling */
    uint64_t backoff_max_ms;
    uint64_t retry_after_max_ms; /* a longer Retry-After is cut to it */
    struct lk_statuses success;
    struct lk_statuses temporary; /* all else is permanent */
    struct lk_statuses safe;      /* of 5xx: nothing has happened */
    uint64_t honours;             /* Idempotency-Key: 0, 1 */
    uint64_t key_life_ms;      /* it remembers a key that long; 0: for ever */
    char *key_header;          /* "Idempotency-Key" */
    char *id;                  /* "header:NAME" or "json:POINTER", or NULL */
    char *sign_secret;         /* Standard Webhooks: "whsec_BASE64"; or NULL */
    uint64_t circuit_failures; /* in a row, that open it; 0: never */
    uint64_t circuit_open_ms;
    uint64_t http; /* enum lk_http_version */
    char *ca_file; /* NULL: the system's */
    char *cert_file;
    char *key_file;
    struct lk_probe probe;
};

/* What the prober does about uncertain operations of a route. */
struct lk_route {
    char *name;
    char *scope;           /* "POST /payments", or a prefix that ends in '*' */
    char *tenant;          /* NULL: every one */
    char *target;          /* that is asked */
    struct lk_probe probe; /* as the target's, with this path */
    uint64_t adopt; /* the probe's response becomes the operation's: 0, 1 */
    char *rollback_target; /* NULL: none */
    char *rollback_path;   /* POSTed; 2xx: it is undone, and released */
};

struct lk_targets {
    struct lk_target *targets;
    size_t count;
    struct lk_route *routes;
    size_t route_count;
};

/* NULL: there is none of that name. */
const struct lk_target *lk_target_find(const struct lk_targets *targets,
                                       struct lk_slice name);
/* The names alone, `between` between two; "..." where they do not all fit.
 * Returns `text`, of at least 16 bytes. */
const char *lk_targets_names(const struct lk_targets *targets,
                             const char *between, char *text, size_t size);
/* A deep copy, for a thread of its own. */
LK_MUST_CHECK enum lk_status lk_targets_copy(const struct lk_targets *from,
                                             struct lk_targets *to);
void lk_targets_free(struct lk_targets *targets); /* overwrites secrets */

#endif
