/*
 * conn.h - connections: what one is, what it may take, and how its replies are
 * written. The life of a connection is in conn.c. All of it belongs to the loop
 * thread.
 */
#ifndef LK_CONN_H
#define LK_CONN_H

#include "config/config.h"
#include "daemon/task.h"
#include "lib/resp.h"

#include <uv.h>

enum {
    LK_READ_CHUNK = 64 * 1024,
    LK_TURN_MS = 100, /* of one that is read from though memory is short */
    LK_WAIT_MAX_MS = 10 * 60 * 1000,
    LK_STOP_BOUND_MS = 10 * 1000,
    LK_READER_SHARE = 16, /* tasks of one connection with the reader */
    LK_ADDRESS_TEXT = 128,
    LK_CLIENT_NAME = 64,
    LK_PEER_USER = 64,
    LK_PEER_TEXT = LK_ADDRESS_TEXT, /* either of an address or of a user */
};

struct lk_server;

/* ---- Connections --------------------------------------------------------- */

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

/* `bytes` have moved: for how long has that been too slow? */
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

    struct lk_resp_parser parser;
    struct lk_buf in; /* from in_start on: received, not yet run */
    size_t in_start;
    struct lk_pace sending; /* of the command that input ends within */
    uint64_t read_ns;       /* when the input being run was read */
    uint64_t looked_ns;     /* read_ns of the input that hung_up is about */
    bool hung_up;           /* the client had closed the connection */
    struct lk_buf out;      /* complete replies, not yet handed to the kernel */
    struct lk_buf writing;  /* being written by uv_write */
    uv_write_t write;
    struct lk_pace taking; /* of `writing` */
    size_t held_bytes;     /* its part of server->held_bytes */

    struct lk_task *head; /* commands without a reply yet, in order */
    struct lk_task *tail;
    struct lk_task *awaits;       /* have got QUEUED, not yet pushed */
    enum lk_place place;          /* of the commands in the list */
    size_t in_reader;             /* of these, at most LK_READER_SHARE */
    struct lk_task_queue to_load; /* decided, waiting for a place there */

    bool reading;
    bool dirty;
    bool runnable;
    bool closing;
    bool hold;    /* a WAIT, or a command that runs alone, holds up what
                     follows */
    bool stuck;   /* input is left that could not be run yet */
    bool partial; /* input ends within a command */
    bool quit;    /* close when every reply is sent */
    bool eof;     /* nothing more will come; run what has */
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
    uint64_t active_ms; /* when it was last read from, replied or written to */
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
 * nothing left to run and to send. */
void lk_conn_flush(struct lk_conn *conn);
void lk_conn_stop_reading(struct lk_conn *conn);
void lk_conn_start_reading(struct lk_conn *conn);
/* Runs no further command, and closes once all that were begun have their
 * replies. A claim that waits has not been decided: it is dropped. */
void lk_conn_finish(struct lk_conn *conn);

/* Puts a task at the end of the list of commands without a reply. */
void lk_conn_push(struct lk_conn *conn, struct lk_task *task);
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

/* rights.c: is a password to be judged now? False: it has to wait
 * (conn->again), or has been refused with an error. */
bool lk_auth_check_turn(struct lk_conn *conn, struct lk_slice user);
/* It has been judged. */
void lk_auth_judged(struct lk_conn *conn, struct lk_slice user, bool right);
/* The log gets the failures that it does not have yet, once a minute. */
void lk_auth_log_failures(struct lk_server *server, uint64_t now_ms);

#endif
