/*
 * outbox.h - the daemon's side of the courier: how it asks the store, and what
 * the daemon asks of it. The courier itself is in courier/, which uses the
 * daemon's parts; main.c puts the two together.
 */
#ifndef LK_OUTBOX_H
#define LK_OUTBOX_H

#include "config/config.h"
#include "config/targets.h"
#include "store/store.h"

struct lk_batcher;

/* What the courier is started with. All of it outlives the courier, except
 * `config`: the courier copies what it needs. */
struct lk_outbox_setup {
    const struct lk_config *config;
    struct lk_store *store;
    /* Hands a job batch to the store; its `done` is called from another thread.
     * It belongs to the store until then. */
    void (*job_batch)(void *context, struct lk_job_batch *job_batch);
    /* Called by the courier's thread at its end. NULL: not needed. */
    void (*over)(void *context);
    void *context;
};

/* One target in this courier; the store knows the rest. */
struct lk_target_status {
    struct lk_slice name;
    bool configured;
    unsigned in_flight;
    uint64_t delivered; /* since the start */
    uint64_t failed;    /* attempts */
    uint64_t dead;
    uint64_t uncertain;
    const char *circuit;      /* "closed", "open", "half-open" */
    uint64_t circuit_wait_ms; /* open: until one call may try again */
    struct lk_slice last_error;
};

typedef bool (*lk_target_status_fn)(void *context,
                                    const struct lk_target_status *status);

/* What a service said about what is uncertain. */
struct lk_probe_counts {
    uint64_t happened; /* resolved: it has happened */
    uint64_t absent;   /* resolved: it has not */
    uint64_t open;     /* still uncertain */
};

/* A target that is to be asked at once. */
struct lk_probe_request {
    struct lk_probe_request *next;
    struct lk_slice target;
    /* Called when it is done, on any thread. */
    void (*done)(struct lk_probe_request *request);
    void *context;

    /* out: LK_OK; LK_NOT_FOUND: there is no such target, or it has no probe;
     * LK_AGAIN: the courier is shutting down; LK_UNAVAILABLE: the store cannot
     * be read. */
    enum lk_status status;
    struct lk_probe_counts counts;
};

/* The courier, as the daemon sees it. */
struct lk_outbox_class {
    /* A failure is logged. Loop thread. */
    enum lk_status (*start)(const struct lk_outbox_setup *setup,
                            void **courier);
    /* A job may be due, or a target was resumed. Any thread, never waits. */
    void (*wake)(void *courier);
    /* After a reload. Loop thread. */
    void (*reload)(void *courier, const struct lk_config *config);
    /* Calls `row` for each target, as of now. Any thread. */
    void (*status)(void *courier, lk_target_status_fn row, void *context);
    /* Asks now about what is uncertain of a target, its jobs and the operations
     * of routes that ask it, whether or not its time has come: about half a
     * minute at most. The request is the courier's until it is done. Loop
     * thread, never waits. */
    void (*probe)(void *courier, struct lk_probe_request *request);
    /* The daemon is shutting down: no service is asked any more, and requests
     * are done at once. Loop thread, never waits. */
    void (*cancel_probes)(void *courier);
    /* Begins the end: gives back what was not called; the others have their
     * timeouts or `grace_ms` from now, and their outcome is stored. Called
     * again, the earlier time counts. Loop thread, never waits. */
    void (*end)(void *courier, uint64_t grace_ms);
    /* The same, then waits for the end and frees the courier. The store still
     * works. Loop thread. NULL is fine. */
    void (*stop)(void *courier, uint64_t grace_ms);
};

/* courier/courier.c */
extern const struct lk_outbox_class lk_courier_class;

#endif
