/*
 * guesses.h - wrong passwords: each makes the next attempt wait longer.
 *
 * Counted for an origin (an IPv4 address, the first 64 bits of an IPv6 one, a
 * user id on a unix socket) together with the user that was named: one right
 * password does not help to guess another, and a neighbour behind the
 * same address waits only where its own user is being guessed.
 *
 * Attempts of one origin and user are judged one after another. One may wait
 * for its turn; a later one is refused at once, without being judged. So it
 * makes no difference over how many connections the guesses are spread.
 *
 * The table has a fixed size. When many origins guess, those that have been
 * quiet for longest are forgotten first.
 */
#ifndef LK_GUESSES_H
#define LK_GUESSES_H

#include "latchkey.h"

enum {
    LK_GUESS_SETS = 512,
    LK_GUESS_WAYS = 4,
    LK_GUESSES_FREE = 3, /* wrong ones without a delay: typing errors */
    LK_GUESSES_MAX = 11, /* no more are counted: so soon they are forgotten */
    LK_GUESS_FIRST_MS = 250,        /* the first delay; each is twice as long */
    LK_GUESS_FORGET_MS = 60 * 1000, /* one wrong guess is forgotten */
    LK_GUESS_TELL_MS = 60 * 1000,   /* between two lines of the log */
    LK_GUESS_ADDRESS = 64,
    LK_GUESS_USER = 64,
};

struct lk_guess {
    uint64_t key;                   /* 0: the place is free */
    uint64_t wrong_ms;              /* when `wrong` last changed */
    uint64_t next_ms;               /* nothing is judged before */
    uint64_t told_ms;               /* when the log had a line; 0: never */
    unsigned wrong;                 /* at most LK_GUESSES_MAX */
    unsigned untold;                /* attempts without success since then */
    char address[LK_GUESS_ADDRESS]; /* for the log */
    char user[LK_GUESS_USER];
};

/* Start it as {0}. */
struct lk_guesses {
    struct lk_guess *places; /* NULL: there was no wrong password yet */
    uint64_t untold;         /* of all places */
    uint8_t secret[16];      /* of the keys: no client can aim at a place */
    bool keyed;
};

/*
 * When an attempt may be judged: `now_ms` or earlier is at once. A place in the
 * order is taken by it. UINT64_MAX: refused, another one is waiting. `most_ms`
 * is the longest delay; 0: there are none.
 */
uint64_t lk_guesses_turn(struct lk_guesses *guesses, uint64_t key,
                         uint64_t now_ms, uint64_t most_ms);
/* The password was wrong. NULL: out of memory, and nothing is counted. Else the
 * caller fills in address and user, and tells the log if lk_guess_is_due. */
struct lk_guess *lk_guesses_wrong(struct lk_guesses *guesses, uint64_t key,
                                  uint64_t now_ms, uint64_t most_ms);
/* It was right: those of this origin and user count no longer. */
void lk_guesses_right(struct lk_guesses *guesses, uint64_t key);

/* The first wrong one has a line in the log, the others are counted. */
bool lk_guess_is_due(const struct lk_guess *guess, uint64_t now_ms);
/* Returns how many attempts the line is about. */
unsigned lk_guess_told(struct lk_guesses *guesses, struct lk_guess *guess,
                       uint64_t now_ms);

#endif
