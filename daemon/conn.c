/*
 * conn.c - one connection: input is read, parsed and run as far as possible,
 * replies are written in the order of the commands. Loop thread alone.
 *
 * The life of a connection:
 *
 *   phase    flag        what happens                 ends with
 *   open     -           reads, runs, writes          QUIT, end of input, error
 *   ending   quit, eof   reads no more, sends the     lk_conn_flush: the last
 *                        replies that are due         reply is sent
 *   closing  closing     nothing; its memory stays    lk_conn_tear_down, at the
 *                        valid in this turn           end of the turn
 *   closed   -           nothing                      on_conn_closed: freed
 *
 * Any code of the loop thread may close it, with lk_conn_close. Its tasks that
 * are with another thread outlive it (task.c).
 *
 * Input that cannot be run yet stays in `in` and makes the connection `stuck`:
 * a WAIT holds it, a command of another place is in progress, or the queue is
 * full. In the first two cases it is run when the last command in progress has
 * its reply, in the third when there is room (server->runnable). When memory is
 * short, what follows waits until the client has taken its replies.
 */
#include "daemon/daemon.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEEP_BUFFER = 64 * 1024, /* a larger buffer is freed when it is empty */
    FLUSH_AT = 256 * 1024,   /* written before the end of the turn */
    READ_AHEAD = 256 * 1024, /* input kept while nothing may be run */
    SHORT_CHUNK = 8 * 1024,  /* read at once when memory is short */
    /* A client that has no role yet gets little memory. */
    STRANGER_ARGS = 16,
    STRANGER_BYTES = 16 * 1024,
};

int lk_conn_fd(const struct lk_conn *conn)
{
    uv_os_fd_t fd;

    return uv_fileno(&conn->uv.handle, &fd) ? -1 : fd;
}

/* ---- Writing ------------------------------------------------------------- */

/* The kernel has taken what `writing` held, or the client has left. */
static void on_written(uv_write_t *request, int result)
{
    struct lk_conn *conn = request->data;

    conn->server->metrics.bytes_out += conn->writing.len;
    conn->bytes_out += conn->writing.len;
    latchkey_buf_free(&conn->writing);
    if (conn->closing) {
        return;
    }
    if (result < 0) {
        lk_conn_close(conn, NULL);
        return;
    }
    conn->active_ms = uv_now(&conn->server->loop);
    if (conn->stuck && !conn->head) {
        lk_server_mark_runnable(conn->server, conn);
    }
    lk_server_mark_dirty(conn->server, conn);
}

/* What the kernel did not take at once goes on in the background. */
static void write_rest(struct lk_conn *conn, size_t written)
{
    memmove(conn->out.data, conn->out.data + written, conn->out.len - written);
    conn->out.len -= written;
    conn->writing = conn->out;
    conn->out = (struct lk_buf){0};
    conn->write.data = conn;
    lk_pace_start(&conn->taking, uv_now(&conn->server->loop), 0);

    uv_buf_t buf = uv_buf_init(conn->writing.data, (unsigned)conn->writing.len);
    if (uv_write(&conn->write, &conn->uv.stream, &buf, 1, on_written)) {
        latchkey_buf_free(&conn->writing);
        lk_conn_close(conn, NULL);
    }
}

/* Tries to write at once, which nearly always takes everything. */
static void write_out(struct lk_conn *conn)
{
    uv_buf_t buf = uv_buf_init(conn->out.data, (unsigned)conn->out.len);
    int written = uv_try_write(&conn->uv.stream, &buf, 1);

    if (written == UV_EAGAIN) {
        written = 0;
    }
    if (written < 0) {
        lk_conn_close(conn, NULL);
        return;
    }
    conn->server->metrics.bytes_out += (uint64_t)written;
    conn->bytes_out += (uint64_t)written;
    if ((size_t)written < conn->out.len) {
        write_rest(conn, (size_t)written);
        return;
    }
    conn->out.len = 0;
    if (conn->out.cap > KEEP_BUFFER) {
        latchkey_buf_free(&conn->out);
    }
}

/* Closes when the last command is run and the last reply is out. */
static void finish_if_done(struct lk_conn *conn)
{
    if (!(conn->quit || conn->eof) || conn->head || conn->out.len ||
        conn->writing.len) {
        return;
    }
    if (conn->quit || !conn->stuck) {
        lk_conn_close(conn, NULL);
    }
}

/*
 * What waits for the client. A single reply may be larger than all the room,
 * if it was stored under other limits or by an app: while it is on its way,
 * only what waits behind it counts.
 */
static size_t waiting_bytes(const struct lk_conn *conn)
{
    size_t under_way = conn->writing.len;

    return conn->out.len +
           (under_way <= conn->server->config.output_bytes ? under_way : 0);
}

/* libuv takes and reports no more at once than an int can hold. */
static void flush(struct lk_conn *conn)
{
    size_t most =
        conn->writing.len ? conn->server->config.output_bytes : INT_MAX;

    if (conn->closing) {
        return;
    }
    if (waiting_bytes(conn) > most) {
        lk_conn_close(conn, "output-not-read");
    } else if (conn->out.len && !conn->writing.len) {
        write_out(conn);
    }
}

void lk_conn_flush(struct lk_conn *conn)
{
    flush(conn);
    lk_conn_weigh(conn);
    finish_if_done(conn);
}

/* ---- Replies in order ---------------------------------------------------- */

void lk_conn_push(struct lk_conn *conn, struct lk_task *task)
{
    lk_task_count(conn->server, task);
    if (!conn->head) {
        conn->head = task;
    } else {
        conn->tail->after = task;
    }
    conn->tail = task;
    if (task->command) {
        conn->place = task->command->place;
    }
}

/* An await that has got QUEUED leaves the list of commands: it holds up no
 * reply. */
static void keep_await(struct lk_conn *conn, struct lk_task *task)
{
    task->before = NULL;
    task->after = conn->awaits;
    if (conn->awaits) {
        conn->awaits->before = task;
    }
    conn->awaits = task;
}

/* Takes the task: it is freed, or kept as an await, which still waits. */
static enum lk_status emit_task(struct lk_conn *conn, struct lk_task *task)
{
    enum lk_status status;

    assert(task->ready && task->at == LK_PLACE_HERE);
    if (task->text.len || !task->command || !task->command->reply) {
        status =
            latchkey_buf_add_slice(&conn->out, latchkey_buf_slice(&task->text));
    } else {
        status = task->command->reply(task, &conn->out);
    }
    if (task->waiter.waiting) {
        keep_await(conn, task);
    } else {
        lk_task_free(conn->server, task);
    }
    return status;
}

/* Sends all replies up to the first that is not ready. When none is left, input
 * that had to wait may run. */
void lk_conn_emit(struct lk_conn *conn)
{
    while (conn->head && conn->head->ready && !conn->closing) {
        struct lk_task *task = conn->head;
        conn->head = task->after;
        task->after = NULL;
        if (!conn->head) {
            conn->tail = NULL;
        }
        lk_conn_wrote(conn, emit_task(conn, task));
    }
    if (!conn->head) {
        conn->hold = false;
        conn->active_ms = uv_now(&conn->server->loop);
        if (conn->stuck) {
            lk_server_mark_runnable(conn->server, conn);
        }
    }
}

/* With commands in progress the reply waits its turn in a task of its own. */
struct lk_buf *lk_conn_out(struct lk_conn *conn)
{
    if (!conn->head) {
        return &conn->out;
    }
    struct lk_task *task = lk_task_make_text(conn);
    if (!task) {
        lk_conn_close(conn, "out-of-memory");
        conn->server->scratch.len = 0;
        return &conn->server->scratch;
    }
    lk_conn_push(conn, task);
    return &task->text;
}

/* Called after every reply, with the status of its writer. A reply that
 * could not be written whole would shift all later ones, so the
 * connection is closed. */
void lk_conn_wrote(struct lk_conn *conn, enum lk_status status)
{
    if (status) {
        lk_conn_close(conn, "out-of-memory");
        return;
    }
    lk_server_mark_dirty(conn->server, conn);
    if (conn->tail && conn->tail->ready) {
        lk_task_weigh(conn->server, conn->tail);
    }
    if (conn->out.len >= FLUSH_AT) {
        flush(conn);
    }
    lk_conn_weigh(conn);
}

void lk_conn_simple(struct lk_conn *conn, const char *text)
{
    lk_conn_wrote(conn, lk_resp_simple(lk_conn_out(conn), text));
}

void lk_conn_error(struct lk_conn *conn, const char *format, ...)
{
    char message[512];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    conn->server->metrics.errors++;
    lk_conn_wrote(conn,
                  lk_resp_error(lk_conn_out(conn), latchkey_slice(message)));
}

bool lk_conn_has_role(const struct lk_conn *conn, enum lk_role role)
{
    return conn->roles & 1U << role;
}

/* ---- The end ------------------------------------------------------------- */

/* Safe to call from anywhere in a turn, and more than once. */
void lk_conn_close(struct lk_conn *conn, const char *why)
{
    if (conn->closing) {
        return;
    }
    conn->closing = true;
    lk_conn_stop_reading(conn);
    lk_conn_leave_lists(conn);
    lk_server_mark_closed(conn->server, conn);
    if (why) {
        conn->server->metrics.cut++;
        lk_log(LK_LOG_WARN, "client-closed", "id=%llu address=%s why=%s",
               (unsigned long long)conn->id, conn->address, why);
    } else {
        lk_log(LK_LOG_DEBUG, "client-left", "id=%llu address=%s",
               (unsigned long long)conn->id, conn->address);
    }
}

/* libuv is done with the handle: nothing refers to the connection any more. */
static void on_conn_closed(uv_handle_t *handle)
{
    struct lk_conn *conn = handle->data;

    latchkey_buf_free(&conn->in);
    latchkey_buf_free(&conn->out);
    latchkey_buf_free(&conn->writing);
    lk_resp_parser_free(&conn->parser);
    lk_rights_end(conn);
    free(conn);
}

/* A task that another thread has, or is about to get, loses its client; it is
 * freed when it comes back. The others end here. */
static void drop_tasks(struct lk_server *server, struct lk_task *task)
{
    uv_mutex_lock(&server->returns.mutex); /* see task->fd */
    while (task) {
        struct lk_task *after = task->after;
        task->conn = NULL;
        atomic_store_explicit(&task->gone, true, memory_order_relaxed);
        task->after = NULL;
        if (task->at == LK_PLACE_HERE) {
            lk_task_free(server, task);
        }
        task = after;
    }
    uv_mutex_unlock(&server->returns.mutex);
}

void lk_conn_tear_down(struct lk_conn *conn)
{
    struct lk_server *server = conn->server;

    assert(conn->closing);
    conn->to_load = (struct lk_task_queue){0}; /* they are in the list below */
    drop_tasks(server, conn->head);
    drop_tasks(server, conn->awaits);
    conn->head = conn->tail = conn->awaits = NULL;
    *(conn->prev ? &conn->prev->next : &server->conns) = conn->next;
    if (conn->next) {
        conn->next->prev = conn->prev;
    }
    server->conn_count--;
    server->held_bytes -= conn->held_bytes;
    uv_close(&conn->uv.handle, on_conn_closed);
}

/* ---- Reading ------------------------------------------------------------- */

/* May the next command of the input run now? If it has to wait, the connection
 * is `stuck`, and something will run the input again (see the top). */
static bool may_run(struct lk_conn *conn)
{
    if (conn->closing || conn->quit) {
        return false;
    }
    if (conn->hold || (conn->writing.len && lk_server_is_short(conn->server))) {
        conn->stuck = true;
        return false;
    }
    if (lk_server_full(conn->server)) {
        conn->stuck = true;
        conn->server->metrics.stalls++;
        lk_conn_stop_reading(conn);
        lk_server_mark_runnable(conn->server, conn);
        return false;
    }
    return true;
}

/* Behind a protocol error no command boundary is known: the connection ends. */
static void reply_bad_input(struct lk_conn *conn)
{
    lk_conn_error(conn, "%s", conn->parser.error);
    conn->quit = true;
    lk_conn_stop_reading(conn);
    lk_log(LK_LOG_INFO, "protocol-error", "id=%llu address=%s",
           (unsigned long long)conn->id, conn->address);
}

/* Runs one command of `input`. Returns the bytes it took; 0: no more now. */
static size_t run_one(struct lk_conn *conn, struct lk_slice input)
{
    const struct lk_config *config = &conn->server->config;
    struct lk_resp_limits limits = {LK_ARGS_MAX, config->command_bytes,
                                    config->command_bytes};
    size_t used = 0;

    if (!conn->roles) {
        limits = (struct lk_resp_limits){STRANGER_ARGS, STRANGER_BYTES,
                                         STRANGER_BYTES};
    }
    switch (lk_resp_parse(&conn->parser, &limits, input, &used)) {
    case LK_RESP_COMMAND:
        conn->partial = false;
        if (!lk_command_run(conn, conn->parser.argv, conn->parser.argc)) {
            conn->stuck = true;
            return 0;
        }
        return used;
    case LK_RESP_EMPTY:
        return used;
    case LK_RESP_MORE:
        if (!conn->partial) {
            conn->partial = true;
            lk_pace_start(&conn->sending, uv_now(&conn->server->loop), 0);
        }
        return 0;
    case LK_RESP_BAD:
        reply_bad_input(conn);
        return 0;
    case LK_RESP_NOMEM:
        lk_conn_close(conn, "out-of-memory");
        return 0;
    }
    return 0;
}

/* Returns how many bytes of `input` have been dealt with. */
static size_t run_input(struct lk_conn *conn, struct lk_slice input)
{
    size_t done = 0;

    if (conn->stuck) {
        conn->stuck = conn->partial = false; /* its clock begins again */
    }
    while (done < input.len && may_run(conn)) {
        struct lk_slice rest = {input.data + done, input.len - done};
        size_t used = run_one(conn, rest);
        if (used == 0) {
            break;
        }
        done += used;
    }
    if (done == input.len) {
        conn->partial = false;
    }
    return done;
}

/* Runs what is in the connection's own buffer, and empties it if all of it has
 * been run. */
static void run_own_input(struct lk_conn *conn)
{
    struct lk_slice input = {conn->in.data + conn->in_start,
                             conn->in.len - conn->in_start};

    conn->in_start += run_input(conn, input);
    if (conn->in_start < conn->in.len) {
        return;
    }
    conn->in.len = conn->in_start = 0;
    if (conn->in.cap > KEEP_BUFFER) {
        latchkey_buf_free(&conn->in);
    }
}

/* A partial command is read into the connection's own buffer; what begins
 * with a command, as nearly all input does, into the one that all share. What
 * is left of that stays, even if memory is short: little is read then. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct lk_conn *conn = handle->data;
    struct lk_buf *in = &conn->in;

    if (in->len == 0) {
        bool is_short = lk_server_is_short(conn->server);
        *buf = uv_buf_init(conn->server->read_buf,
                           is_short ? SHORT_CHUNK : LK_READ_CHUNK);
        return;
    }
    if (!lk_conn_may_grow(conn)) {
        *buf = uv_buf_init(NULL, 0); /* read_cb gets UV_ENOBUFS */
        return;
    }
    if (conn->in_start > 0) {
        memmove(in->data, in->data + conn->in_start, in->len - conn->in_start);
        in->len -= conn->in_start;
        conn->in_start = 0;
    }
    size_t chunk = conn->roles ? LK_READ_CHUNK : STRANGER_BYTES;
    if (in->cap - in->len < chunk / 4 && latchkey_buf_reserve(in, chunk)) {
        *buf = uv_buf_init(NULL, 0); /* read_cb gets UV_ENOBUFS */
        return;
    }
    *buf = uv_buf_init(in->data + in->len, (unsigned)(in->cap - in->len));
}

/* Input in the buffer that all connections share: what cannot be run now moves
 * to the connection's own. */
static void take_shared(struct lk_conn *conn, size_t len)
{
    struct lk_slice input = {conn->server->read_buf, len};
    size_t done = conn->stuck ? 0 : run_input(conn, input);

    if (done < len && !conn->closing && !conn->quit &&
        latchkey_buf_add(&conn->in, input.data + done, len - done)) {
        lk_conn_close(conn, "out-of-memory");
    }
}

/* Is the last command a claim that waits for another client? */
static bool is_parked(const struct lk_conn *conn)
{
    return conn->hold && conn->tail->waiter.waiting;
}

static void on_end(struct lk_conn *conn, ssize_t result)
{
    /* A client that waits and hangs up has given up; one that only shut down
     * its side after a pipeline still gets its replies. */
    if (result != UV_EOF || is_parked(conn)) {
        lk_conn_close(conn, result == UV_ENOBUFS ? "out-of-memory" : NULL);
        return;
    }
    conn->eof = true;
    lk_conn_stop_reading(conn);
    lk_server_mark_dirty(conn->server, conn);
}

/* Reading stops when more could not be run anyway: the kernel's buffer
 * then fills, and the client is slowed down instead of this daemon's
 * memory growing. */
static void on_read(uv_stream_t *stream, ssize_t result, const uv_buf_t *buf)
{
    struct lk_conn *conn = stream->data;
    struct lk_server *server = conn->server;

    if (result == 0 || conn->closing) {
        return;
    }
    if (result == UV_ENOBUFS && conn->links[LK_LIST_STARVED].in) {
        lk_conn_stop_reading(conn);
        return;
    }
    if (result < 0) {
        on_end(conn, result);
        return;
    }
    conn->read_ns = uv_hrtime();
    conn->active_ms = uv_now(&server->loop);
    server->metrics.bytes_in += (uint64_t)result;
    conn->bytes_in += (uint64_t)result;
    if (buf->base == server->read_buf) {
        take_shared(conn, (size_t)result);
    } else {
        conn->in.len += (size_t)result;
        if (!conn->stuck) {
            run_own_input(conn);
        }
    }
    lk_conn_weigh(conn);
    bool ahead = conn->roles && !lk_server_is_short(server);
    if (!lk_conn_may_grow(conn) ||
        (conn->stuck &&
         conn->in.len - conn->in_start >= (ahead ? READ_AHEAD : 1))) {
        lk_conn_stop_reading(conn);
    }
}

void lk_conn_start_reading(struct lk_conn *conn)
{
    if (conn->reading || conn->closing || conn->quit || conn->eof ||
        conn->links[LK_LIST_STARVED].in || conn->server->stop_by_ms) {
        return;
    }
    if (uv_read_start(&conn->uv.stream, on_alloc, on_read)) {
        lk_conn_close(conn, NULL);
        return;
    }
    conn->reading = true;
    conn->active_ms = uv_now(&conn->server->loop);
}

void lk_conn_stop_reading(struct lk_conn *conn)
{
    if (conn->reading) {
        uv_read_stop(&conn->uv.stream);
        conn->reading = false;
    }
}

void lk_conn_finish(struct lk_conn *conn)
{
    if (is_parked(conn)) {
        lk_conn_close(conn, NULL);
        return;
    }
    conn->quit = true;
    lk_conn_stop_reading(conn);
    lk_server_mark_dirty(conn->server, conn);
}

/* From server->runnable: what was stuck may run now. The input counts as read
 * now, so that a client that has left since is noticed. */
void lk_conn_run(struct lk_conn *conn)
{
    if (conn->closing || conn->server->stop_by_ms) {
        return;
    }
    conn->read_ns = uv_hrtime();
    run_own_input(conn);
    if (!conn->stuck) {
        lk_conn_start_reading(conn);
    }
    lk_conn_weigh(conn);
    lk_server_mark_dirty(conn->server, conn);
}

void lk_conn_start(struct lk_conn *conn)
{
    struct lk_server *server = conn->server;

    conn->id = ++server->last_conn_id;
    conn->proto = 2;
    lk_rights_begin(conn);
    conn->connected_ms = uv_now(&server->loop);
    conn->next = server->conns;
    if (conn->next) {
        conn->next->prev = conn;
    }
    server->conns = conn;
    server->metrics.connections++;
    if (++server->conn_count > server->peak_conns) {
        server->peak_conns = server->conn_count;
    }
    lk_log(LK_LOG_DEBUG, "client-connected", "id=%llu address=%s",
           (unsigned long long)conn->id, conn->address);
    lk_conn_start_reading(conn);
}
