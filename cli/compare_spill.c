/* compare_spill.c - items of one size, in partitions of one file. */
#include "cli/compare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum lk_status lk_spill_open(struct lk_spill *spill, int fd, size_t stride,
                             unsigned parts, size_t block)
{
    block = block < stride ? stride : block - block % stride;
    *spill = (struct lk_spill){
        .fd = fd,
        .stride = stride,
        .parts = parts,
        .block = block,
        .buffers = malloc(parts * block),
        .fill = calloc(parts, sizeof(*spill->fill)),
        .counts = calloc(parts, sizeof(*spill->counts)),
        .chains = calloc(parts, sizeof(*spill->chains)),
    };
    if (spill->buffers == NULL || spill->fill == NULL ||
        spill->counts == NULL || spill->chains == NULL) {
        lk_spill_close(spill);
        return LK_NOMEM;
    }
    return LK_OK;
}

static enum lk_status write_block(int fd, const char *data, size_t length,
                                  uint64_t at)
{
    while (length > 0) {
        ssize_t put = pwrite(fd, data, length, (off_t)at);

        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return errno == ENOSPC || errno == EDQUOT || errno == EFBIG
                       ? LK_FULL
                       : LK_IO;
        }
        data += put;
        length -= (size_t)put;
        at += (uint64_t)put;
    }
    return LK_OK;
}

static enum lk_status flush(struct lk_spill *spill, unsigned part)
{
    size_t length = spill->fill[part];
    enum lk_status status;

    if (length == 0) {
        return LK_OK;
    }
    status = write_block(spill->fd, spill->buffers + part * spill->block,
                         length, spill->end);
    if (status == LK_OK) {
        status = latchkey_buf_add(&spill->chains[part], &spill->end,
                                  sizeof(spill->end));
    }
    spill->end += length;
    spill->fill[part] = 0;
    return status;
}

enum lk_status lk_spill_add(struct lk_spill *spill, unsigned part,
                            const void *item)
{
    enum lk_status status = LK_OK;

    if (spill->fill[part] == spill->block) {
        status = flush(spill, part);
    }
    if (status == LK_OK) {
        memcpy(spill->buffers + part * spill->block + spill->fill[part], item,
               spill->stride);
        spill->fill[part] += spill->stride;
        spill->counts[part]++;
    }
    return status;
}

enum lk_status lk_spill_seal(struct lk_spill *spill)
{
    enum lk_status status = LK_OK;

    for (unsigned i = 0; i < spill->parts && status == LK_OK; i++) {
        status = flush(spill, i);
    }
    free(spill->buffers);
    spill->buffers = NULL;
    return status;
}

void lk_spill_close(struct lk_spill *spill)
{
    for (unsigned i = 0; spill->chains != NULL && i < spill->parts; i++) {
        latchkey_buf_free(&spill->chains[i]);
    }
    free(spill->buffers);
    free(spill->fill);
    free(spill->counts);
    free(spill->chains);
    if (spill->parts > 0) {
        close(spill->fd);
    }
    *spill = (struct lk_spill){0};
}

/* ---- Reading --------------------------------------------------------------
 */

void lk_spill_read(struct lk_spill_reader *reader, const struct lk_spill *spill,
                   unsigned part)
{
    *reader = (struct lk_spill_reader){
        .spill = spill,
        .part = part,
        .left = spill->counts[part],
        .buffer = malloc(spill->block),
    };
    reader->status = reader->buffer == NULL ? LK_NOMEM : LK_OK;
}

static enum lk_status read_block(struct lk_spill_reader *reader)
{
    const struct lk_spill *spill = reader->spill;
    uint64_t bytes = reader->left * spill->stride;
    size_t length = bytes < spill->block ? (size_t)bytes : spill->block;
    uint64_t at;

    memcpy(&at, spill->chains[reader->part].data + reader->chain * sizeof(at),
           sizeof(at));
    reader->chain++;
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(spill->fd, reader->buffer + done, length - done,
                            (off_t)(at + done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return LK_IO;
        }
        done += (size_t)got;
    }
    reader->at = 0;
    reader->filled = length;
    return LK_OK;
}

const void *lk_spill_next(struct lk_spill_reader *reader)
{
    if (reader->status != LK_OK || reader->left == 0) {
        return NULL;
    }
    if (reader->at == reader->filled) {
        reader->status = read_block(reader);
    }
    if (reader->status != LK_OK) {
        return NULL;
    }
    const void *item = reader->buffer + reader->at;
    reader->at += reader->spill->stride;
    reader->left--;
    return item;
}

enum lk_status lk_spill_read_end(struct lk_spill_reader *reader)
{
    enum lk_status status = reader->status;

    free(reader->buffer);
    *reader = (struct lk_spill_reader){0};
    return status;
}
