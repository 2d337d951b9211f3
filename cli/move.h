/*
 * move.h - what export and import share: lines of JSON, one object each.
 *
 * The first line says what the file is and where it comes from, then come
 * operations (of the type "record"), then audit entries; the last line has
 * their counts, so that a file that was cut is noticed. A member that is 0 or
 * empty is left out. Bytes that are UTF-8 are written as text, others as base64
 * under NAME_base64.
 */
#ifndef LK_MOVE_H
#define LK_MOVE_H

#include "cli/cli.h"
#include "config/config.h"
#include "store/store.h"

enum { LK_EXPORT_VERSION = 1 };

#define LK_LINE_MAP(X)                                                         \
    X(BEGIN, "latchkey-export")                                                \
    X(OPERATION, "record")                                                     \
    X(AUDIT, "audit")                                                          \
    X(END, "end")

enum lk_line_type {
#define X(name, word) LK_LINE_##name,
    LK_LINE_MAP(X)
#undef X
        LK_LINE_TYPES
};

/* One line; only what belongs to its type has a meaning. */
struct lk_line {
    enum lk_line_type type;
    struct lk_line_begin {
        uint64_t version;
        struct lk_slice store;            /* "sqlite" */
        struct lk_slice reference_secret; /* hexadecimal digits */
        uint64_t last_token;
        uint64_t operations; /* about as many will come */
        uint64_t now_ms;     /* the store's clock */
    } begin;
    struct lk_operation operation;
    struct lk_response
        response; /* of a completed operation, if it was stored; no status */
    struct lk_audit_entry audit;
    struct lk_line_end {
        uint64_t operations;
        uint64_t audit;
    } end;
    struct lk_buf bytes; /* what the slices of a line that was read point to */
};

void lk_line_free(struct lk_line *line);
/* Appends the line, with its newline. */
void lk_line_write(struct lk_buf *out, const struct lk_line *line);
/* LK_MALFORMED: `wrong` says what, "the member \"x\" ...". The line may have
 * been used before. */
LK_MUST_CHECK enum lk_status lk_line_read(struct lk_slice text,
                                          struct lk_line *line,
                                          struct lk_buf *wrong);
/* The same from a flat list of the daemon's; its names have dashes. */
void lk_line_take(struct lk_line *line, enum lk_line_type type,
                  const struct lk_reply *list);

/* A file of lines, read one by one (move_lines.c). */
struct lk_lines {
    int fd;
    const char *title; /* for messages */
    struct lk_buf buf;
    size_t start;    /* of what has not been given yet */
    size_t searched; /* so far there is no newline */
    uint64_t number; /* of the line given last */
    uint64_t done;   /* bytes */
    uint64_t total;  /* 0: not known */
    bool at_end;
};

/* "-" is standard input. These complain unless they return LK_EXIT_DONE. */
LK_MUST_CHECK enum lk_exit lk_lines_open(struct lk_lines *lines,
                                         const char *path);
/* The next line; *more is false at the end. */
LK_MUST_CHECK enum lk_exit lk_lines_next(struct lk_lines *lines,
                                         struct lk_line *line, bool *more);
void lk_lines_close(struct lk_lines *lines);

/* The members of a line, by its type; a NULL name ends it (move_lines.c). */
enum lk_field_kind {
    LK_FIELD_BYTES,  /* struct lk_slice */
    LK_FIELD_NUMBER, /* uint64_t */
    LK_FIELD_STATUS, /* unsigned */
    LK_FIELD_FLAG,   /* bool */
    LK_FIELD_STATE,  /* enum lk_state, as its word */
};

struct lk_field_row {
    const char *name; /* as on the wire; in JSON with '_' for '-' */
    enum lk_field_kind kind;
    bool needed;
    size_t offset; /* in struct lk_line */
    uint64_t most; /* bytes, or the number itself */
};

extern const struct lk_field_row *const lk_line_fields[LK_LINE_TYPES];
extern const char *const lk_line_words[LK_LINE_TYPES];

static inline void *lk_line_field(const struct lk_line *line,
                                  const struct lk_field_row *row)
{
    return (char *)line + row->offset;
}

/* ---- Stores, opened by the tool itself (store_admin.c)
 * ------------------------ */

#define LK_OPTION_SET                                                          \
    {                                                                          \
        "set", "NAME=VALUE",                                                   \
            "a setting of the store, as in latchkeyd.conf:\n"                  \
            "connections=1 (may be repeated)"                                  \
    }

/* The URL: a word, else --store, else LATCHKEY_STORE. NULL: none was given. */
const char *lk_store_url(const struct lk_cli *cli);
/* What latchkeyd would read from --config and --set, and refuse. `url` is the
 * store, or NULL: that of --config, else that of lk_store_url. Complains unless
 * it returns LK_EXIT_DONE; `settings`, whose store_url was taken and which
 * `config` points into, is freed by the caller in either case. */
LK_MUST_CHECK enum lk_exit lk_store_settings(struct lk_cli *cli,
                                             const char *url,
                                             struct lk_config *settings,
                                             struct lk_store_config *config);
/* Complains unless it returns LK_EXIT_DONE. */
LK_MUST_CHECK enum lk_exit lk_store_connect(struct lk_cli *cli, const char *url,
                                            struct lk_store_config *config,
                                            struct lk_store **store);
/* A sentence about a call on a store that failed. */
enum lk_exit lk_complain_store(enum lk_status status, const char *doing);
bool lk_url_is(const char *url, const char *scheme);
/* Makes or updates what the store needs on its server (store_admin.c). */
LK_MUST_CHECK enum lk_exit lk_migrate_store(struct lk_cli *cli,
                                            const char *url);

#endif
