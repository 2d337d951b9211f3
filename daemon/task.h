/*
 * task.h - commands, and one command on its way between the threads.
 *
 * A command is one row: what it is called, who may send it, how its words are
 * read, on which thread it runs and how its reply is written. A task is one
 * command that has been sent: it points to its row and owns its arguments. The
 * life of a task is in task.c.
 */
#ifndef LK_TASK_H
#define LK_TASK_H

#include "daemon/outbox.h"
#include "daemon/waiters.h"
#include "store/store.h"

#include <stdatomic.h>
#include <uv.h>

struct lk_server;
struct lk_conn;
struct lk_task;
struct lk_long_work;
struct lk_targets_view;

/* ---- Commands ------------------------------------------------------------ */

/*
 * Where a command runs. Commands of two places never run at the same time on
 * one connection, so that none overtakes another in effect; those of one place
 * keep their order by themselves.
 */
enum lk_place {
    LK_PLACE_HERE,  /* the loop thread, at once; nothing in the store changes */
    LK_PLACE_BATCH, /* a store thread: the task's op, in a batch with others */
    LK_PLACE_STORE, /* a store thread: `run`, between two batches */
    LK_PLACE_ACTION,  /* a store thread: the job actions of one turn of the loop
                         as one job batch, and then `run` for each */
    LK_PLACE_READER,  /* the reader thread */
    LK_PLACE_LONG,    /* a thread of its own, one such task at a time */
    LK_PLACE_COURIER, /* the courier; `run` once it has its result */
};

/* Bits of lk_command.roles: any one of them is enough. */
enum lk_roles {
    LK_FOR_EVERYONE = 0, /* also before AUTH */
    LK_FOR_USE = 1 << LK_ROLE_USE,
    LK_FOR_READ = 1 << LK_ROLE_READ,
    LK_FOR_OPERATE = 1 << LK_ROLE_OPERATE,
    LK_FOR_VIEW = LK_FOR_READ | LK_FOR_OPERATE,
    LK_FOR_ALL = LK_FOR_USE | LK_FOR_VIEW,
};

enum {
    LK_ARGS_MAX = 1024,    /* words of any command */
    LK_TASK_ARGS_MAX = 32, /* words of one that becomes a task */
};

struct lk_command {
    const char *name;  /* upper case: one word of at most eight letters, or two
                          words, as "JOB SHOW" */
    uint16_t min_args; /* words, those of the name included */
    uint16_t max_args;
    uint8_t roles;       /* enum lk_roles */
    enum lk_place place; /* where it goes first */
    bool alone;          /* it starts when nothing else of its connection is in
                            progress, and what follows waits for its reply */
    bool claims;         /* counted as a claim, by its verdict */
    bool responds; /* its arguments are a response to be stored, which shares
                      their bytes: lk_task.block */
    const char *usage; /* the words behind the name */

    /* LK_PLACE_HERE: all there is to do. It writes the reply. */
    void (*reply_here)(struct lk_conn *conn, const struct lk_slice *argv,
                       size_t argc);

    /* Loop thread: reads the words, which are the task's own, into task->args.
     * False: it has sent an error, and the command ends. */
    bool (*parse)(struct lk_conn *conn, struct lk_task *task,
                  const struct lk_slice *argv, size_t argc);
    /* The thread of its place: does the work and writes the reply to
     * task->text, or leaves it empty for `reply`. Not LK_OK: out of memory, the
     * text is incomplete. NULL: the batch, or the note, is all the work. */
    enum lk_status (*run)(struct lk_task *task, struct lk_store *store);
    /* Loop thread, when it is the task's turn and `text` is empty: writes the
     * reply to `out`. NULL: there is always a text. */
    enum lk_status (*reply)(struct lk_task *task, struct lk_buf *out);
    /* Loop thread: frees what task->args holds outside of the task. NULL: it
     * holds nothing. */
    void (*clear)(struct lk_task *task);
};

/* The rows of one group of commands; command.c has the list of all groups. */
struct lk_command_group {
    const struct lk_command *rows;
    size_t count;
};

#define LK_COMMAND_GROUP(name, table)                                          \
    const struct lk_command_group name = {(table),                             \
                                          sizeof(table) / sizeof((table)[0])}

extern const struct lk_command_group lk_operation_commands;
extern const struct lk_command_group lk_lookup_commands;
extern const struct lk_command_group lk_job_commands;
extern const struct lk_command_group lk_target_commands;
extern const struct lk_command_group lk_operator_commands;
extern const struct lk_command_group lk_number_commands;
extern const struct lk_command_group lk_health_commands;
extern const struct lk_command_group lk_session_commands;

/* How `reply_here` and `parse` begin. */
#define LK_REPLY_HERE(name)                                                    \
    static void reply_##name(struct lk_conn *conn,                             \
                             const struct lk_slice *argv, size_t argc)
#define LK_PARSE(name)                                                         \
    static bool parse_##name(struct lk_conn *conn, struct lk_task *task,       \
                             const struct lk_slice *argv, size_t argc)

/* False: not now, the same command has to be run again later. */
bool lk_command_run(struct lk_conn *conn, const struct lk_slice *argv,
                    size_t argc);

/* The first words of all commands, as COMMAND and INFO show them. */
struct lk_command_word {
    char name[9];
    uint16_t min_args; /* of all its rows */
    uint16_t max_args;
};

/* Word `index`, which is also its index in lk_metrics; NULL past the end. */
const struct lk_command_word *lk_command_word(size_t index);

/* ---- Arguments ----------------------------------------------------------- */

/* An event of one operation: CLAIM, COMPLETE, RESOLVE, ACCEPT, AWAIT ... */
struct lk_event_args {
    struct lk_op op;
    struct lk_call call;      /* ACCEPT, ENQUEUE: op.call points to it */
    uint64_t wait_ms;         /* CLAIM with WAIT, and AWAIT; else 0 */
    struct lk_slice await_id; /* AWAIT, and not empty there; else empty */
};

/* JOB RETRY, DROP, AGAIN, DELIVERED and TARGET PAUSE, RESUME. */
struct lk_action_args {
    struct lk_job_action action; /* with its result, once it is back */
    enum lk_status failure;      /* of the whole job batch */
    const char *error;           /* the store's sentence about it, or NULL */
};

/* TARGET PROBE. The courier's until it calls `done`. */
struct lk_probe_args {
    struct lk_probe_request request;
    struct lk_returns *returns;
};

/* Named by what they are; `command` says which one it is. */
union lk_args {
    struct lk_event_args event;
    struct lk_name lookup; /* LOOKUP */
    struct {
        struct lk_slice tenant; /* empty: any */
        uint64_t number;        /* of the operation */
    } find;
    struct lk_list_query list; /* LIST, and EXPORT */
    struct lk_audit_query audit;
    struct lk_jobs_query jobs;
    uint64_t job_id; /* JOB SHOW */
    struct {
        struct lk_slice only; /* empty: all */
        struct lk_targets_view *view;
    } targets; /* TARGET STATUS */
    struct lk_action_args action;
    struct lk_probe_args probe;
    struct {
        struct lk_slice path;
        struct lk_long_work *progress;
    } backup;
    struct {
        struct lk_long_work *progress;
    } verify;
};

/* ---- Tasks --------------------------------------------------------------- */

/* Who asks, and why, in an operator's command. */
struct lk_signature {
    struct lk_slice who;
    struct lk_slice why;
    struct lk_slice peer; /* lk_rights_peer_text */
    char who_text[LK_WHO_MAX + 1];
    char peer_text[128];
};

/*
 * What the audit log gets before the reply of a task is sent: a backup, an
 * export, or the operation or job whose bodies an operator sees.
 */
struct lk_note {
    struct lk_audit_entry entry;
    struct lk_buf bytes;        /* of its action and name */
    struct lk_slice log_action; /* for the log; constant, or in `bytes` */
    char about[272];            /* more of the line in the log, as "job=7" */
    bool for_reply; /* of no use without the reply: not written if the client
                       has left */
    bool written;   /* the store has been asked; then `status` is set */
    enum lk_status status;
    const char *refusal; /* the reply's sentence if it cannot be written */
};

struct lk_task {
    /* Constant once made: */
    const struct lk_command *command; /* NULL: a reply that waits its turn */
    uint64_t started_ns;
    size_t room;   /* bytes behind the task */
    size_t copied; /* bytes of the arguments, wherever they are */
    int fd;        /* of `conn`; open while not gone, under the mutex of
                      lk_returns */
    uint8_t proto;

    /* The loop thread's; others may read `at` of a task that they have: */
    enum lk_place at;       /* where it is, or in the queue to which place */
    struct lk_conn *conn;   /* NULL: the client has left */
    struct lk_task *after;  /* on its connection: later command, or await */
    struct lk_task *before; /* awaits only */
    uint64_t deadline_ms;   /* of one that waits */
    size_t size;            /* bytes, for the queue's account */
    uint8_t rounds;         /* loads in vain */
    bool counted;           /* in server->queued_* */
    bool ready;             /* the reply can be written */
    bool waited;            /* was parked */
    bool final;             /* not to be parked again */
    bool settled;           /* await: to be pushed right after QUEUED */
    bool queued;            /* await: QUEUED has been written */
    struct lk_waiter waiter;

    /* Of the thread that has the task, which changes under a queue's mutex: */
    struct lk_task *next;    /* in a queue */
    uint64_t again_until_ns; /* BATCH: given again until then; 0: never yet */
    bool bodies;             /* LOOKUP, FIND, JOBS, JOB SHOW: with headers and
                                bodies; with a signature, after a note */
    enum lk_status status;   /* of `run` */
    struct lk_buf text;      /* a reply made before its turn */
    struct lk_note *note;    /* NULL: none */
    struct lk_signature *signature; /* NULL: not an operator's command */
    struct lk_stored *block; /* of `responds`: the bytes of the arguments, later
                                shared with the cache; NULL: they are here */
    union lk_args args;

    atomic_bool gone; /* conn is NULL, for all threads: no one reads a reply */
    char bytes[];
};

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

/* Makes a task with copies of the words; `own` gets these. Not on a
 * connection's list yet. NULL: out of memory. */
struct lk_task *lk_task_make(struct lk_conn *conn,
                             const struct lk_command *command,
                             const struct lk_slice *argv, size_t argc,
                             struct lk_slice *own);
/* A reply that waits its turn; its text is written by the caller. */
struct lk_task *lk_task_make_text(struct lk_conn *conn);
void lk_task_free(struct lk_server *server, struct lk_task *task);

/* A counted task takes room in the queue, whose bounds are settings. */
void lk_task_count(struct lk_server *server, struct lk_task *task);
void lk_task_uncount(struct lk_server *server, struct lk_task *task);
/* Its bytes have changed: the account follows. */
void lk_task_weigh(struct lk_server *server, struct lk_task *task);

/* ---- To another thread and back ------------------------------------------ */

/* Loop thread: the one way to another thread. The task must not be touched
 * until it comes back through `lk_returns`. */
void lk_task_send(struct lk_server *server, struct lk_task *task,
                  enum lk_place place);
/* Loop thread, at the end of a turn: the queues go to their threads. */
void lk_task_hand_over(struct lk_server *server);
/* The thread of the task's place: does its work. */
void lk_task_run(struct lk_task *task, struct lk_store *store);
/* Loop thread: a task is back. */
void lk_task_returned(struct lk_server *server, struct lk_task *task);

/* Tasks and settled operations that other threads hand to the loop. */
struct lk_returns {
    uv_mutex_t mutex;
    uv_async_t async;
    struct lk_task_queue tasks;
    struct lk_hash128 *settled;
    size_t settled_count;
    size_t settled_cap;
    bool settle_all; /* as in struct lk_batch */
    bool queued;     /* also: the courier is to be woken */
};

/*
 * Any thread: the one way back. Takes all of `tasks`, and copies what settled
 * in `batch` (NULL: nothing). The loop looks at tasks first, then at what
 * settled: a claim that got INFLIGHT in a batch is parked before the same or a
 * later batch can wake it.
 */
void lk_returns_give(struct lk_returns *returns, struct lk_task_queue *tasks,
                     const struct lk_batch *batch);
/* The same for one task. */
void lk_returns_give_one(struct lk_returns *returns, struct lk_task *task);

/* May the op begin an operation, which its client has to hold then? */
static inline bool lk_op_begins(const struct lk_op *op)
{
    return (op->event == LK_EVENT_CLAIM && !op->no_new) ||
           op->event == LK_EVENT_ACCEPT;
}

/* The first word behind UNAVAILABLE if only one operation is concerned: the
 * store can decide others, and another daemon of the store would reply the
 * same. */
#define LK_RECORD "RECORD "

#define LK_CLIENT_LEFT "the client has closed the connection: nothing was begun"

/*
 * Has the client closed the connection? Then no one will hold what a claim
 * begins. False for a client that only shut down its sending side: it still
 * reads. Over TCP a close looks the same as that, unless it is a reset; the
 * gateway sends a reset to a daemon that it leaves.
 */
bool lk_task_hung_up(int fd);
/* The same from another thread. */
bool lk_task_client_left(struct lk_returns *returns,
                         const struct lk_task *task);

#endif
