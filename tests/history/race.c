/*
 * race.c - many connections fight for the same keys and write down, for
 * check.c, what each of them asked, when, and what it was told.
 *
 * Winners complete, release, doubt, or go silent; some come back late with an
 * old token, some complete twice. Connections are cut with replies under way,
 * and what was lost is sent again with the same owner. With --reconnect the
 * daemon itself may die and return at any time. Several --server, daemons on
 * one store, share the connections. SIGTERM says that these are claims
 * enough; what is under way is brought to its end.
 */
#include "tests/history/ask.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
    WINDOW = 32, /* commands under way on one connection */
    SERVERS_MAX = 8,
    LONG_LOCK_MS = 60000,
    SHORT_LOCK_MS = 150,
    SHORT_TTL_MS = 400,
};

#define MS          INT64_C(1000000)
#define LATE_NS     (400 * MS) /* when a silent holder comes back */
#define RETRY_NS    (5 * MS)
#define REST_NS     (50 * MS) /* after UNAVAILABLE */
#define GIVE_UP_NS  (60000 * MS)
#define HISTORY_BUF (1 << 20)

struct queue {
    struct op *ops;
    size_t head, count, cap;
};

struct connection {
    int fd; /* -1: closed */
    bool want_write;
    bool cut;         /* close as soon as everything is written */
    int64_t retry_ns; /* to connect again, or to send more */
    struct wire_out out;
    char *in;
    size_t in_len, in_cap;
    struct op window[WINDOW];
    unsigned first, count;
};

static struct {
    const char *servers[SERVERS_MAX], *history;
    unsigned server_count;
    uint64_t claims, keys, hot, first_key, seed;
    unsigned connections;
    bool reconnect, readback;
} option = {
    .claims = 100000, .keys = 1000, .hot = 48, .seed = 1, .connections = 64};

static struct connection *connections;
static struct queue todo, late;
static struct queue probes;
static uint64_t *last_owner; /* by key: who was told NEW last */
static uint64_t claims_made, under_way, lost, told[HISTORY_VERDICT_END];
static FILE *history;
static int epoll_fd;
static uint64_t random_state;
static volatile sig_atomic_t enough;

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "race: %s%s%s\n", what, detail[0] ? ": " : "", detail);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static uint64_t next_random(void)
{
    random_state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(random_state);
}

static bool chance(unsigned percent)
{
    return next_random() % 100 < percent;
}

/* ---- queues ---- */

static void push(struct queue *queue, const struct op *op)
{
    if (queue->head + queue->count == queue->cap) {
        if (queue->head > queue->cap / 2) {
            memmove(queue->ops, queue->ops + queue->head,
                    queue->count * sizeof(*queue->ops));
            queue->head = 0;
        } else {
            queue->cap = 2 * queue->cap + 256;
            queue->ops = realloc(queue->ops, queue->cap * sizeof(*queue->ops));
            if (queue->ops == NULL) {
                die("out of memory", "");
            }
        }
    }
    queue->ops[queue->head + queue->count++] = *op;
}

static struct op pop(struct queue *queue)
{
    struct op op = queue->ops[queue->head++];

    if (--queue->count == 0) {
        queue->head = 0;
    }
    return op;
}

/* The late queue is in order of time: every entry waits equally long. */
static void push_late(struct op *op)
{
    op->due_ns = now_ns() + LATE_NS;
    push(&late, op);
}

/* ---- what is asked ---- */

/* A key keeps its habits: one in six has a short lock, one in three a short
 * TTL: the reaper has something to do. */
static void set_times(struct history_record *record)
{
    unsigned habit = (unsigned)(mix(record->key ^ option.seed) % 60);

    record->lock_ms = habit < 10 ? SHORT_LOCK_MS : LONG_LOCK_MS;
    record->ttl_ms = habit >= 10 && habit < 30 ? SHORT_TTL_MS : 0;
}

/* Keys are fought for in a window that moves on; old ones are looked up. */
static uint64_t front_key(void)
{
    return claims_made * (option.keys - option.hot) / option.claims;
}

static uint64_t choose_key(void)
{
    uint64_t front = front_key();

    if (front > 0 && chance(20)) {
        return next_random() % front;
    }
    return front + next_random() % option.hot;
}

static struct op make_claim(uint64_t key, uint8_t flags)
{
    struct op op = {.record = {.kind = HISTORY_CLAIM, .flags = flags}};

    op.record.key = key;
    op.record.owner = next_random() | 1;
    set_times(&op.record);
    return op;
}

static struct op make_follow_up(const struct op *claim, uint8_t kind)
{
    struct op op = {.record = {.kind = kind}, .nonce = next_random() | 1};

    op.record.key = claim->record.key;
    op.record.token = claim->record.token;
    set_times(&op.record);
    return op;
}

/* ---- what is told ---- */

static void write_down(struct op *op)
{
    struct history_record record = op->record;

    record.key += option.first_key;
    told[record.verdict]++;
    if (fwrite(&record, sizeof(record), 1, history) != 1) {
        die("cannot write the history", strerror(errno));
    }
}

static uint8_t read_verdict(const struct wire_reply *reply)
{
    static const struct {
        const char *word;
        uint8_t verdict;
    } words[] = {
        {"NEW", HISTORY_NEW},
        {"REPLAY", HISTORY_REPLAY},
        {"INFLIGHT", HISTORY_INFLIGHT},
        {"UNCERTAIN", HISTORY_UNCERTAIN},
        {"MISMATCH", HISTORY_MISMATCH},
        {"REFUSED", HISTORY_REFUSED},
        {"OK", HISTORY_OK},
        {"KEPT", HISTORY_KEPT},
        {"STALE", HISTORY_STALE},
        {"UNAVAILABLE", HISTORY_UNAVAILABLE},
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (wire_is(reply, words[i].word)) {
            return words[i].verdict;
        }
    }
    fprintf(stderr, "race: unexpected reply: %c%.*s\n", reply->type,
            (int)reply->word[0].len,
            reply->word[0].data ? reply->word[0].data : "");
    exit(1);
}

/* What the winner of a claim does next. */
static void follow_up(const struct op *claim)
{
    unsigned dice = (unsigned)(next_random() % 100);
    bool short_lock = claim->record.lock_ms == SHORT_LOCK_MS;
    struct op op = make_follow_up(claim, HISTORY_COMPLETE);

    if (dice < (short_lock ? 30 : 70)) {
        push(&todo, &op);
        if (dice % 8 == 0) { /* once more, with another answer */
            op.nonce = next_random() | 1;
            push(&todo, &op);
        }
    } else if (dice < 82) {
        op.record.kind = HISTORY_RELEASE;
        push(&todo, &op);
    } else if (dice < 87) {
        op.record.kind = HISTORY_DOUBT;
        push(&todo, &op);
    } else if (dice < 92) {
        op.record.kind = HISTORY_EXTEND;
        push(&todo, &op);
        op.record.kind = HISTORY_COMPLETE;
        push_late(&op);
    } else if (dice < 97) {
        push_late(&op);
    } /* else silent for ever */
}

/* An unknown outcome: sent again as it was, with the same owner. */
static void send_again(struct op *op, bool at_once)
{
    op->record.return_ns = 0;
    op->record.verdict = HISTORY_NONE;
    if (op->probe) {
        push(&probes, op);
    } else if (at_once) {
        push(&todo, op);
    } else {
        push_late(op);
    }
}

static void conclude(struct op *op, const struct wire_reply *reply)
{
    struct history_record *record = &op->record;

    record->verdict = read_verdict(reply);
    if (record->verdict == HISTORY_NEW) {
        record->token = (uint64_t)reply->word[1].number;
    }
    if (record->verdict == HISTORY_REPLAY || record->verdict == HISTORY_KEPT) {
        record->digest = digest_answer(reply->word[1].number,
                                       reply->word[2].data, reply->word[2].len,
                                       reply->word[3].data, reply->word[3].len);
    }
    write_down(op);
    if (record->verdict == HISTORY_UNAVAILABLE) {
        connections[record->connection].retry_ns = record->return_ns + REST_NS;
        send_again(op, false);
        return;
    }
    if (op->probe || record->kind != HISTORY_CLAIM) {
        return;
    }
    if (record->verdict == HISTORY_NEW) {
        last_owner[record->key] = record->owner;
        follow_up(op);
    } else if (record->verdict == HISTORY_UNCERTAIN && chance(30)) {
        struct op again =
            make_claim(record->key, record->flags | HISTORY_REEXECUTE);
        push(&todo, &again);
    }
}

/* ---- connections ---- */

static void watch(struct connection *connection, int action)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};

    if (connection->want_write) {
        event.events |= EPOLLOUT;
    }
    if (epoll_ctl(epoll_fd, action, connection->fd, &event) != 0) {
        die("epoll", strerror(errno));
    }
}

static void open_connection(struct connection *connection)
{
    size_t number = (size_t)(connection - connections);
    int fd = wire_open(option.servers[number % option.server_count]);

    if (fd < 0) {
        if (!option.reconnect) {
            die("cannot connect", strerror(errno));
        }
        connection->retry_ns = now_ns() + RETRY_NS;
        return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    connection->fd = fd;
    connection->cut = connection->want_write = false;
    connection->in_len = connection->out.len = connection->out.sent = 0;
    watch(connection, EPOLL_CTL_ADD);
}

/* Every reply still under way is lost; most commands are sent again. */
static void lose_connection(struct connection *connection, bool meant)
{
    if (!meant && !option.reconnect) {
        die("the daemon closed a connection", "");
    }
    close(connection->fd);
    connection->fd = -1;
    connection->retry_ns = now_ns() + (meant ? 0 : RETRY_NS);
    for (; connection->count > 0; connection->count--, under_way--) {
        struct op *op = &connection->window[connection->first++ % WINDOW];

        op->record.return_ns = HISTORY_NO_RETURN;
        write_down(op);
        lost++;
        if (op->probe || op->record.kind != HISTORY_CLAIM || !chance(5)) {
            send_again(op, true);
        }
    }
}

/* False if the connection is gone. */
static bool flush(struct connection *connection)
{
    struct wire_out *out = &connection->out;

    while (out->sent < out->len) {
        ssize_t sent = send(connection->fd, out->data + out->sent,
                            out->len - out->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            break;
        }
        if (sent < 0) {
            lose_connection(connection, false);
            return false;
        }
        out->sent += (size_t)sent;
    }
    bool left = out->sent < out->len;
    if (!left) {
        out->len = out->sent = 0;
    }
    if (left != connection->want_write) {
        connection->want_write = left;
        watch(connection, EPOLL_CTL_MOD);
    }
    if (!left && connection->cut) {
        lose_connection(connection, true);
        return false;
    }
    return true;
}

static void stop_claiming(int number)
{
    (void)number;
    enough = 1;
}

static bool claims_left(void)
{
    return claims_made < option.claims && !enough;
}

static bool next_op(struct op *op)
{
    if (late.count > 0 && late.ops[late.head].due_ns <= now_ns()) {
        *op = pop(&late);
    } else if (todo.count > 0) {
        *op = pop(&todo);
    } else if (claims_left()) {
        uint8_t flags = (chance(2) ? HISTORY_OTHER_PRINT : 0) |
                        (chance(5) ? HISTORY_REEXECUTE : 0);
        *op = make_claim(choose_key(), flags);
        claims_made++;
    } else if (late.count == 0 && probes.count > 0) {
        *op = pop(&probes);
    } else {
        return false;
    }
    return true;
}

static void fill(struct connection *connection, int64_t now)
{
    struct op op;

    while (connection->retry_ns <= now && connection->count < WINDOW &&
           !connection->cut && next_op(&op)) {
        unsigned slot = connection->first + connection->count++;

        op.record.connection = (uint32_t)(connection - connections);
        op.record.call_ns = now_ns();
        add_command(&connection->out, &op, option.first_key);
        connection->window[slot % WINDOW] = op;
        under_way++;
        connection->cut = next_random() % 4000 == 0;
    }
    flush(connection);
}

static void read_replies(struct connection *connection, int64_t now)
{
    struct wire_reply reply;
    size_t used = 0;
    long len;

    while ((len = wire_parse(connection->in + used, connection->in_len - used,
                             &reply)) > 0) {
        if (connection->count == 0) {
            die("a reply that nobody asked for", "");
        }
        struct op op = connection->window[connection->first++ % WINDOW];

        connection->count--;
        under_way--;
        op.record.return_ns = now;
        conclude(&op, &reply);
        used += (size_t)len;
    }
    if (len < 0) {
        die("a reply that makes no sense", "");
    }
    connection->in_len -= used;
    memmove(connection->in, connection->in + used, connection->in_len);
}

/* False if the connection is gone. */
static bool receive(struct connection *connection)
{
    if (connection->in_cap - connection->in_len < 65536) {
        connection->in_cap = 2 * connection->in_cap + 131072;
        connection->in = realloc(connection->in, connection->in_cap);
        if (connection->in == NULL) {
            die("out of memory", "");
        }
    }
    ssize_t got = recv(connection->fd, connection->in + connection->in_len,
                       connection->in_cap - connection->in_len, 0);
    if (got < 0 && errno == EAGAIN) {
        return true;
    }
    if (got <= 0) {
        lose_connection(connection, false);
        return false;
    }
    connection->in_len += (size_t)got;
    read_replies(connection, now_ns());
    return true;
}

/* ---- the run ---- */

/* At the end each key is asked for twice: by whoever won it last, who must
 * find its own token, and by a stranger. Nothing is started. */
static void plan_readback(void)
{
    uint64_t end = enough ? front_key() + option.hot : option.keys;

    for (uint64_t key = 0; option.readback && key < end; key++) {
        struct op op = make_claim(key, HISTORY_NONEW);

        op.probe = true;
        push(&probes, &op);
        if (last_owner[key] != 0) {
            op.record.owner = last_owner[key];
            push(&probes, &op);
        }
    }
}

static bool work_left(void)
{
    static bool planned;

    if (under_way + todo.count + late.count > 0 || claims_left()) {
        return true;
    }
    if (!planned) {
        planned = true;
        plan_readback();
    }
    return probes.count > 0;
}

static void run(void)
{
    struct epoll_event events[64];
    int64_t progress_ns = now_ns();

    while (work_left()) {
        int count = epoll_wait(epoll_fd, events, 64, 2);
        int64_t now = now_ns();

        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;

            if (receive(connection)) {
                progress_ns = now;
            }
        }
        for (unsigned i = 0; i < option.connections; i++) {
            struct connection *connection = &connections[i];

            if (connection->fd < 0 && connection->retry_ns <= now) {
                open_connection(connection);
            }
            if (connection->fd >= 0) {
                fill(connection, now);
            }
        }
        if (now - progress_ns > GIVE_UP_NS) {
            die("no reply for a minute", "");
        }
    }
}

static void report(int64_t started)
{
    double seconds = (double)(now_ns() - started) / 1e9;

    printf("%llu claims in %.1f s: NEW %llu REPLAY %llu INFLIGHT %llu "
           "UNCERTAIN %llu MISMATCH %llu OK %llu KEPT %llu STALE %llu "
           "UNAVAILABLE %llu lost %llu\n",
           (unsigned long long)claims_made, seconds,
           (unsigned long long)told[HISTORY_NEW],
           (unsigned long long)told[HISTORY_REPLAY],
           (unsigned long long)told[HISTORY_INFLIGHT],
           (unsigned long long)told[HISTORY_UNCERTAIN],
           (unsigned long long)told[HISTORY_MISMATCH],
           (unsigned long long)told[HISTORY_OK],
           (unsigned long long)told[HISTORY_KEPT],
           (unsigned long long)told[HISTORY_STALE],
           (unsigned long long)told[HISTORY_UNAVAILABLE],
           (unsigned long long)lost);
}

static void usage(void)
{
    fputs("usage: race --server ADDRESS... --history FILE [--claims N] "
          "[--keys K] [--hot H]\n"
          "            [--first-key F] [--connections C] [--seed S] "
          "[--reconnect] "
          "[--readback]\n",
          stderr);
    exit(2);
}

static void read_options(int argc, char **argv)
{
    static const struct option known[] = {
        {"server", 1, NULL, 's'},    {"history", 1, NULL, 'h'},
        {"claims", 1, NULL, 'n'},    {"keys", 1, NULL, 'k'},
        {"hot", 1, NULL, 'w'},       {"first-key", 1, NULL, 'f'},
        {"seed", 1, NULL, 'r'},      {"connections", 1, NULL, 'c'},
        {"reconnect", 0, NULL, 'R'}, {"readback", 0, NULL, 'B'},
        {NULL, 0, NULL, 0},
    };
    uint64_t connection_count = option.connections;
    int letter;

    while ((letter = getopt_long(argc, argv, "", known, NULL)) != -1) {
        uint64_t number = optarg != NULL ? strtoull(optarg, NULL, 10) : 0;

        switch (letter) {
        case 's':
            if (option.server_count == SERVERS_MAX) {
                usage();
            }
            option.servers[option.server_count++] = optarg;
            break;
        case 'h':
            option.history = optarg;
            break;
        case 'n':
            option.claims = number;
            break;
        case 'k':
            option.keys = number;
            break;
        case 'w':
            option.hot = number;
            break;
        case 'f':
            option.first_key = number;
            break;
        case 'r':
            option.seed = number;
            break;
        case 'c':
            connection_count = number;
            break;
        case 'R':
            option.reconnect = true;
            break;
        case 'B':
            option.readback = true;
            break;
        default:
            usage();
        }
    }
    option.connections = (unsigned)connection_count;
    option.hot = option.keys < option.hot ? option.keys : option.hot;
    if (option.server_count == 0 || option.history == NULL || option.hot == 0 ||
        option.connections == 0 || option.connections > 10000) {
        usage();
    }
}

int main(int argc, char **argv)
{
    int64_t started = now_ns();

    read_options(argc, argv);
    random_state = mix(option.seed);
    history = fopen(option.history, "wb");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc(option.connections, sizeof(*connections));
    last_owner = calloc(option.keys, sizeof(*last_owner));
    if (history == NULL || epoll_fd < 0 || connections == NULL ||
        last_owner == NULL) {
        die("cannot start", strerror(errno));
    }
    signal(SIGTERM, stop_claiming);
    setvbuf(history, NULL, _IOFBF, HISTORY_BUF);
    for (unsigned i = 0; i < option.connections; i++) {
        connections[i].fd = -1;
    }
    run();
    if (fclose(history) != 0) {
        die("cannot write the history", strerror(errno));
    }
    report(started);
    for (unsigned i = 0; i < option.connections; i++) {
        free(connections[i].out.data);
        free(connections[i].in);
    }
    free(connections);
    free(last_owner);
    free(todo.ops);
    free(late.ops);
    free(probes.ops);
    return 0;
}
