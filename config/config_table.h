/* config_table.h - the table of settings, as config*.c share it. */
#ifndef LK_CONFIG_TABLE_H
#define LK_CONFIG_TABLE_H

#include "config/config.h"
#include "lib/number.h"

#include <sys/un.h>

struct lk_setting;

/* One setting that is given a value. */
struct lk_assignment {
    struct lk_config *config;
    void *base; /* what offsets count from: `config`, a target or a route */
    const struct lk_setting *setting;
    const char
        *name; /* differs from the setting's own in [users] and [peers] */
    const char *value;
    const char *shown; /* the value as it was written, before substitution, for
                          messages */
    enum lk_config_source source;
    unsigned line; /* of the file; 0: it is not from there */
};

/* A kind of value: how it is read and printed. */
struct lk_setting_kind {
    /* LK_INVALID: `why` gets a sentence that names the value, unless it is a
     * secret, and what is accepted. */
    enum lk_status (*parse)(const struct lk_assignment *assignment,
                            struct lk_buf *why);
    /* As it is written in a file. NULL: it is a secret. */
    enum lk_status (*print)(const void *base, const struct lk_setting *setting,
                            struct lk_buf *out);
    bool repeats; /* may be in a file several times */
};

extern const struct lk_setting_kind lk_kind_count;
extern const struct lk_setting_kind lk_kind_size;
extern const struct lk_setting_kind lk_kind_duration;
extern const struct lk_setting_kind lk_kind_mode;
extern const struct lk_setting_kind lk_kind_level;
extern const struct lk_setting_kind lk_kind_url;
extern const struct lk_setting_kind lk_kind_cache;
extern const struct lk_setting_kind lk_kind_switch;
extern const struct lk_setting_kind lk_kind_when;
extern const struct lk_setting_kind lk_kind_socket;
extern const struct lk_setting_kind lk_kind_prefix;
extern const struct lk_setting_kind lk_kind_path;
extern const struct lk_setting_kind lk_kind_secret;
extern const struct lk_setting_kind lk_kind_listen;
extern const struct lk_setting_kind lk_kind_user;
extern const struct lk_setting_kind lk_kind_peer;

struct lk_setting {
    const char *section;
    const char *name; /* "*": any, the section is a list of names */
    const struct lk_setting_kind *kind;
    size_t offset;       /* of a uint64_t or char *, from the base on */
    size_t size;         /* of what a reload swaps, from `offset` on */
    const char *initial; /* the default, as it is written; NULL: none */
    uint64_t min, max;   /* numbers */
    bool reload;         /* may change while the daemon runs */
};

extern const struct lk_setting lk_settings[];
extern const size_t lk_setting_count;

/* NULL: there is none. */
const struct lk_setting *lk_setting_find(struct lk_slice section,
                                         struct lk_slice name);
/* The setting of the table that was probably meant, or NULL. */
const struct lk_setting *lk_setting_nearest(const struct lk_setting *table,
                                            size_t count, const char *section,
                                            const char *name);

/* ---- config_target.c: [target NAME] and [route NAME] --------------------- */

extern const struct lk_setting lk_target_settings[];
extern const size_t lk_target_setting_count;
extern const struct lk_setting lk_route_settings[];
extern const size_t lk_route_setting_count;

enum { LK_NAMED_SETTINGS = 48 }; /* at most, of a target or a route */

/* A section of the file that has a name, beside the target or route itself. */
struct lk_named {
    bool is_route;
    size_t index; /* in config->targets */
    struct {
        unsigned line; /* of the file; 0: an option of the command line */
        enum lk_config_source source;
        char *written; /* as it was given, before substitution; NULL:
                          not given. Several: a line each */
    } given[LK_NAMED_SETTINGS];
};

/* Is it "target NAME" or "route NAME", or with an option "target" or "route"?
 */
bool lk_named_section(const char *section);
/* As the sections of the table are assigned. `name` is "NAME.setting" for an
 * option. */
LK_MUST_CHECK enum lk_status lk_named_assign(struct lk_config *config,
                                             const char *section,
                                             const char *name,
                                             const char *value,
                                             enum lk_config_source source,
                                             unsigned line, struct lk_buf *why);
LK_MUST_CHECK enum lk_status lk_named_dump(const struct lk_config *config,
                                           struct lk_buf *out);
void lk_named_clear(struct lk_config *config);
/* Sets defaults that depend on other settings. A line for each setting that is
 * missing or contradicts another; *bad: there is one. */
LK_MUST_CHECK enum lk_status lk_named_check(struct lk_config *config,
                                            struct lk_buf *errors,
                                            struct lk_buf *warnings, bool *bad);

/* Replaces ${file:PATH} and ${env:NAME}. LK_INVALID: `why` says which one
 * cannot be read. The text may be a secret. */
LK_MUST_CHECK enum lk_status lk_substitute(const char *value, char **text,
                                           struct lk_buf *why);
bool lk_substitutes(const char *value);

extern const struct lk_setting_kind lk_kind_target_url;
extern const struct lk_setting_kind lk_kind_header;
extern const struct lk_setting_kind lk_kind_header_name;
extern const struct lk_setting_kind lk_kind_statuses;
extern const struct lk_setting_kind lk_kind_rate;
extern const struct lk_setting_kind lk_kind_provider_id;
extern const struct lk_setting_kind lk_kind_sign;
extern const struct lk_setting_kind lk_kind_http;
extern const struct lk_setting_kind lk_kind_file;
extern const struct lk_setting_kind lk_kind_probe;
extern const struct lk_setting_kind lk_kind_list_pointer;
extern const struct lk_setting_kind lk_kind_scope;
extern const struct lk_setting_kind lk_kind_tenant;
extern const struct lk_setting_kind lk_kind_target_name;
extern const struct lk_setting_kind lk_kind_rollback;

/* For parsers: LK_INVALID (or LK_NOMEM) with a sentence in `why`; with the
 * value in quotes and `text` behind it; the value taken as it is; and a text
 * printed. */
LK_MUST_CHECK enum lk_status lk_value_refuse(struct lk_buf *why,
                                             const char *format, ...)
    __attribute__((format(printf, 2, 3)));
LK_MUST_CHECK enum lk_status lk_value_invalid(struct lk_buf *why,
                                              const char *value,
                                              const char *text);
LK_MUST_CHECK enum lk_status lk_value_take(
    const struct lk_assignment *assignment);
LK_MUST_CHECK enum lk_status lk_value_print(const void *base,
                                            const struct lk_setting *setting,
                                            struct lk_buf *out);

/* The longest path of a socket, with its NUL. */
#define LK_SOCKET_PATH sizeof(((struct sockaddr_un *)0)->sun_path)

LK_MUST_CHECK enum lk_status lk_duration_print(struct lk_buf *out, uint64_t ms);

void lk_listen_clear(struct lk_config *config);
void lk_users_clear(struct lk_config *config);
void lk_peers_clear(struct lk_config *config);
LK_MUST_CHECK enum lk_status lk_peers_dump(const struct lk_config *config,
                                           struct lk_buf *out);
/* Overwrites and frees; NULL is fine. */
void lk_secret_free(char *secret);

/*
 * The first line of a password file, which must not be empty. LK_INVALID:
 * `why` gets a sentence that names the file. `world_readable`: every user of
 * this machine may read it.
 */
LK_MUST_CHECK enum lk_status lk_secret_read(const char *path, char **secret,
                                            bool *world_readable,
                                            struct lk_buf *why);

#endif
