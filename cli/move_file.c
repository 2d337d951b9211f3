/* move_file.c - a file of lines, which may be long, read one by one. */
#include "cli/move.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 16, LINE_MAX_BYTES = INT32_MAX };

enum lk_exit lk_lines_open(struct lk_lines *lines, const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    struct stat info;

    *lines = (struct lk_lines){.title = standard ? "standard input" : path};
    lines->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (lines->fd < 0) {
        lk_complain("cannot read %s: %s", path, strerror(errno));
        return LK_EXIT_USAGE;
    }
    if (fstat(lines->fd, &info) == 0 && S_ISREG(info.st_mode)) {
        lines->total = (uint64_t)info.st_size;
    }
    return LK_EXIT_DONE;
}

void lk_lines_close(struct lk_lines *lines)
{
    if (lines->fd > STDIN_FILENO) {
        close(lines->fd);
    }
    latchkey_buf_free(&lines->buf);
}

/* Reads more behind what is there, which moves to the front. */
static enum lk_exit read_more(struct lk_lines *lines)
{
    struct lk_buf *buf = &lines->buf;
    ssize_t got;

    if (lines->start > 0) {
        memmove(buf->data, buf->data + lines->start, buf->len - lines->start);
        buf->len -= lines->start;
        lines->searched -= lines->start;
        lines->start = 0;
    }
    if (buf->len > LINE_MAX_BYTES) {
        lk_complain("line %llu of %s is too long",
                    (unsigned long long)lines->number + 1, lines->title);
        return LK_EXIT_NO;
    }
    lk_must(latchkey_buf_reserve(buf, buf->len > CHUNK ? buf->len : CHUNK));
    do {
        got = read(lines->fd, buf->data + buf->len, buf->cap - buf->len);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        lk_complain("cannot read %s: %s", lines->title, strerror(errno));
        return LK_EXIT_FAILED;
    }
    lines->at_end = got == 0;
    buf->len += (size_t)got;
    lines->done += (uint64_t)got;
    return LK_EXIT_DONE;
}

/* The bytes up to the next newline, or to the end; data is NULL there. */
static enum lk_exit find_line(struct lk_lines *lines, struct lk_slice *text)
{
    struct lk_buf *buf = &lines->buf;
    enum lk_exit result = LK_EXIT_DONE;
    const char *newline = NULL;

    while (result == LK_EXIT_DONE && newline == NULL) {
        size_t fresh = buf->len - lines->searched;

        newline =
            fresh > 0 ? memchr(buf->data + lines->searched, '\n', fresh) : NULL;
        lines->searched = buf->len;
        if (newline == NULL && lines->at_end) {
            break;
        }
        if (newline == NULL) {
            result = read_more(lines);
        }
    }
    size_t end = newline == NULL ? buf->len : (size_t)(newline - buf->data);
    *text = (struct lk_slice){0};
    if (result == LK_EXIT_DONE && (newline != NULL || end > lines->start)) {
        *text = (struct lk_slice){buf->data + lines->start, end - lines->start};
        lines->start = newline == NULL ? end : end + 1;
        lines->searched = lines->start;
        lines->number++;
    }
    return result;
}

enum lk_exit lk_lines_next(struct lk_lines *lines, struct lk_line *line,
                           bool *more)
{
    struct lk_slice text;
    struct lk_buf wrong = {0};
    enum lk_exit result = find_line(lines, &text);

    *more = text.data != NULL;
    if (result != LK_EXIT_DONE || !*more) {
        return result;
    }
    enum lk_status status = lk_line_read(text, line, &wrong);
    if (status == LK_NOMEM) {
        lk_must(status);
    }
    if (status != LK_OK) {
        lk_put_raw(&wrong, (struct lk_slice){"", 1});
        lk_complain("line %llu of %s: %s", (unsigned long long)lines->number,
                    lines->title, wrong.data);
        result = LK_EXIT_NO;
    }
    latchkey_buf_free(&wrong);
    return result;
}
