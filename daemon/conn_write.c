/* conn_write.c - replies of a connection: in order, then to the kernel. */
#include "daemon/daemon.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    KEEP_BUFFER = 64 * 1024, /* a larger buffer is freed when it is empty */
    FLUSH_AT = 256 * 1024,   /* written before the end of the turn */
};

/* ---- Writing ------------------------------------------------------------- */

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
 * What waits for the client. A single answer may be larger than all the room,
 * if it was stored under other limits or by an app: while it is on its way,
 * only what waits behind it counts.
 */
static size_t waiting_bytes(const struct lk_conn *conn)
{
    size_t under_way = conn->writing.len;

    return conn->out.len +
           (under_way <= conn->server->config.output_bytes ? under_way : 0);
}

/* At once, libuv takes and tells no more than an int can hold. */
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
