/* resp.h - the Redis protocol (RESP): commands and replies, read and written.
 */
#ifndef LK_RESP_H
#define LK_RESP_H

#include "latchkey.h"

struct lk_resp_limits {
    size_t args;    /* words in one command */
    size_t bulk;    /* bytes in one word */
    size_t command; /* bytes in one command, framing included */
};

/*
 * Progress within one command, so that a command that arrives byte by byte
 * is not read from its start each time. Start it as {0}.
 */
struct lk_resp_parser {
    size_t offset;  /* first byte of the command not yet looked at */
    long remaining; /* words still to come; 0: the header is not read yet */
    long bulk;      /* length of the current word; -1: not known yet */
    struct lk_slice *argv; /* offsets until the command is complete */
    size_t argc;
    size_t argv_cap;
    struct lk_buf words; /* of a command typed as a line, unquoted */
    char error[96];      /* ready for lk_resp_error: "ERR Protocol ..." */
};

enum lk_resp_result {
    LK_RESP_MORE,    /* the command is not complete */
    LK_RESP_COMMAND, /* argv, argc; drop `used` bytes, then parse on */
    LK_RESP_EMPTY,   /* an empty line or *0: drop `used` bytes, parse on */
    LK_RESP_BAD,     /* protocol error: reply with `error`, then close */
    LK_RESP_NOMEM,
};

/*
 * `input` begins with the current command and grows from call to call (it may
 * move). On COMMAND the slices of parser->argv point into `input` (those of an
 * inline command into the parser), good until the next call; `argc` is at
 * least 1, and the parser is ready for the next command. Memory taken depends
 * on what has arrived, never on what was announced. Inline commands (a line
 * of words, as typed into a terminal; quotes as redis-cli's) work too. After
 * BAD or NOMEM the connection is beyond repair.
 */
enum lk_resp_result lk_resp_parse(struct lk_resp_parser *parser,
                                  const struct lk_resp_limits *limits,
                                  struct lk_slice input, size_t *used);
void lk_resp_parser_free(struct lk_resp_parser *parser);

/* ---- Replies read (resp_reply.c) ----------------------------------------- */

enum { LK_RESP_DEPTH_MAX = 8 }; /* arrays inside each other */

/*
 * Replies (RESP2) as they arrive on a connection. Start it as {0}; free it with
 * lk_resp_reader_free.
 *
 *   lk_resp_reader_room   where the next bytes may be put
 *   lk_resp_reader_fill   how many bytes were put there
 *   lk_resp_reader_next   the next reply, or LK_AGAIN
 *
 * Memory taken depends on what has arrived, never on what was announced.
 */
struct lk_resp_reader {
    struct lk_buf in;
    size_t start;           /* the current reply begins there in `in` */
    size_t at;              /* the next element of it begins there */
    size_t need;            /* reading goes on when there are as many bytes */
    struct lk_reply *nodes; /* elements so far, in the order of arrival */
    size_t count;
    size_t cap;
    size_t open[LK_RESP_DEPTH_MAX]; /* elements that each open array lacks */
    size_t depth;                   /* arrays that are open */
    bool nested;                    /* an array is in another */
    bool whole;                     /* the reply is given out */
    struct lk_reply *tree;          /* the nodes of one that is nested */
    struct lk_buf given; /* bytes of the reply that is given out, if more bytes
                            came after it; else they are in `in` */
};

/* LK_NOMEM. A reply that is given out stays valid. */
LK_MUST_CHECK enum lk_status lk_resp_reader_room(struct lk_resp_reader *reader,
                                                 char **room, size_t *size);
void lk_resp_reader_fill(struct lk_resp_reader *reader, size_t count);
/*
 * LK_OK: *reply is the reader's, valid until lk_resp_reader_next or _forget is
 * called; texts end with a NUL, which does not count. LK_AGAIN: more bytes have
 * to come. LK_MALFORMED, LK_TOO_LARGE (a text over 1 GiB, a line over 64 KiB,
 * too many elements), LK_NOMEM: the connection is beyond repair.
 */
LK_MUST_CHECK enum lk_status lk_resp_reader_next(struct lk_resp_reader *reader,
                                                 const struct lk_reply **reply);
/* The reply that was given out is not needed any more. */
void lk_resp_reader_forget(struct lk_resp_reader *reader);
void lk_resp_reader_free(struct lk_resp_reader *reader);

/* A copy in one block of memory, which the caller frees with free; NULL: out of
 * memory. Texts end with a NUL. */
struct lk_reply *lk_reply_copy(const struct lk_reply *reply);

/* ---- Writers (resp.c) ---------------------------------------------------- */

/*
 * Writers. `proto` is 2 or 3. They append to `out`; on LK_NOMEM the caller
 * closes the connection, a half-written reply cannot be taken back.
 */
LK_MUST_CHECK enum lk_status lk_resp_simple(struct lk_buf *out,
                                            const char *text);
/* Control characters in the message become spaces: one line, always. */
LK_MUST_CHECK enum lk_status lk_resp_error(struct lk_buf *out,
                                           struct lk_slice message);
LK_MUST_CHECK enum lk_status lk_resp_integer(struct lk_buf *out,
                                             int64_t number);
LK_MUST_CHECK enum lk_status lk_resp_bulk(struct lk_buf *out,
                                          struct lk_slice bytes);
LK_MUST_CHECK enum lk_status lk_resp_nil(struct lk_buf *out, int proto);
LK_MUST_CHECK enum lk_status lk_resp_array(struct lk_buf *out, size_t count);
/* `pairs` names and values: a map in RESP3, a flat list in RESP2. */
LK_MUST_CHECK enum lk_status lk_resp_map(struct lk_buf *out, int proto,
                                         size_t pairs);
LK_MUST_CHECK enum lk_status lk_resp_push(struct lk_buf *out, int proto,
                                          size_t count);
/* A command: an array of its words. On LK_NOMEM `out` is unchanged. */
LK_MUST_CHECK enum lk_status lk_resp_command(struct lk_buf *out,
                                             const struct lk_slice *words,
                                             size_t count);

#endif
