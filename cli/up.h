/* up.h - what the parts of `latchkey up` share. */
#ifndef LK_UP_H
#define LK_UP_H

#include "cli/cli.h"

#include <sys/socket.h>
#include <sys/types.h>

enum lk_up_scheme {
    LK_UP_HTTP,
    LK_UP_HTTPS,
    LK_UP_FASTCGI,
    LK_UP_UWSGI,
    LK_UP_SCGI,
};

/* Where the app is. */
struct lk_up_app {
    const char *given; /* as on the command line */
    char *shown;       /* as a URL, for people */
    enum lk_up_scheme scheme;
    char *pass;   /* the argument of proxy_pass or its like */
    char *script; /* of fastcgi:, or NULL */
    char *host;   /* NULL: a unix socket */
    unsigned port;
    char *socket;      /* its path, or NULL */
    bool is_localhost; /* by that name; `host` is the address that was chosen */
};

/* Where clients send their requests. */
struct lk_up_listen {
    char *host;    /* NULL for a unix socket; [..] around IPv6 */
    unsigned port; /* of `host` */
    char *path;    /* of the unix socket, or NULL */
};

/* Files, all with absolute paths. Those in `folder` are up's own. */
struct lk_up_files {
    char *folder;
    char *lock;
    char *config;
    char *socket;   /* of the daemon */
    char *pid;      /* of nginx */
    char *requests; /* nginx's log of requests */
    char *nginx_log;
    char *daemon_log;
    char *temporary; /* folder for bodies that do not fit into memory */
    char *store;     /* path of the SQLite file; NULL: on a server */
    char *store_url;
    char *secret;    /* key of hashed tenants, beside the file */
    char *courier;   /* socket by which accepted requests come back */
    char *running;   /* link to the folder, for profiles; NULL: no home */
    char *self;      /* how to call this very program again */
    char *latchkeyd; /* NULL: not found, as the two below */
    char *nginx;
    char *module;
    char *authorities; /* trusted certificates, for https: */
};

struct lk_up {
    struct lk_cli *cli;
    struct lk_up_app app;
    struct lk_up_listen listen;
    const char *tenant; /* NULL: the credential that a request carries */
    bool plain;         /* the tenant is stored as it is */
    const char *mode;
    const char *path; /* of the app, for the first request */
    bool async;       /* Prefer: respond-async gets 202 */
    struct lk_up_files files;
    int lock_fd;
    struct lk_buf url; /* where to send requests, for people */
    bool announced;    /* it is a profile of the tool */
};

/* ---- Values of the command line (up.c) -----------------------------
 */

/* All of these complain and give LK_EXIT_USAGE. */
LK_MUST_CHECK enum lk_exit lk_up_read_app(struct lk_up *up, const char *text);
LK_MUST_CHECK enum lk_exit lk_up_read_listen(struct lk_up *up,
                                             const char *text);
LK_MUST_CHECK enum lk_exit lk_up_read_tenant(struct lk_up *up,
                                             const char *text);
LK_MUST_CHECK enum lk_exit lk_up_read_mode(struct lk_up *up, const char *text);
LK_MUST_CHECK enum lk_exit lk_up_read_path(struct lk_up *up, const char *text);
/* Checks that a path means itself in quotes in nginx's configuration; `what`
 * names it in the complaint. */
LK_MUST_CHECK enum lk_exit lk_up_check_path(const char *what, const char *path);

/* ---- Files and programs (up_files.c)
 * --------------------------------------
 */

/* Decides where everything is; changes nothing. */
LK_MUST_CHECK enum lk_exit lk_up_find_files(struct lk_up *up);
/* Complains about a program that was not found. */
LK_MUST_CHECK enum lk_exit lk_up_check_programs(const struct lk_up *up);
/* Makes the folder, locks it, and puts into it what a start needs. */
LK_MUST_CHECK enum lk_exit lk_up_make_files(struct lk_up *up);
/* Makes the link by which the tool finds this one, see lk_running_folder, and
 * removes it. False: the tool needs --server. */
bool lk_up_announce(const struct lk_up *up);
void lk_up_withdraw(const struct lk_up *up);
/* Removes what only a running `up` needs. */
void lk_up_remove_files(struct lk_up *up);
void lk_up_free(struct lk_up *up);

/* ---- Texts (up_config.c) ------------------------------------
 */

void lk_up_put_config(const struct lk_up *up, struct lk_buf *out);
void lk_up_put_banner(const struct lk_up *up, struct lk_buf *out);
/* What a refused request lacks: its tenant, else its key; for a terminal of 80
 * columns. */
void lk_up_put_hint(const struct lk_up *up, bool tenant, struct lk_buf *out);
/* A word of a shell command. */
void lk_up_put_word(struct lk_buf *out, const char *word);
/* The words after `latchkeyd`, each in memory of its own; NULL ends them. */
enum { LK_UP_DAEMON_WORDS = 8 };
void lk_up_daemon_words(const struct lk_up *up,
                        char *words[LK_UP_DAEMON_WORDS]);

/* ---- Logs (up_run.c) -----------------------------------------------------
 */

/* A log that grows while it is read. Start it as {.fd = -1}. */
struct lk_up_log {
    int fd;
    const char *name;   /* printed before each line; NULL: log of requests */
    struct lk_buf rest; /* a line that is not whole yet */
    off_t seen;
    off_t freed; /* up to here the disk space was given back */
    struct lk_table table;
    const struct lk_up *up; /* of the log of requests, for hints */
    unsigned hinted;        /* a bit for each hint that was given */
    bool unreached;         /* nginx could not reach the app, see there */
    bool holds;             /* it is the daemon's: see `held` and `ready` */
    struct lk_buf held;     /* lines that matter only if the daemon fails */
    bool ready;             /* the daemon has said so */
};

LK_MUST_CHECK enum lk_exit lk_up_log_open(struct lk_up_log *log,
                                          const char *path);
/* Appends some of what is new, for people: requests to `out`, the rest to
 * `err`. False: there was nothing. */
bool lk_up_log_read(struct lk_up_log *log, struct lk_buf *out,
                    struct lk_buf *err);
/* Appends what was not worth showing as long as all went well. */
void lk_up_log_show_held(struct lk_up_log *log, struct lk_buf *err);
void lk_up_log_close(struct lk_up_log *log);

/* ---- The app (up.c) --------------------------------------------------
 */

struct lk_up_watch {
    const struct lk_up_app *app;
    struct sockaddr_storage address;
    socklen_t length;
    bool known;      /* the address is */
    bool asking;     /* until the app is there */
    bool missing;    /* the user was warned */
    bool misled;     /* the user was warned that it is at the other localhost */
    int fd;          /* a connection that begins, or -1 */
    int64_t next_ms; /* when to ask again */
    int64_t until_ms; /* how long to wait for `fd` */
};

/* The address by which an app at localhost is reached. */
const char *lk_up_localhost(unsigned port);
void lk_up_watch_start(struct lk_up_watch *watch, const struct lk_up *up);
/* To be called now and then; complains when the app is missing, and says when
 * it is there. */
void lk_up_watch_step(struct lk_up_watch *watch);
/* A request has not reached it: asks again. */
void lk_up_watch_doubt(struct lk_up_watch *watch);
void lk_up_watch_stop(struct lk_up_watch *watch);

/* ---- Processes (up_run.c) ------------------------------------------------
 */

/* Is the address free? Complains if not (up.c). */
LK_MUST_CHECK enum lk_exit lk_up_check_address(const struct lk_up *up);
/* Runs daemon and nginx until a signal comes or one of them ends. */
LK_MUST_CHECK enum lk_exit lk_up_run(struct lk_up *up);

#endif
