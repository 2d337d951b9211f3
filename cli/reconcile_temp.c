/* reconcile_temp.c - files that vanish with the program. */
#include "cli/reconcile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPOOL_BUFFER = 1 << 18 };

/* /tmp is often a file system in memory, which would defeat the purpose. */
static const char *folder(void)
{
    const char *named = getenv("TMPDIR");

    if (named != NULL && *named != '\0') {
        return named;
    }
    return access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

enum lk_status lk_temporary(void *context, int *fd)
{
    struct lk_buf path = {0};

    (void)context;
    *fd = open(folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0) { /* not every file system can do that */
        lk_put(&path, "%s/latchkey.XXXXXX", folder());
        *fd = mkostemp(path.data, O_CLOEXEC);
        if (*fd >= 0) {
            unlink(path.data);
        }
        latchkey_buf_free(&path);
    }
    if (*fd < 0) {
        lk_complain("cannot make a temporary file in %s: %s; TMPDIR names "
                    "another folder",
                    folder(), strerror(errno));
        return LK_IO;
    }
    return LK_OK;
}

/* ---- Texts ----------------------------------------------------------------
 */

static enum lk_status flush(struct lk_spool *spool)
{
    size_t done = 0;

    while (done < spool->buf.len) {
        ssize_t put = pwrite(spool->fd, spool->buf.data + done,
                             spool->buf.len - done, (off_t)(spool->end + done));

        if (put < 0 && errno != EINTR) {
            return errno == ENOSPC || errno == EDQUOT ? LK_FULL : LK_IO;
        }
        done += put < 0 ? 0 : (size_t)put;
    }
    spool->end += done;
    spool->buf.len = 0;
    return LK_OK;
}

enum lk_status lk_spool_add(struct lk_spool *spool,
                            const struct lk_slice *texts, size_t count,
                            uint64_t *place)
{
    enum lk_status status = LK_OK;

    if (spool->fd < 0) {
        status = lk_temporary(NULL, &spool->fd);
    }
    if (status == LK_OK && spool->buf.len > SPOOL_BUFFER) {
        status = flush(spool);
    }
    if (status != LK_OK) {
        return status;
    }
    *place = spool->end + spool->buf.len;
    for (size_t i = 0; i < count; i++) {
        size_t length =
            texts[i].len < LK_SPOOL_TEXT ? texts[i].len : LK_SPOOL_TEXT;
        uint8_t prefix = (uint8_t)length;

        lk_must(latchkey_buf_add(&spool->buf, &prefix, 1));
        lk_must(latchkey_buf_add(&spool->buf, texts[i].data, length));
    }
    return LK_OK;
}

enum lk_status lk_spool_get(struct lk_spool *spool, uint64_t place,
                            struct lk_buf *buf, struct lk_slice *texts,
                            size_t count)
{
    size_t most = count * (LK_SPOOL_TEXT + 1);
    enum lk_status status = spool->buf.len > 0 ? flush(spool) : LK_OK;
    ssize_t got;
    size_t at = 0;

    if (status != LK_OK) {
        return status;
    }
    buf->len = 0;
    lk_must(latchkey_buf_reserve(buf, most));
    got = pread(spool->fd, buf->data, most, (off_t)place);
    if (got < 0) {
        return LK_IO;
    }
    buf->len = (size_t)got;
    for (size_t i = 0; i < count; i++) {
        size_t length = at < buf->len ? (uint8_t)buf->data[at] : 0;

        if (at + 1 + length > buf->len) {
            return LK_IO;
        }
        texts[i] = (struct lk_slice){buf->data + at + 1, length};
        at += 1 + length;
    }
    return LK_OK;
}

void lk_spool_close(struct lk_spool *spool)
{
    if (spool->fd >= 0) {
        close(spool->fd);
    }
    latchkey_buf_free(&spool->buf);
    spool->fd = -1;
}
