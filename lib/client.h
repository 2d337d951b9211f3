/* client.h - the connection to latchkeyd, and decisions read from replies. */
#ifndef LK_CLIENT_H
#define LK_CLIENT_H

#include "latchkey.h"
#include "lib/resp.h"

enum { LK_CLIENT_ERROR_MAX = 512 };

struct lk_client {
    int fd;                       /* -1: never connected */
    enum lk_status dead;          /* LK_OK while the connection can be used */
    struct lk_resp_reader reader; /* owns the last reply */
    struct lk_buf out; /* queued commands, of which `sent` bytes are gone */
    size_t sent;
    size_t owed; /* replies that have been asked for and not received */
    unsigned timeout_ms;
    char error[LK_CLIENT_ERROR_MAX];
};

/* Remembers the sentence for latchkey_client_error; returns `status`. */
enum lk_status lk_client_fail(struct lk_client *client, enum lk_status status,
                              const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* An error reply as a status: LK_UNAVAILABLE or LK_REPLY, and its text. */
enum lk_status lk_client_fail_reply(struct lk_client *client,
                                    const struct lk_reply *reply);

/* ---- Decisions (decision.c) -----------------------------------------------
 */

/*
 * Reads the reply to `verb`; NULL: to any command. Returns as
 * latchkey_decision_read does. LK_MALFORMED: `why` is a sentence, cut to `size`
 * bytes and always terminated; part of it comes from the peer as it is.
 */
LK_MUST_CHECK enum lk_status lk_decision_read(const char *verb,
                                              const struct lk_reply *reply,
                                              struct lk_decision *decision,
                                              char *why, size_t size);

/* Of an error reply: LK_UNAVAILABLE or LK_REPLY. */
enum lk_status lk_decision_error(const struct lk_reply *reply);

#endif
