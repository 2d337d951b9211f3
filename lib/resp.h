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
    long bulk;      /* length of the word under way; -1: not known yet */
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
    LK_RESP_BAD,     /* protocol error: answer `error`, then close */
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
