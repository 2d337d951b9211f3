/* guesses.c - wrong passwords: the table, and what they cost a connection. */
#include "daemon/daemon.h"
#include "lib/siphash.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/rand.h>

/* ---- The table ----------------------------------------------------------- */

static struct lk_guess *set_of(struct lk_guesses *guesses, uint64_t key)
{
    return guesses->places + key % LK_GUESS_SETS * LK_GUESS_WAYS;
}

static struct lk_guess *find_guess(struct lk_guesses *guesses, uint64_t key)
{
    struct lk_guess *set = guesses->places ? set_of(guesses, key) : NULL;

    for (int i = 0; set && i < LK_GUESS_WAYS; i++) {
        if (set[i].key == key) {
            return &set[i];
        }
    }
    return NULL;
}

static void clear_guess(struct lk_guesses *guesses, struct lk_guess *guess)
{
    guesses->untold -= guess->untold;
    *guess = (struct lk_guess){0};
}

/* A free place, or that of the origin which has been quiet for longest. */
static struct lk_guess *take_place(struct lk_guesses *guesses, uint64_t key)
{
    struct lk_guess *set = set_of(guesses, key);
    struct lk_guess *place = set;

    for (int i = 1; i < LK_GUESS_WAYS && place->key; i++) {
        if (!set[i].key || set[i].wrong_ms < place->wrong_ms) {
            place = &set[i];
        }
    }
    clear_guess(guesses, place);
    place->key = key;
    return place;
}

static void forget_some(struct lk_guess *guess, uint64_t now_ms)
{
    uint64_t steps = (now_ms - guess->wrong_ms) / LK_GUESS_FORGET_MS;

    guess->wrong = guess->wrong > steps ? guess->wrong - (unsigned)steps : 0;
    guess->wrong_ms += steps * LK_GUESS_FORGET_MS;
}

static uint64_t delay_of(const struct lk_guess *guess, uint64_t most_ms)
{
    if (guess->wrong <= LK_GUESSES_FREE) {
        return 0;
    }
    uint64_t delay = (uint64_t)LK_GUESS_FIRST_MS
                     << (guess->wrong - LK_GUESSES_FREE - 1);
    return delay < most_ms ? delay : most_ms;
}

uint64_t lk_guesses_turn(struct lk_guesses *guesses, uint64_t key,
                         uint64_t now_ms, uint64_t most_ms)
{
    struct lk_guess *guess = find_guess(guesses, key);

    if (!guess || guess->next_ms <= now_ms || !most_ms) {
        return now_ms;
    }
    uint64_t turn = guess->next_ms;
    if (turn - now_ms > most_ms) {
        guess->untold++;
        guesses->untold++;
        return UINT64_MAX;
    }
    forget_some(guess, now_ms);
    guess->next_ms = turn + delay_of(guess, most_ms);
    return turn;
}

struct lk_guess *lk_guesses_wrong(struct lk_guesses *guesses, uint64_t key,
                                  uint64_t now_ms, uint64_t most_ms)
{
    if (!guesses->places) {
        guesses->places =
            calloc(LK_GUESS_SETS, LK_GUESS_WAYS * sizeof(*guesses->places));
    }
    if (!guesses->places) {
        return NULL;
    }
    struct lk_guess *guess = find_guess(guesses, key);
    if (!guess) {
        guess = take_place(guesses, key);
        guess->wrong_ms = now_ms;
    }
    forget_some(guess, now_ms);
    guess->wrong += guess->wrong < LK_GUESSES_MAX;
    guess->wrong_ms = now_ms;
    guess->untold++;
    guesses->untold++;
    uint64_t next = now_ms + delay_of(guess, most_ms);
    guess->next_ms = next > guess->next_ms ? next : guess->next_ms;
    return guess;
}

void lk_guesses_right(struct lk_guesses *guesses, uint64_t key)
{
    struct lk_guess *guess = find_guess(guesses, key);

    if (guess) {
        clear_guess(guesses, guess);
    }
}

bool lk_guess_is_due(const struct lk_guess *guess, uint64_t now_ms)
{
    return guess->untold &&
           (!guess->told_ms || now_ms - guess->told_ms >= LK_GUESS_TELL_MS);
}

unsigned lk_guess_told(struct lk_guesses *guesses, struct lk_guess *guess,
                       uint64_t now_ms)
{
    unsigned count = guess->untold;

    guesses->untold -= count;
    guess->untold = 0;
    guess->told_ms = now_ms;
    return count;
}

/* ---- Connections --------------------------------------------------------- */

/* Where it comes from: see guesses.h. What cannot be told counts as one. */
struct origin {
    uint8_t family;
    uint8_t bytes[8];
};

static void take_ipv4(struct origin *origin, const void *address)
{
    origin->family = AF_INET;
    memcpy(origin->bytes, address, 4);
}

static struct origin origin_of(const struct lk_conn *conn)
{
    struct origin origin = {0};
    struct sockaddr_storage address = {0};
    int len = sizeof(address);
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (conn->uv.handle.type != UV_TCP) {
        if (!getsockopt(lk_conn_fd(conn), SOL_SOCKET, SO_PEERCRED, &peer,
                        &size)) {
            origin.family = AF_UNIX;
            memcpy(origin.bytes, &peer.uid, sizeof(peer.uid));
        }
    } else if (!uv_tcp_getpeername(&conn->uv.tcp, (struct sockaddr *)&address,
                                   &len)) {
        const struct in6_addr *in6 =
            &((const struct sockaddr_in6 *)&address)->sin6_addr;
        if (address.ss_family == AF_INET) {
            take_ipv4(&origin, &((struct sockaddr_in *)&address)->sin_addr);
        } else if (IN6_IS_ADDR_V4MAPPED(in6)) {
            take_ipv4(&origin, in6->s6_addr + 12);
        } else {
            origin.family = AF_INET6;
            memcpy(origin.bytes, in6->s6_addr, sizeof(origin.bytes));
        }
    }
    return origin;
}

/* All names that are not in [users] count as one. */
static struct lk_slice known_user(const struct lk_conn *conn,
                                  struct lk_slice user)
{
    return !user.len ? LK_SLICE("default")
           : lk_config_has_user(&conn->server->config, user) ? user
                                                             : LK_SLICE("");
}

static uint64_t key_of(struct lk_conn *conn, struct lk_slice user)
{
    struct lk_guesses *guesses = &conn->server->guesses;
    struct origin origin = origin_of(conn);
    struct lk_slice name = known_user(conn, user);
    struct lk_siphash hash;

    if (!guesses->keyed) {
        guesses->keyed = RAND_bytes(guesses->secret, LK_SIPHASH_KEY) == 1;
    }
    lk_siphash_init(&hash, guesses->secret);
    lk_siphash_update(&hash, &origin, sizeof(origin));
    lk_siphash_update(&hash, name.data, name.len);
    uint64_t key = lk_siphash_final128(&hash).lo;
    return key ? key : 1;
}

bool lk_conn_may_guess(struct lk_conn *conn, struct lk_slice user)
{
    struct lk_server *server = conn->server;
    uint64_t most = server->config.auth_delay_ms;
    uint64_t now = uv_now(&server->loop);

    if (!conn->judged_ms) {
        conn->judged_ms =
            lk_guesses_turn(&server->guesses, key_of(conn, user), now, most);
    }
    if (conn->judged_ms == UINT64_MAX) {
        conn->judged_ms = 0;
        lk_conn_error(
            conn,
            "ERR %s: too many wrong passwords for this user from this "
            "address; try again in %" PRIu64 " s",
            conn->command->name, (2 * most + 999) / 1000);
        return false;
    }
    conn->again = now < conn->judged_ms;
    if (!conn->again) {
        conn->judged_ms = 0;
    }
    return !conn->again;
}

void lk_conn_guessed(struct lk_conn *conn, struct lk_slice user, bool right)
{
    struct lk_server *server = conn->server;
    struct lk_guesses *guesses = &server->guesses;
    uint64_t now = uv_now(&server->loop);
    uint64_t key = key_of(conn, user);

    if (right) {
        lk_guesses_right(guesses, key);
        return;
    }
    server->metrics.auth_failed++;
    struct lk_guess *guess =
        lk_guesses_wrong(guesses, key, now, server->config.auth_delay_ms);
    if (!guess) {
        return;
    }
    struct lk_slice name = known_user(conn, user);
    snprintf(guess->address, sizeof(guess->address), "%.*s",
             LK_GUESS_ADDRESS - 1, conn->address);
    if (name.len) {
        lk_log_quote(name, guess->user, sizeof(guess->user));
    } else {
        snprintf(guess->user, sizeof(guess->user), "unknown");
    }
    if (lk_guess_is_due(guess, now)) {
        lk_log(LK_LOG_WARN, "auth-failed",
               "id=%" PRIu64 " address=%s user=%s count=%u", conn->id,
               guess->address, guess->user, lk_guess_told(guesses, guess, now));
    }
}

void lk_guesses_tell(struct lk_server *server, uint64_t now_ms)
{
    struct lk_guesses *guesses = &server->guesses;

    for (int i = 0; guesses->untold && i < LK_GUESS_SETS * LK_GUESS_WAYS; i++) {
        struct lk_guess *guess = &guesses->places[i];
        if (guess->key && lk_guess_is_due(guess, now_ms)) {
            lk_log(LK_LOG_WARN, "auth-failed", "address=%s user=%s count=%u",
                   guess->address, guess->user,
                   lk_guess_told(guesses, guess, now_ms));
        }
    }
}
