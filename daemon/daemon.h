/*
 * daemon.h - what the parts of latchkeyd share.
 *
 * Threads: the *loop* thread owns connections, tasks, waiters, cache and
 * metrics, and runs everything declared here unless another thread is named.
 * The *store* thread (batcher.h) applies batches, the *reader* thread
 * (reader.h) fetches, a *chore* thread verifies or copies. A task is in the
 * hands of one thread at a time and changes hands under a queue's mutex; its
 * `conn` is touched by the loop thread alone.
 */
#ifndef LK_DAEMON_H
#define LK_DAEMON_H

#include "config/config.h"
#include "daemon/cache.h"
#include "daemon/guesses.h"
#include "daemon/log.h"
#include "daemon/metrics.h"
#include "daemon/notify.h"
#include "daemon/waiters.h"
#include "lib/resp.h"
#include "store/store.h"

#include <stdatomic.h>
#include <uv.h>

enum {
    LK_READ_CHUNK = 64 * 1024,
    LK_TURN_MS = 100, /* of one that is read from though memory is short */
    LK_WAIT_MAX_MS = 10 * 60 * 1000,
    LK_STOP_BOUND_MS = 10 * 1000,
    LK_ARGS_MAX = 1024,
    LK_READER_SHARE = 16, /* tasks of one connection with the reader */
    LK_ADDRESS_TEXT = 128,
    LK_CLIENT_NAME = 64,
    LK_PEER_USER = 64,
    LK_PEER_TEXT = LK_ADDRESS_TEXT, /* either of an address or of a user */
};

struct lk_server;
struct lk_conn;
struct lk_command;
struct lk_targets_view;

/* ---- Demands and tasks --------------------------------------------------- */

enum lk_task_kind {
    LK_TASK_OP,     /* an operation: the store decides */
    LK_TASK_AWAIT,  /* likewise, to see whether there is something to await */
    LK_TASK_CLOCK,  /* store thread */
    LK_TASK_LOOKUP, /* reader thread, as the next seven */
    LK_TASK_FIND,
    LK_TASK_LIST,
    LK_TASK_AUDIT,
    LK_TASK_EXPORT,
    LK_TASK_JOBS,
    LK_TASK_JOB,
    LK_TASK_TARGETS,
    LK_TASK_ORDER,  /* store thread, by way of orders.c */
    LK_TASK_PROBE,  /* the courier's, by way of probe.c */
    LK_TASK_VERIFY, /* chore thread */
    LK_TASK_BACKUP, /* chore thread; then store thread, for the audit log. With
                       list.whole the begin of an export: only the latter */
    LK_TASK_TEXT,   /* a reply that waits for those before it */
};

/*
 * What a command asks for. Slices point into the read buffer; a task has its
 * own copies. Not only `op` uses the fields of `op`: op.reason is the id of an
 * AWAIT, the path of a BACKUP, the target of JOBS, TARGET and a target's order
 * and the provider's id of a job's; op.owner the provider's id of JOBS;
 * op.name.tenant the tenant of FIND, LIST and JOBS, op.token the number of FIND
 * and the id of a job. AUDIT asks for op.name, op.who and, in op.reason, the
 * action.
 */
struct lk_demand {
    enum lk_task_kind kind;
    struct lk_slice peer; /* who asks, if op.who is set: lk_rights_peer_text */
    bool bodies; /* LOOKUP, FIND, JOBS, JOB: with headers and bodies. If op.who
                    is set, an operator looks at them: that is noted in the
                    audit log before they are sent */
    uint64_t wait_ms; /* WAIT, AWAIT */
    struct lk_op op;
    union {
        struct lk_list_query list;    /* its slices are set by the reader */
        struct lk_audit_query audit;  /* likewise its slices */
        struct lk_jobs_query jobs;    /* likewise */
        struct lk_job_action order;   /* its slices are set by orders.c */
        struct lk_call call;          /* op.call */
        struct lk_targets_view *view; /* TARGETS; the task's own */
    };
};

/* What an operator has looked at, for the audit log. */
struct lk_look {
    struct lk_audit_entry entry;
    struct lk_buf bytes; /* of its action and name */
    uint64_t number;     /* of the operation; 0: a job's */
};

struct lk_task {
    struct lk_task *next;   /* in a queue */
    struct lk_task *after;  /* on its connection: later command, or await */
    struct lk_task *before; /* awaits only */
    struct lk_conn *conn;   /* NULL: the client is gone */
    uint64_t started_ns;
    uint64_t deadline_ms;
    uint64_t again_until_ns; /* given again until then; 0: never yet */
    size_t copied;           /* bytes behind the task */
    size_t size;             /* bytes, for the queue's account */
    atomic_bool gone;        /* as `conn`, for other threads: do not bother */
    int fd;                  /* of `conn`; open while not gone, under the mutex
                                of lk_returns */
    uint8_t proto;
    uint8_t rounds; /* loads in vain */
    bool counted;   /* in server->queued_* */
    bool ready;     /* the reply can be written */
    bool loading;   /* the reader fetches what the reply needs, or is to */
    bool to_note;   /* belongs in the audit log: a backup that worked, or a
                       reply that shows bodies to an operator */
    bool waited;    /* was parked */
    bool final;     /* not to be parked again */
    bool settled;   /* await: to be pushed right after QUEUED */
    bool queued;    /* await: QUEUED has been written */
    struct lk_waiter waiter;
    struct lk_buf text;   /* a reply made before its turn */
    struct lk_look *look; /* of a reply that shows bodies; NULL: none */
    struct lk_demand demand;
    char bytes[];
};

struct lk_returns;

struct lk_task_queue {
    struct lk_task *head;
    struct lk_task *tail;
    size_t count;
};

void lk_task_queue_add(struct lk_task_queue *queue, struct lk_task *task);
struct lk_task *lk_task_queue_take(struct lk_task_queue *queue); /* or NULL */
/* Appends all of `more` and leaves it empty. */
void lk_task_queue_join(struct lk_task_queue *queue,
                        struct lk_task_queue *more);

/* Copies the demand. Not on a connection's list yet. NULL: out of memory. */
struct lk_task *lk_task_make(struct lk_conn *conn,
                             const struct lk_demand *demand);
void lk_task_free(struct lk_server *server, struct lk_task *task);
/* May it begin an operation, which somebody has to hold then? */
static inline bool lk_op_begins(const struct lk_op *op)
{
    return (op->event == LK_EVENT_CLAIM && !op->no_new) ||
           op->event == LK_EVENT_ACCEPT;
}

/* How a sentence behind UNAVAILABLE begins that is about one operation alone:
 * the store can decide, and no other daemon of it would know better. */
#define LK_RECORD "RECORD "

#define LK_LEFT "the client has closed the connection: nothing was begun"

/*
 * Has the client closed the connection? Then nobody will hold what a claim
 * begins. One that only shut down its side still reads, and has not; nor can a
 * close over TCP be told from that, unless it is a reset, which the gateway
 * sends to a daemon that it leaves.
 */
bool lk_task_hung_up(int fd);
/* The same from another thread. */
bool lk_task_is_left(struct lk_returns *returns, const struct lk_task *task);
/* A counted task takes room in the queue of which the bounds are settings. */
void lk_task_count(struct lk_server *server, struct lk_task *task);
void lk_task_uncount(struct lk_server *server, struct lk_task *task);
/* What it carries has changed: the account follows. */
void lk_task_weigh(struct lk_server *server, struct lk_task *task);

/* ---- The way back to the loop -------------------------------------------- */

/* Tasks and settled operations that other threads hand to the loop. */
struct lk_returns {
    uv_mutex_t mutex;
    uv_async_t async;
    struct lk_task_queue tasks;
    struct lk_hash128 *settled;
    size_t settled_count;
    size_t settled_cap;
    bool settle_all; /* as in struct lk_batch */
    bool queued;     /* likewise: the courier is to be woken */
};

/*
 * Any thread. Takes all of `tasks`, and copies what settled in `batch` (NULL:
 * nothing). The loop looks at tasks first, then at what settled: a claim
 * that was told INFLIGHT in a batch is parked before the same or a later
 * batch can wake it.
 */
void lk_returns_give(struct lk_returns *returns, struct lk_task_queue *tasks,
                     const struct lk_batch *batch);

/* ---- Connections --------------------------------------------------------- */

/*
 * Commands of two lanes never run at the same time on one connection, so that
 * none overtakes another in effect; those of one lane keep their order by
 * themselves.
 */
enum lk_lane {
    LK_LANE_NONE,  /* answered at once, changes nothing in the store */
    LK_LANE_STORE, /* peek, batcher */
    LK_LANE_READ,  /* reader */
    LK_LANE_ORDER, /* orders.c */
    LK_LANE_ALONE, /* starts when nothing is under way */
};

/* Lists of connections, see conn_limits.c; the first has been in it longest. */
enum lk_conn_list {
    LK_LIST_STRANGERS, /* those without a role */
    LK_LIST_STARVED,   /* not read from, since memory is short */
    LK_LISTS,
};

struct lk_conn_links {
    struct lk_conn *before;
    struct lk_conn *after;
    bool in;
};

struct lk_conns {
    struct lk_conn *head;
    struct lk_conn *tail;
    size_t count;
};

/* How far something had come when it was last fast enough. */
struct lk_pace {
    uint64_t since_ms;
    size_t bytes;
};

/* So many bytes have moved: for how long has that been too slow? */
uint64_t lk_pace_slow_ms(struct lk_pace *pace, size_t bytes, uint64_t now_ms);

static inline void lk_pace_start(struct lk_pace *pace, uint64_t now_ms,
                                 size_t bytes)
{
    *pace = (struct lk_pace){now_ms, bytes};
}

struct lk_conn {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    struct lk_server *server;
    struct lk_conn *prev;
    struct lk_conn *next;
    struct lk_conn_links links[LK_LISTS];
    struct lk_conn *next_dirty;
    struct lk_conn *next_runnable;
    struct lk_conn *next_closed;
    uint64_t id;
    const struct lk_command *command; /* the one being run */
    enum lk_lane command_lane;

    struct lk_resp_parser parser;
    struct lk_buf in; /* from in_start on: received, not yet run */
    size_t in_start;
    struct lk_pace sending; /* of the command that input ends within */
    uint64_t read_ns;       /* when the input being run was read */
    uint64_t looked_ns;     /* read_ns of the input that hung_up is about */
    bool hung_up;           /* the client had closed the connection */
    struct lk_buf out;      /* complete replies, not yet handed to the kernel */
    struct lk_buf writing;  /* under way by uv_write */
    uv_write_t write;
    struct lk_pace taking; /* of `writing` */
    size_t held_bytes;     /* its part of server->held_bytes */

    struct lk_task *head; /* commands not yet answered, in order */
    struct lk_task *tail;
    struct lk_task *awaits;       /* told QUEUED, not yet pushed */
    enum lk_lane lane;            /* of the commands in the list */
    size_t in_reader;             /* of these, at most LK_READER_SHARE */
    struct lk_task_queue to_load; /* decided, waiting for a place there */

    bool reading;
    bool dirty;
    bool runnable;
    bool closing;
    bool hold;    /* a WAIT or a chore holds up what follows */
    bool stuck;   /* input is left that could not be run yet */
    bool partial; /* input ends within a command */
    bool quit;    /* close when everything is answered */
    bool eof;     /* nothing more will come; answer what has */
    bool exports; /* an export has begun, and is in the audit log */
    bool again;   /* the command being run has to be run again later */
    bool unnamed; /* was greeted while the store was not open */

    uint8_t proto;
    unsigned roles;       /* bits 1 << enum lk_role; see lk_conn_set_roles */
    uint64_t stranger_ms; /* since when it has none */
    uint64_t judged_ms;   /* when its password may be judged; 0: none waits */
    unsigned peer_roles;  /* of these, by the user at a unix socket */
    enum lk_role login_role; /* of these, by AUTH */
    struct lk_peer peer;
    char peer_user[LK_PEER_USER]; /* its name, or its number */
    unsigned wrong_passwords;
    char *user; /* name given to AUTH; NULL: none */
    char name[LK_CLIENT_NAME + 1];
    char address[LK_ADDRESS_TEXT];
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t commands;
    uint64_t connected_ms;
    uint64_t active_ms; /* when it was last read from, answered or written to */
};

/* Takes a connection that has been accepted; closes it on failure. */
void lk_conn_start(struct lk_conn *conn);
int lk_conn_fd(const struct lk_conn *conn); /* -1: none any more */
/*
 * Ends the connection at the end of this turn of the loop; until then the
 * memory stays valid. `why` goes to the log; NULL: the client left.
 */
void lk_conn_close(struct lk_conn *conn, const char *why);
/* The end of lk_conn_close, called by the server. */
void lk_conn_tear_down(struct lk_conn *conn);
/* Runs what has been received and could not be run before. */
void lk_conn_run(struct lk_conn *conn);
/* Hands replies to the kernel. At the end of a turn only: closes what has
 * nothing left to run and to answer. */
void lk_conn_flush(struct lk_conn *conn);
void lk_conn_stop_reading(struct lk_conn *conn);
void lk_conn_start_reading(struct lk_conn *conn);
/* Runs no further command, and closes once all that were begun are answered. A
 * claim that waits has not been decided: it is dropped. */
void lk_conn_finish(struct lk_conn *conn);

/* Puts a task at the end of the list of commands to be answered. */
void lk_conn_push(struct lk_conn *conn, struct lk_task *task,
                  enum lk_lane lane);
/* Writes the replies that are ready and next in order. */
void lk_conn_emit(struct lk_conn *conn);
/*
 * Where an immediate reply goes: after all earlier ones. Never NULL; without
 * memory the connection is closed and the reply goes nowhere.
 */
struct lk_buf *lk_conn_out(struct lk_conn *conn);
/* For the status of the writers: anything but LK_OK closes the connection. */
void lk_conn_wrote(struct lk_conn *conn, enum lk_status status);
void lk_conn_simple(struct lk_conn *conn, const char *text);
/* `text` begins with its code: "ERR ...". */
void lk_conn_error(struct lk_conn *conn, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool lk_conn_has_role(const struct lk_conn *conn, enum lk_role role);

/* ---- What connections may take: conn_limits.c ---------------------------- */

/* Closes those who are slow, idle or strangers for too long, and makes room
 * when memory is short. */
void lk_conns_tick(struct lk_server *server, uint64_t now_ms);
/* Buffers may have changed: the account follows. */
void lk_conn_weigh(struct lk_conn *conn);
/* May more of a command be read? False: it is starved until lk_conn_feed. */
bool lk_conn_may_grow(struct lk_conn *conn);
/* Reads again from those who are starved, as memory allows. */
void lk_conn_feed(struct lk_server *server);
/* Is there a place for one more? A stranger may lose its own for it. */
bool lk_conn_has_place(struct lk_server *server);
/* Sets conn->roles; 0 makes it a stranger, which has to log in soon. */
void lk_conn_set_roles(struct lk_conn *conn, unsigned roles);
void lk_conn_leave_lists(struct lk_conn *conn);

/* guesses.c: is a password to be judged now? False: it has to wait
 * (conn->again), or has been refused with an error. */
bool lk_conn_may_guess(struct lk_conn *conn, struct lk_slice user);
/* It has been judged. */
void lk_conn_guessed(struct lk_conn *conn, struct lk_slice user, bool right);
/* The log gets what it has not been told yet, once a minute. */
void lk_guesses_tell(struct lk_server *server, uint64_t now_ms);

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

/* Starts a demand of kind OP or AWAIT: answers at once, or queues a copy. */
void lk_operation_start(struct lk_conn *conn, struct lk_demand *demand);
/* Goes on with a task that the batcher or the reader has returned. */
void lk_operation_returned(struct lk_server *server, struct lk_task *task);
/* Goes on with everybody who waits for an operation that settled. */
void lk_operation_settled(struct lk_server *server, struct lk_hash128 hash);
/* Looks at everybody who waits: any operation may have settled. */
void lk_operation_settled_all(struct lk_server *server);
/* Answers whoever has waited until `now_ms`; UINT64_MAX: everybody. */
void lk_operation_expire(struct lk_server *server, uint64_t now_ms);
/* Drops the awaits of a connection that have been told QUEUED. */
void lk_operation_forget_awaits(struct lk_conn *conn);

/* ---- Commands ------------------------------------------------------------ */

struct lk_command {
    const char *name; /* upper case, at most eight letters */
    uint16_t min_args;
    uint16_t max_args; /* the command word included */
    uint8_t roles;     /* any of these bits; 0: everybody, always */
    enum lk_lane lane;
    void (*run)(struct lk_conn *conn, const struct lk_slice *argv, size_t argc);
    const char *usage; /* the arguments */
};

/* False: not now, the same command has to be run again later. */
bool lk_command_run(struct lk_conn *conn, const struct lk_slice *argv,
                    size_t argc);
/* NULL: there is no such command. */
const struct lk_command *lk_command_find(struct lk_slice name);
/* Row `index` of the table; NULL past its end. */
const struct lk_command *lk_command_row(size_t index);

#define LK_COMMAND_HANDLER(name)                                               \
    void lk_run_##name(struct lk_conn *conn, const struct lk_slice *argv,      \
                       size_t argc)

LK_COMMAND_HANDLER(claim);
LK_COMMAND_HANDLER(complete);
LK_COMMAND_HANDLER(release);
LK_COMMAND_HANDLER(doubt);
LK_COMMAND_HANDLER(return );
LK_COMMAND_HANDLER(extend);
LK_COMMAND_HANDLER(keep);
LK_COMMAND_HANDLER(accept);
LK_COMMAND_HANDLER(enqueue);
LK_COMMAND_HANDLER(lookup);
LK_COMMAND_HANDLER(find);
LK_COMMAND_HANDLER(await);
LK_COMMAND_HANDLER(resolve);
LK_COMMAND_HANDLER(evict);
LK_COMMAND_HANDLER(list);
LK_COMMAND_HANDLER(jobs);
LK_COMMAND_HANDLER(job);
LK_COMMAND_HANDLER(target);
LK_COMMAND_HANDLER(stats);
LK_COMMAND_HANDLER(health);
LK_COMMAND_HANDLER(verify);
LK_COMMAND_HANDLER(audit);
LK_COMMAND_HANDLER(backup);
LK_COMMAND_HANDLER(export);
LK_COMMAND_HANDLER(clock);
LK_COMMAND_HANDLER(ping);
LK_COMMAND_HANDLER(echo);
LK_COMMAND_HANDLER(hello);
LK_COMMAND_HANDLER(auth);
LK_COMMAND_HANDLER(select);
LK_COMMAND_HANDLER(quit);
LK_COMMAND_HANDLER(info);
LK_COMMAND_HANDLER(client);
LK_COMMAND_HANDLER(command);
LK_COMMAND_HANDLER(config);
LK_COMMAND_HANDLER(reset);

/* Queues a demand that is no operation; NOMEM is answered with an error. One
 * that runs alone holds what follows. */
void lk_command_queue(struct lk_conn *conn, const struct lk_demand *demand);

/* ---- Replies ------------------------------------------------------------- */

/* What became of an operation, whatever its event. */
LK_MUST_CHECK enum lk_status lk_reply_outcome(struct lk_buf *out,
                                              const struct lk_store *store,
                                              int proto,
                                              const struct lk_op *op);
/* How much of an answer a record shows. */
enum lk_shown {
    LK_SHOW_BYTES, /* LIST: how large it is */
    LK_SHOW_SIZES, /* LOOKUP and FIND: how large headers and body are */
    LK_SHOW_WHOLE, /* the same, with headers and body */
};

/* Any thread. */
LK_MUST_CHECK enum lk_status lk_reply_operation(
    struct lk_buf *out, const struct lk_store *store, int proto,
    const struct lk_operation *record, enum lk_shown shown);
/* Any thread. All that a record has, for an export. */
LK_MUST_CHECK enum lk_status lk_reply_export(struct lk_buf *out, int proto,
                                             const struct lk_operation *record);
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

/* reply_jobs.c. LK_SHOW_BYTES: nothing of headers, bodies and answers. Any
 * thread. */
LK_MUST_CHECK enum lk_status lk_reply_job(struct lk_buf *out,
                                          const struct lk_store *store,
                                          int proto, const struct lk_job *job,
                                          enum lk_shown shown);
/* Reader thread: the whole reply of JOBS, and of JOB SHOW. */
LK_MUST_CHECK enum lk_status lk_reply_jobs(struct lk_store *store,
                                           struct lk_task *task);
LK_MUST_CHECK enum lk_status lk_reply_job_shown(struct lk_store *store,
                                                struct lk_task *task);
/* Store thread: what became of an operator's order. */
LK_MUST_CHECK enum lk_status lk_reply_order(struct lk_buf *out, int proto,
                                            const struct lk_job_action *order);

/*
 * targets_view.c: targets as the configuration and this daemon's courier have
 * them, for one reply. NULL: out of memory.
 */
struct lk_targets_view *lk_targets_view_make(struct lk_server *server);
void lk_targets_view_free(struct lk_targets_view *view); /* NULL is fine */
/* Reader thread: with what the store knows, the reply of TARGET STATUS. */
LK_MUST_CHECK enum lk_status lk_targets_view_reply(struct lk_store *store,
                                                   struct lk_task *task);
/* The lines of INFO that are about single targets. */
LK_MUST_CHECK enum lk_status lk_targets_view_info(
    const struct lk_targets_view *view, struct lk_buf *text);

/* orders.c: hands the orders of this turn to the store, those of many as one
 * step. */
void lk_orders_give(struct lk_server *server);
/* The loop has got an order back. */
void lk_orders_returned(struct lk_server *server);

/* probe.c: lets the courier ask the target op.reason. */
void lk_probe_give(struct lk_server *server, struct lk_task *task);

/* ---- What operators do: signature.c -------------------------------------- */

/* One line of the log for what an operator did, once it counts. `about` is more
 * of the line, as "job=7". Any thread. */
void lk_act_log(const struct lk_demand *demand, struct lk_slice action,
                const char *about);
/* The same for an operation, by its reference. */
void lk_act_log_reference(const struct lk_store *store,
                          const struct lk_demand *demand,
                          struct lk_slice action, uint64_t number);
/* The same for a task of those that are no operation. */
void lk_act_log_task(const struct lk_server *server,
                     const struct lk_task *task);

/* Reader thread: the reply of `task` shows bodies. If an operator asked for
 * them, the audit log is to name `action` and what they belong to. */
LK_MUST_CHECK enum lk_status lk_look_make(struct lk_task *task,
                                          const char *action,
                                          struct lk_name name, uint64_t number,
                                          uint64_t job);
/* What the audit log made of it: without an entry, nothing is shown. */
LK_MUST_CHECK enum lk_status lk_look_noted(struct lk_task *task);
void lk_look_free(struct lk_look *look); /* NULL is fine */

/* ---- Chores -------------------------------------------------------------- */

/* Long work, one at a time. */
struct lk_chore {
    uv_thread_t thread;
    struct lk_task *task; /* NULL: none is running; loop thread */
    atomic_bool returned; /* the thread is done with `task` */
    _Atomic uint64_t done;
    _Atomic uint64_t total;
};

/* LK_BUSY: one is running. LK_OK: the task belongs to the chore. */
LK_MUST_CHECK enum lk_status lk_chore_start(struct lk_server *server,
                                            struct lk_task *task);
/* The loop has got the task back. */
void lk_chore_finished(struct lk_server *server);
/* The copy stands, or an export begins; what the audit log made of it goes into
 * the reply. */
LK_MUST_CHECK enum lk_status lk_chore_noted(struct lk_task *task);

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

/* The way to the store; opening.c says who may touch what, and when. */
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
    char trouble[LK_FAILURE_SIZE]; /* why the last try failed; one line */
    char told[LK_FAILURE_SIZE];    /* the one that the log has; empty: none */
    uint64_t told_ms;
};

/* Why connections are closed that come in floods. */
enum lk_cut { LK_CUT_NO_AUTH, LK_CUT_DISPLACED, LK_CUT_MEMORY, LK_CUTS };

/* What has a line in the log once a minute, and is counted in between. */
struct lk_thinned {
    uint64_t told_ms; /* 0: never */
    uint64_t untold;
};

/* A target as the last look found it in the store. */
struct lk_checked_target {
    char name[LK_TARGET_NAME_MAX + 1];
    uint64_t waiting;
    uint64_t due_ms; /* since when the oldest is so; 0: none */
    uint64_t uncertain_ms;
    uint64_t dead_ms;
    bool paused;
    uint64_t paused_ms;
    bool broken; /* its circuit is open; loop thread */
};

/* What HEALTH goes by beside the store's numbers (checkup.c). */
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

/* What the log was last told of uncertain operations. */
struct lk_doubts_told {
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
    struct lk_chore chore;
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
    uv_timer_t tick;       /* time-outs of connections; bound of the stop */
    uv_timer_t poll;       /* a shared store: who waits asks again */
    uv_signal_t signals[3];
    uint64_t armed_ms; /* what wait_timer is set to */
    struct lk_doubts_told doubts;

    struct lk_conn *conns;
    size_t conn_count;
    struct lk_conns lists[LK_LISTS];
    struct lk_conn *fed; /* goes on reading though memory is short, or NULL */
    size_t fed_from;     /* so much of its command was there before */
    size_t held_bytes;   /* buffers of all connections, and all tasks */
    struct lk_thinned cuts[LK_CUTS];
    uint64_t short_told_ms; /* when the log was told that memory is short */
    struct lk_guesses guesses;
    uint64_t last_conn_id;
    struct lk_conn *dirty;
    struct lk_conn *runnable; /* first in, first out */
    struct lk_conn *runnable_tail;
    struct lk_conn *closed;

    struct lk_task_queue to_store; /* of this turn, not yet handed over */
    struct lk_task_queue to_reader;
    struct lk_task_queue to_order;
    size_t ordering;   /* orders that are with the store */
    size_t queued_ops; /* tasks counted, wherever they are */
    size_t queued_bytes;
    size_t peak_conns;

    uint64_t started_ms;
    uint64_t stop_by_ms; /* 0: not stopping */
    bool asked_twice;    /* to stop */
    bool served;         /* all is answered: what is left ends by itself */
    bool hung;           /* the store did not answer in time */
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
/* Serves until it is told to stop, then closes everything. False: it had to
 * stop by itself. */
LK_MUST_CHECK bool lk_server_run(struct lk_server *server);
/* Starts what works with the store, which has just been opened. */
LK_MUST_CHECK enum lk_status lk_server_take_store(struct lk_server *server);
/* Tells systemd; a failure is logged. */
void lk_server_say(enum lk_notify_event event, const char *text);

/* opening.c: one try at once. LK_OK: the store is open, or it is tried again
 * until it is. Else its failure has been logged. */
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
/* Ends the loop when everything is answered and sent, or time is up. */
void lk_server_go_on_stopping(struct lk_server *server);

/* turn.c */
bool lk_turn_start(struct lk_server *server);
/* With a store that is open: others may settle what is waited for here. */
void lk_turn_poll(struct lk_server *server);
void lk_turn_close_connections(struct lk_server *server);

/* outbox.c: the courier of this daemon, if it has one. A failure is logged. */
LK_MUST_CHECK enum lk_status lk_outbox_start(struct lk_server *server);
void lk_outbox_wake(struct lk_server *server);
void lk_outbox_reload(struct lk_server *server);
/* Nobody is to wait for a service that is asked while the daemon stops. */
void lk_outbox_hush(struct lk_server *server);
void lk_outbox_stop(struct lk_server *server);

/* listen.c: LK_OK, or a failure that has been logged. */
LK_MUST_CHECK enum lk_status lk_server_listen(struct lk_server *server);
void lk_server_stop_listening(struct lk_server *server);

/* checkup.c: the thread that looks, and the reply of HEALTH. */
LK_MUST_CHECK enum lk_status lk_checkup_start(struct lk_server *server);
void lk_checkup_stop(struct lk_server *server); /* one that never ran, too */
LK_MUST_CHECK enum lk_status lk_health_write(struct lk_server *server,
                                             int proto, struct lk_buf *out);

/* info.c: the replies of STATS, and of STATS EXPLAIN. */
LK_MUST_CHECK enum lk_status lk_stats_write(struct lk_server *server, int proto,
                                            struct lk_buf *out);
LK_MUST_CHECK enum lk_status lk_stats_explain(int proto, struct lk_buf *out);
/* The text of INFO; empty `section`: all. */
LK_MUST_CHECK enum lk_status lk_info_write(struct lk_server *server,
                                           struct lk_slice section,
                                           struct lk_buf *text);

#endif
