/*
 * config.h - the daemon's settings: from a file, from --set, or by default. The
 * daemon and the tool read them with the same code.
 *
 * To add a setting: a member of struct lk_config and one row in config_table.c
 * (of a target or route: a member in targets.h and one row in config_target.c).
 * Reading, printing, range check, reload and messages follow from the row. A
 * kind of value that does not exist yet is a parser and a printer in
 * config_value.c or config_target_value.c. Rules that concern several settings
 * are in config_check.c.
 *
 * The order at start and at each reload: lk_config_init, lk_config_load if
 * there is a file, lk_config_set for each option of the command line,
 * lk_config_check; lk_options_read does all of it.
 */
#ifndef LK_CONFIG_H
#define LK_CONFIG_H

#include "config/config_words.h"
#include "config/targets.h"
#include "latchkey.h"
#include "lib/number.h"
#include "store/store.h"

#include <sys/socket.h>

/* An address to listen on. Ready for bind(2), uv_tcp_bind and uv_pipe_bind. */
struct lk_listen {
    char *text;                      /* as it is in the configuration */
    char *path;                      /* of a unix socket; NULL: TCP */
    struct sockaddr_storage address; /* TCP; port 0 takes any free one */
    bool loopback; /* cannot be reached from another machine */
};

struct lk_user {
    char *name;
    enum lk_role role;
    char *password;      /* NULL until lk_config_check reads the file */
    char *password_file; /* NULL: the password was given itself */
    unsigned line;       /* of the file; 0: an option of the command line */
};

/* The process at the other end of a unix socket, as the kernel names it. */
struct lk_peer {
    bool known; /* false: TCP, or the kernel could not say; it has no role */
    int pid;    /* 0: of another PID namespace */
    uint32_t uid;
    uint32_t *groups; /* the first one is its primary group */
    size_t group_count;
};

/* A line of [peers]. */
struct lk_peer_rule {
    char *name; /* as written: a user, or "@" and a group */
    bool group;
    uint32_t id;
    unsigned roles; /* bits 1 << enum lk_role; 0: none */
};

/* Which layer a list of settings is from: a later one replaces it whole. */
enum lk_config_source {
    LK_CONFIG_DEFAULT,
    LK_CONFIG_FILE,
    LK_CONFIG_OPTION,
};

struct lk_named; /* config_table.h */

/* courier.enabled; auto: if there is a target or a gateway. */
enum lk_courier_when { LK_COURIER_AUTO, LK_COURIER_YES, LK_COURIER_NO };

/* Times are in milliseconds, sizes in bytes. 0 means off where noted. */
struct lk_config {
    /* [daemon] */
    struct lk_listen *listen;
    size_t listen_count;
    enum lk_config_source listen_source;
    uint64_t socket_mode; /* permissions of unix sockets, 0660 */
    char *store_url;
    uint64_t log_level; /* enum lk_log_level */

    /* [limits] */
    uint64_t connections;
    uint64_t
        unauthenticated; /* connections without a role; 0: a share of all */
    uint64_t auth_timeout_ms; /* until they have a role */
    uint64_t auth_delay_ms;   /* after wrong passwords, at most; 0: off */
    uint64_t idle_timeout_ms; /* without a command on a connection; 0: off */
    uint64_t
        client_timeout_ms;  /* too slow to send a command or to read replies */
    uint64_t client_bytes;  /* memory for all connections */
    uint64_t command_bytes; /* one command */
    uint64_t output_bytes;  /* replies waiting for one client */
    uint64_t queue_ops;     /* commands waiting for the store */
    uint64_t queue_bytes;
    uint64_t batch_ops;   /* commands made durable together */
    uint64_t cache_bytes; /* responses cached in memory; 0: off */
    uint64_t waiters;     /* parked WAIT and AWAIT */
    uint64_t disk_free;   /* HEALTH warns when less is free */

    /* [store] */
    uint64_t ttl_ms;
    uint64_t lock_ms;
    uint64_t max_ttl_ms;
    uint64_t max_lock_ms;
    uint64_t sweep_interval_ms;
    uint64_t clock_jump_ms;
    uint64_t checkpoint_pages;
    uint64_t cache_pages;
    uint64_t reap_rows;
    uint64_t strict; /* refuse a store that promises less than survival; 0, 1 */
    uint64_t
        accept_loss; /* accept a store that may lose what it acknowledged */
    uint64_t store_lanes;  /* connections to the server, a thread each */
    uint64_t store_pooler; /* 0, 1 */
    uint64_t store_notify; /* 0, 1 */
    uint64_t poll_ms; /* how often a waiting client's operation is read again */
    uint64_t store_timeout_ms;
    uint64_t store_connect_timeout_ms;
    uint64_t wait_replicas;
    uint64_t wait_timeout_ms;
    char *prefix;
    char *cache_url; /* NULL: none */
    uint64_t cache_timeout_ms;

    /* [courier] */
    uint64_t courier_enabled; /* enum lk_courier_when */
    uint64_t courier_only;    /* no data commands, no keeper; 0, 1 */
    char *gateway;            /* path of its internal socket; NULL: none */
    uint64_t gateway_timeout_ms;
    uint64_t gateway_concurrency;
    uint64_t gateway_attempts;
    uint64_t gateway_max_age_ms;
    uint64_t lease_ms;
    uint64_t grace_ms;    /* for running calls, while shutting down */
    uint64_t lease_batch; /* courier.batch: jobs leased at once at most */
    uint64_t answer_bytes;
    uint64_t request_bytes; /* of an ACCEPT */
    uint64_t probes;        /* the prober runs; 0, 1 */

    /* [target NAME] and [route NAME] */
    struct lk_targets targets;
    struct lk_named *named; /* where each setting of these was given */
    size_t named_count;

    /* [auth] and [users] */
    char *password; /* NULL: none is needed for the role `use` */
    char *password_file;
    struct lk_user *users;
    size_t user_count;

    /* [peers] */
    struct lk_peer_rule *peers;
    size_t peer_count;

    /* Where settings were given, for error messages. */
    char *file;      /* NULL: there was none */
    bool file_open;  /* every user of this machine may read it */
    unsigned *given; /* line of the file for each row of the table, or 0 */
};

/* Every setting at its default. LK_NOMEM: there is nothing to free. */
LK_MUST_CHECK enum lk_status lk_config_init(struct lk_config *config);
void lk_config_free(struct lk_config *config); /* overwrites passwords */

/*
 * Reads a file over what `config` holds. LK_INVALID: `errors` gets a line for
 * each mistake, "latchkeyd.conf:12: store.lock: ..."; LK_IO: it cannot be
 * read, `errors` says why. Either way only lk_config_free makes sense
 * afterwards.
 */
LK_MUST_CHECK enum lk_status lk_config_load(struct lk_config *config,
                                            const char *path,
                                            struct lk_buf *errors);

/*
 * One option of the command line, over what `config` holds: "store.lock=5s",
 * or apart "store.lock" and "5s". The first daemon.listen replaces those of
 * the file, the next ones are added. LK_INVALID: `errors` gets one line.
 */
LK_MUST_CHECK enum lk_status lk_config_set(struct lk_config *config,
                                           const char *assignment,
                                           struct lk_buf *errors);
LK_MUST_CHECK enum lk_status lk_config_set_value(struct lk_config *config,
                                                 const char *setting,
                                                 const char *value,
                                                 struct lk_buf *errors);

/*
 * Overwrites the value in "auth.password=...", "users.NAME=..." and of a
 * target's header or signing secret, and the password in the URL of a store
 * (any other assignment is left alone), for an argv that the whole machine can
 * read. Keep a copy of the argument for a reload.
 */
void lk_config_hide_secret(char *assignment);
/* Overwrites the password in "scheme://user:password@host" or in a connection
 * string; false: there is none. */
bool lk_url_mask(char *url);

/*
 * Checks the settings against each other and reads password files; called once,
 * after everything is set. LK_INVALID: `errors` gets a line for each mistake.
 * `warnings` gets a line for each thing that works but should be changed.
 */
LK_MUST_CHECK enum lk_status lk_config_check(struct lk_config *config,
                                             struct lk_buf *errors,
                                             struct lk_buf *warnings);

/*
 * A reload: takes every setting that may change while the daemon runs from
 * `fresh` (checked) into `running`, and gives the old value to `fresh`, which
 * the caller frees. `restart` gets a line for each setting that differs but
 * needs a restart: "daemon.store". What pointed into running->users or
 * running->password is invalid afterwards. LK_NOMEM: only `restart` is
 * incomplete.
 */
LK_MUST_CHECK enum lk_status lk_config_adopt(struct lk_config *running,
                                             struct lk_config *fresh,
                                             struct lk_buf *restart);

/* Does this daemon run a courier? */
bool lk_config_has_courier(const struct lk_config *config);

/* The settings that its store is opened with; texts belong to `config`. */
void lk_config_store(const struct lk_config *config,
                     struct lk_store_config *store);

/* All settings as a file that loads; passwords are left out. */
LK_MUST_CHECK enum lk_status lk_config_dump(const struct lk_config *config,
                                            struct lk_buf *out);

/* The value of a setting such as "store.lock" as text. LK_NOT_FOUND: there is
 * no such setting, or it is a secret. */
LK_MUST_CHECK enum lk_status lk_config_get(const struct lk_config *config,
                                           struct lk_slice setting,
                                           struct lk_buf *out);

/* ---- file and command line together
 * ----------------------------------------------------------- */

/* The command line's part, kept for the start and each reload. */
struct lk_options {
    const char *config_path;
    struct lk_option_value {
        char *setting;
        char *value;
    } * values;
    size_t count;
};

/* Settings by file and command line, checked. `errors` says why not. */
LK_MUST_CHECK enum lk_status lk_options_read(const struct lk_options *options,
                                             struct lk_config *config,
                                             struct lk_buf *errors,
                                             struct lk_buf *warnings);

/* ---- config_access.c
 * -------------------------------------------------------------- */

/* Is the name "default", or in [users]? */
bool lk_config_has_user(const struct lk_config *config, struct lk_slice name);

/*
 * The role that a name and a password give; LK_ROLE_NONE if they are wrong.
 * The name "default" or none asks for the role `use` by auth.password. Takes
 * the same time for a wrong password wherever it differs.
 */
enum lk_role lk_config_login(const struct lk_config *config,
                             struct lk_slice name, struct lk_slice password);
/* The role of a connection that has not said AUTH. */
enum lk_role lk_config_initial_role(const struct lk_config *config);
/* Would a login by that name, which was valid by `before`, still be valid and
 * give the same role? */
bool lk_config_same_login(const struct lk_config *before,
                          const struct lk_config *after, struct lk_slice name);

/* The roles, as bits 1 << enum lk_role, that a peer has without AUTH: those of
 * its lines in [peers]. Root and the daemon's own user have use and operate,
 * unless they have a line of their own. */
unsigned lk_config_peer_roles(const struct lk_config *config,
                              const struct lk_peer *peer);
/* The name of a user in [peers], or "root"; NULL: [peers] does not name it. */
const char *lk_config_peer_name(const struct lk_config *config, uint32_t uid);

#endif
