/* decision.h - what the readers of replies share. */
#ifndef LK_DECISION_H
#define LK_DECISION_H

#include "latchkey.h"

/*
 * Reads the reply to `verb`; NULL: whatever was asked. Returns as
 * latchkey_decision_read does. LK_MALFORMED: `why` is a sentence, cut to `size`
 * bytes and always terminated; part of it comes from the peer as it is.
 */
LK_MUST_CHECK enum lk_status lk_decision_read(const char *verb,
                                              const struct lk_reply *reply,
                                              struct lk_decision *answer,
                                              char *why, size_t size);

/* Of an error reply: LK_UNAVAILABLE or LK_REPLY. */
enum lk_status lk_decision_error(const struct lk_reply *reply);

#endif
