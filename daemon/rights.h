/*
 * rights.h - wrong passwords: each makes the next attempt wait longer.
 *
 * Counted for an origin (an IPv4 address, the first 64 bits of an IPv6 one, a
 * user id on a unix socket) together with the user that was named: one right
 * password does not help to guess another, and a neighbour behind the
 * same address waits only where its own user is being guessed.
 *
 * Attempts of one origin and user are judged one after another. One may wait
 * for its turn; a later one is refused at once, without being judged. So it
 * makes no difference over how many connections the attempts are spread.
 *
 * The table has a fixed size. When many origins guess, those that have been
 * quiet for longest are forgotten first.
 */
#ifndef LK_RIGHTS_H
#define LK_RIGHTS_H

#include "latchkey.h"

enum {
    LK_AUTH_SETS = 512,
    LK_AUTH_WAYS = 4,
    LK_AUTH_FREE = 3, /* wrong ones without a delay: typing errors */
    LK_AUTH_COUNT_MAX =
        11, /* more are not counted, so that these are forgotten soon */
    LK_AUTH_FIRST_MS = 250,        /* the first delay; each is twice as long */
    LK_AUTH_FORGET_MS = 60 * 1000, /* one wrong password is forgotten */
    LK_AUTH_LOG_MS = 60 * 1000,    /* between two lines of the log */
    LK_AUTH_ADDRESS = 64,
    LK_AUTH_USER = 64,
};

struct lk_auth_failures {
    uint64_t key;                  /* 0: the entry is free */
    uint64_t wrong_ms;             /* when `wrong` last changed */
    uint64_t next_ms;              /* nothing is judged before */
    uint64_t logged_ms;            /* when the log had a line; 0: never */
    unsigned wrong;                /* at most LK_AUTH_COUNT_MAX */
    unsigned unlogged;             /* attempts without success since then */
    char address[LK_AUTH_ADDRESS]; /* for the log */
    char user[LK_AUTH_USER];
};

/* Start it as {0}. */
struct lk_auth_table {
    struct lk_auth_failures
        *entries;       /* NULL: there was no wrong password yet */
    uint64_t unlogged;  /* of all entries */
    uint8_t secret[16]; /* of the keys: no client can aim at an entry */
    bool keyed;
};

/*
 * When an attempt may be judged: `now_ms` or earlier is at once. It takes its
 * place in the order. UINT64_MAX: refused, another one is waiting. `most_ms` is
 * the longest delay; 0: there are none.
 */
uint64_t lk_auth_turn(struct lk_auth_table *table, uint64_t key,
                      uint64_t now_ms, uint64_t most_ms);
/* The password was wrong. NULL: out of memory, and nothing is counted. Else the
 * caller fills in address and user, and writes to the log if
 * lk_auth_log_is_due. */
struct lk_auth_failures *lk_auth_wrong(struct lk_auth_table *table,
                                       uint64_t key, uint64_t now_ms,
                                       uint64_t most_ms);
/* It was right: those of this origin and user count no longer. */
void lk_auth_right(struct lk_auth_table *table, uint64_t key);

/* The first wrong one has a line in the log, the others are counted. */
bool lk_auth_log_is_due(const struct lk_auth_failures *failures,
                        uint64_t now_ms);
/* Returns how many attempts the line is about. */
unsigned lk_auth_logged(struct lk_auth_table *table,
                        struct lk_auth_failures *failures, uint64_t now_ms);

#endif
