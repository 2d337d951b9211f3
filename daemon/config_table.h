/* config_table.h - the table of settings, as config*.c share it. */
#ifndef LK_CONFIG_TABLE_H
#define LK_CONFIG_TABLE_H

#include "daemon/config.h"

#include <sys/un.h>

struct lk_setting;

/* A setting about to be changed. */
struct lk_assignment {
    struct lk_config *config;
    const struct lk_setting *setting;
    const char *name; /* differs from the setting's own in [users] only */
    const char *value;
    enum lk_config_source source;
};

/* What a kind of value can do. */
struct lk_setting_kind {
    /* LK_INVALID: `why` gets a sentence that names the value, unless it is a
     * secret, and what is accepted. */
    enum lk_status (*parse)(const struct lk_assignment *assignment,
                            struct lk_buf *why);
    /* As it is written in a file. NULL: a secret. */
    enum lk_status (*print)(const struct lk_config *config,
                            const struct lk_setting *setting,
                            struct lk_buf *out);
    bool repeats; /* may stand in a file several times */
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

struct lk_setting {
    const char *section;
    const char *name; /* "*": any, the section is a list of names */
    const struct lk_setting_kind *kind;
    size_t offset;       /* of a uint64_t or char * in struct lk_config */
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
/* The setting that was probably meant, or NULL. */
const struct lk_setting *lk_setting_nearest(const char *section,
                                            const char *name);

/* Numbers up to this are exact in every language that reads them. */
#define LK_CONFIG_MAX ((UINT64_C(1) << 53) - 1)

/* A path must fit into a socket's address, with its NUL. */
#define LK_SOCKET_PATH sizeof(((struct sockaddr_un *)0)->sun_path)

LK_MUST_CHECK enum lk_status lk_duration_print(struct lk_buf *out, uint64_t ms);

void lk_listen_clear(struct lk_config *config);
void lk_users_clear(struct lk_config *config);
/* Overwrites and frees; NULL is fine. */
void lk_secret_free(char *secret);

/*
 * The first line of a password file, which must not be empty. LK_INVALID:
 * `why` gets a sentence that names the file. `everybody` tells whether
 * everybody on this machine may read it.
 */
LK_MUST_CHECK enum lk_status lk_secret_read(const char *path, char **secret,
                                            bool *everybody,
                                            struct lk_buf *why);

#endif
