/*
 * daemon.h - what the parts of latchkeyd share.
 *
 * Threads: the *loop* thread owns connections, tasks, waiters, cache and
 * metrics, and runs everything declared here unless another thread is named.
 * The *store* thread (batcher.h) applies batches, the *reader* thread
 * (thread.h) fetches, a *long work* thread verifies or copies. A task is in the
 * hands of one thread at a time and changes hands under a queue's mutex; its
 * `conn` is touched by the loop thread alone.
 */
#ifndef LK_DAEMON_H
#define LK_DAEMON_H

#include "config/config.h"
#include "daemon/cache.h"
#include "daemon/conn.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/numbers.h"
#include "daemon/rights.h"
#include "daemon/task.h"
#include "daemon/thread.h"
#include "daemon/waiters.h"
#include "lib/resp.h"
#include "store/store.h"

#include <stdatomic.h>
#include <uv.h>

struct lk_server;
struct lk_targets_view;

/* ---- Rights: rights.c ---------------------------------------------------- */

/* A connection that was just accepted. */
void lk_rights_begin(struct lk_conn *conn);
/* What a name and a password have given. Takes `user`, which is allocated or
 * NULL. LK_ROLE_NONE: as if there had been no AUTH. */
void lk_rights_login(struct lk_conn *conn, char *user, enum lk_role role);
void lk_rights_end(struct lk_conn *conn);
/* The settings have changed: connections that have lost a right are closed. */
void lk_rights_reload(struct lk_server *server, const struct lk_config *before);
/* Who vouches for an operator's act: the user of AUTH, or the one of a unix
 * socket who may operate. Empty: no one. */
struct lk_slice lk_rights_user(const struct lk_conn *conn);
/* "root/4711", a user and a process; or the address. */
void lk_rights_peer_text(const struct lk_conn *conn, char text[LK_PEER_TEXT]);

/* ---- Operations ---------------------------------------------------------- */

/* Starts a task of the place BATCH: replies at once, or sends it. */
void lk_operation_start(struct lk_conn *conn, struct lk_task *task);
/* Goes on with a task that a store thread has decided or, `loaded`, for which
 * the reader has fetched what the reply needs. */
void lk_operation_returned(struct lk_server *server, struct lk_task *task,
                           bool loaded);
/* Goes on with all that wait for an operation that settled. */
void lk_operation_settled(struct lk_server *server, struct lk_hash128 hash);
/* Decides again for all that wait: any operation may have settled. */
void lk_operation_settled_all(struct lk_server *server);
/* Ends the wait of all whose deadline is `now_ms` or earlier. */
void lk_operation_expire(struct lk_server *server, uint64_t now_ms);
/* Drops the awaits of a connection that have got QUEUED. */
void lk_operation_forget_awaits(struct lk_conn *conn);

/* ---- Replies ------------------------------------------------------------- */

/* The outcome of an op, whatever its event. */
LK_MUST_CHECK enum lk_status lk_reply_outcome(struct lk_buf *out,
                                              const struct lk_store *store,
                                              int proto,
                                              const struct lk_op *op);
/* How much of its response an operation shows. */
enum lk_shown {
    LK_SHOW_BYTES, /* LIST: how large it is */
    LK_SHOW_SIZES, /* LOOKUP and FIND: how large headers and body are */
    LK_SHOW_WHOLE, /* the same, with headers and body */
};

/* Any thread. */
LK_MUST_CHECK enum lk_status lk_reply_operation(
    struct lk_buf *out, const struct lk_store *store, int proto,
    const struct lk_operation *operation, enum lk_shown shown);
/* Any thread. All that an operation has, for an export. */
LK_MUST_CHECK enum lk_status lk_reply_export(
    struct lk_buf *out, int proto, const struct lk_operation *operation);
/* What an export begins with: what the store is, and its references' secret. */
LK_MUST_CHECK enum lk_status lk_reply_export_begin(struct lk_buf *out,
                                                   struct lk_store *store,
                                                   int proto);
/* Any thread. */
LK_MUST_CHECK enum lk_status lk_reply_audit(struct lk_buf *out, int proto,
                                            const struct lk_audit_entry *entry);
/* "-UNAVAILABLE ..." for a status that is not LK_OK; `why` is the store's own
 * sentence, or NULL. Any thread. */
LK_MUST_CHECK enum lk_status lk_reply_unavailable(struct lk_buf *out,
                                                  enum lk_status status,
                                                  const char *why);
/* The same; `advice` is what to do if it is not known whether it counts. */
LK_MUST_CHECK enum lk_status lk_reply_failure(struct lk_buf *out,
                                              enum lk_status status,
                                              const char *why,
                                              const char *advice);
LK_MUST_CHECK enum lk_status lk_reply_settled(struct lk_buf *out, int proto,
                                              struct lk_slice id);

/* ---- Jobs and targets ---------------------------------------------------- */

/* command_jobs.c: hands the job actions of this turn to the store, as one job
 * batch, unless one is there already. */
void lk_actions_give(struct lk_server *server);
/* The loop has got one back. */
void lk_actions_returned(struct lk_server *server);
/* Store thread: the reply of a job action, as `run` of its row. */
LK_MUST_CHECK enum lk_status lk_action_run(struct lk_task *task,
                                           struct lk_store *store);

/*
 * command_targets.c: targets as the configuration and this daemon's courier
 * have them, for one reply. NULL: out of memory.
 */
struct lk_targets_view *lk_targets_view_make(struct lk_server *server);
void lk_targets_view_free(struct lk_targets_view *view); /* NULL is fine */
/* The lines of INFO that are about single targets. */
LK_MUST_CHECK enum lk_status lk_targets_view_info(
    const struct lk_targets_view *view, struct lk_buf *text);
/* Lets the courier ask the target of a TARGET PROBE. */
void lk_probe_start(struct lk_server *server, struct lk_task *task);

/* ---- What operators do: audit.c ------------------------------------------ */

enum { LK_ABOUT_REFERENCE = 16 + LK_REFERENCE_TEXT };

/* One line of the log for an operator's action, once it counts. `about` is more
 * of the line, as "job=7". Any thread. */
void lk_operator_log(const struct lk_signature *signature,
                     struct lk_slice action, const char *about);
/* `about` for an operation, by its reference; number 0: empty. */
void lk_operator_about(const struct lk_store *store, uint64_t number,
                       char about[LK_ABOUT_REFERENCE]);

/* The thread that has the task: the audit log gets an entry before the reply is
 * sent. The task must be signed. NULL: out of memory. */
struct lk_note *lk_note_make(struct lk_task *task, struct lk_slice action,
                             struct lk_name name);
/* The same if an operator sees bodies: of an operation (`number`) or a job. */
LK_MUST_CHECK enum lk_status lk_note_bodies(struct lk_task *task,
                                            const struct lk_store *store,
                                            const char *action,
                                            struct lk_name name,
                                            uint64_t number, uint64_t job_id);
/* Loop thread: the store has been asked. Without an entry nothing is shown. */
LK_MUST_CHECK enum lk_status lk_note_written(struct lk_task *task);
void lk_note_free(struct lk_note *note); /* NULL is fine */

/* ---- The server ---------------------------------------------------------- */

struct lk_listener {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    struct lk_server *server;
    char *path; /* of a unix socket; NULL: TCP */
    unsigned port;
};

struct lk_batcher;
struct lk_reader;
struct lk_outbox_class;

/* The way to the store; store_opening.c says who may touch what, and when. */
struct lk_opening {
    uv_async_t async;  /* a try has ended */
    uv_timer_t timer;  /* until the next one */
    uint64_t pause_ms; /* before that */
    const char *url;
    const struct lk_store_class *class;
    bool trying; /* there is a thread */
    uv_thread_t thread;
    atomic_bool returned; /* it is done with what follows */
    struct lk_store_config config;
    struct lk_store *found;
    enum lk_status status;
    struct lk_buf error;
    /* Loop thread: */
    uint64_t since_ms;             /* by the loop's clock */
    char failure[LK_FAILURE_SIZE]; /* why the last try failed; one line */
    char logged[LK_FAILURE_SIZE];  /* the one that the log has; empty: none */
    uint64_t logged_ms;
};

/* Why connections are closed that come in floods. */
enum lk_cut { LK_CUT_NO_AUTH, LK_CUT_DISPLACED, LK_CUT_MEMORY, LK_CUTS };

/* What has a line in the log once a minute, and is counted in between. */
struct lk_log_limit {
    uint64_t logged_ms; /* 0: never */
    uint64_t unlogged;
};

/* A target as the last look found it in the store. */
struct lk_checked_target {
    char name[LK_TARGET_NAME_MAX + 1];
    uint64_t waiting;
    uint64_t due_ms; /* since when the oldest is due; 0: none */
    uint64_t uncertain_ms;
    uint64_t dead_ms;
    bool paused;
    uint64_t paused_ms;
    bool broken; /* its circuit is open; loop thread */
};

/* What HEALTH uses beside the store's numbers (health.c). */
struct lk_checkup {
    _Atomic uint64_t disk_free; /* bytes; embedded stores only */
    atomic_bool disk_known;
    bool runs;
    uv_thread_t thread;
    uv_cond_t wake;
    uv_mutex_t mutex; /* guards all below */
    bool stop;
    bool wanted;        /* look again now */
    uint64_t looked_ns; /* by uv_hrtime, when the last look ended well */
    struct lk_checked_target *targets;
    size_t count;
};

/* What the log last had about uncertain operations. */
struct lk_uncertain_logged {
    uint64_t count; /* never above what there are; 0: nothing */
    uint64_t at_ms; /* by the loop's clock */
};

struct lk_server {
    uv_loop_t loop;
    struct lk_config config;
    const struct lk_options *options;
    struct lk_store *store; /* NULL: not open yet */
    struct lk_opening opening;
    struct lk_batcher *batcher;
    uv_mutex_t wake_mutex;
    struct lk_batcher *awake; /* for threads of the store; NULL: not running */
    struct lk_reader *reader;
    const struct lk_outbox_class *outbox_class; /* NULL: no courier at all */
    void *courier;                              /* NULL: does not run */
    uv_async_t courier_over;                    /* it has come to its end */
    bool courier_ended;
    struct lk_long_work long_work;
    struct lk_checkup checkup;
    struct lk_returns returns;
    struct lk_waiters waiters;
    struct lk_cache cache;
    struct lk_metrics metrics;

    struct lk_listener *listeners;
    size_t listener_count;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_timer_t wait_timer; /* the earliest deadline of a waiter */
    uv_timer_t tick;       /* timeouts of connections; bound of the stop */
    uv_timer_t poll;       /* a shared store: who waits asks again */
    uv_signal_t signals[3];
    uint64_t armed_ms; /* what wait_timer is set to */
    struct lk_uncertain_logged uncertain;

    struct lk_conn *conns;
    size_t conn_count;
    struct lk_conns lists[LK_LISTS];
    struct lk_conn *fed; /* goes on reading though memory is short, or NULL */
    size_t fed_from;     /* bytes of its command that it had before */
    size_t held_bytes;   /* buffers of all connections, and all tasks */
    struct lk_log_limit cuts[LK_CUTS];
    uint64_t short_logged_ms; /* when the log last said that memory is short */
    struct lk_auth_table auth_table;
    uint64_t last_conn_id;
    struct lk_conn *dirty;
    struct lk_conn *runnable; /* first in, first out */
    struct lk_conn *runnable_tail;
    struct lk_conn *closed;

    struct lk_task_queue to_store; /* of this turn, not yet handed over */
    struct lk_task_queue to_reader;
    struct lk_task_queue to_actions;
    struct lk_task *spare_task; /* freed, for the next one; or NULL */
    size_t actions_sent;        /* job actions that are with the store */
    size_t queued_ops;          /* tasks counted, wherever they are */
    size_t queued_bytes;
    size_t peak_conns;

    uint64_t started_ms;
    uint64_t stop_by_ms; /* 0: not stopping */
    bool asked_twice;    /* to stop */
    bool served;         /* every reply is sent: what is left ends by itself */
    bool hung;           /* the store did not return in time */
    bool failed;         /* it stops because it cannot go on */
    struct lk_buf scratch;
    char read_buf[LK_READ_CHUNK];
};

/* True while the queue is full: no more commands are to be run. */
static inline bool lk_server_full(const struct lk_server *server)
{
    return server->queued_ops >= server->config.queue_ops ||
           server->queued_bytes >= server->config.queue_bytes;
}

/* True while connections hold more memory than they may. */
static inline bool lk_server_is_short(const struct lk_server *server)
{
    return server->held_bytes > server->config.client_bytes;
}

/* `server` is zeroed, with config and options set. A failure is logged, and
 * everything is closed again. */
LK_MUST_CHECK enum lk_status lk_server_open(struct lk_server *server);
/* Serves until a signal asks it to stop, then closes everything. False: it had
 * to stop by itself. */
LK_MUST_CHECK bool lk_server_run(struct lk_server *server);
/* Starts what works with the store, which has just been opened. */
LK_MUST_CHECK enum lk_status lk_server_take_store(struct lk_server *server);
/* Reports to systemd; a failure is logged. */
void lk_server_say(enum lk_notify_event event, const char *text);

/* store_opening.c: one try at once. LK_OK: the store is open, or it is tried
 * again until it is. Else its failure has been logged. */
LK_MUST_CHECK enum lk_status lk_opening_start(struct lk_server *server);
/* False: a try is running, which cannot be waited for. */
LK_MUST_CHECK bool lk_opening_stop(struct lk_server *server);
/* The numbers of the store; while it is not open, zeros and why. */
void lk_server_store_stats(struct lk_server *server,
                           struct lk_store_stats *stats);

void lk_server_mark_dirty(struct lk_server *server, struct lk_conn *conn);
void lk_server_mark_runnable(struct lk_server *server, struct lk_conn *conn);
void lk_server_mark_closed(struct lk_server *server, struct lk_conn *conn);
/* Asks for a graceful stop; a second time: an immediate one. */
void lk_server_stop(struct lk_server *server);
/* Ends the loop when every reply is sent, or time is up. */
void lk_server_go_on_stopping(struct lk_server *server);

/* server.c: the turns of the loop */
bool lk_server_start_turns(struct lk_server *server);
/* With a store that is open: others may settle what is waited for here. */
void lk_server_start_polling(struct lk_server *server);
void lk_server_close_connections(struct lk_server *server);

/* outbox.c: the courier of this daemon, if it has one. A failure is logged. */
LK_MUST_CHECK enum lk_status lk_outbox_start(struct lk_server *server);
void lk_outbox_wake(struct lk_server *server);
void lk_outbox_reload(struct lk_server *server);
/* No one is to wait for a probe while the daemon is shutting down. */
void lk_outbox_stop_probing(struct lk_server *server);
void lk_outbox_stop(struct lk_server *server);

/* listen.c: LK_OK, or a failure that has been logged. */
LK_MUST_CHECK enum lk_status lk_server_listen(struct lk_server *server);
void lk_server_stop_listening(struct lk_server *server);

/* health.c: the thread that looks. */
LK_MUST_CHECK enum lk_status lk_checkup_start(struct lk_server *server);
void lk_checkup_stop(struct lk_server *server); /* one that never ran, too */

#endif
