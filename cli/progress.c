/* progress.c - bars: for verify and backup, drawn while another call waits, and
 * for export and import, which draw their own. */
#include "cli/move.h"
#include "lib/time.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MS = 200, BAR_WIDTH = 40 };

/* The lock guards `over`; everything else is the thread's once it runs. */
struct lk_progress {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool over;
    const char *title;
    struct lk_client_options where;
};

/* The number in a line "name:number" of INFO, 0 if there is none. */
static uint64_t info_number(struct lk_slice info, const char *name)
{
    size_t length = strlen(name);

    for (size_t i = 0; i + length < info.len; i++) {
        if ((i == 0 || info.data[i - 1] == '\n') &&
            memcmp(info.data + i, name, length) == 0 &&
            info.data[i + length] == ':') {
            uint64_t number = 0;

            for (i += length + 1;
                 i < info.len && info.data[i] >= '0' && info.data[i] <= '9';
                 i++) {
                number = number * 10 + (uint64_t)(info.data[i] - '0');
            }
            return number;
        }
    }
    return 0;
}

static void draw(const char *title, uint64_t done, uint64_t total)
{
    char bar[BAR_WIDTH + 1];
    double part = done >= total ? 1 : (double)done / (double)total;
    size_t filled = (size_t)(part * BAR_WIDTH);

    memset(bar, '-', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%%\033[K", title, bar, part * 100);
    fflush(stderr);
}

/* True until lk_progress_stop. */
static bool pause_drawing(struct lk_progress *progress)
{
    struct timespec until = lk_wall_after_ms(POLL_MS);
    bool over;

    pthread_mutex_lock(&progress->lock);
    if (!progress->over) {
        pthread_cond_timedwait(&progress->woken, &progress->lock, &until);
    }
    over = progress->over;
    pthread_mutex_unlock(&progress->lock);
    return !over;
}

/* A bar is a comfort: whatever fails here only means that there is none. */
static void *run_thread(void *context)
{
    static const struct lk_slice info[] = {{"INFO", 4}, {"chores", 6}};
    struct lk_progress *progress = context;
    struct lk_client *client = NULL;
    const struct lk_reply *reply;
    enum lk_status status = latchkey_client_open(&progress->where, &client);

    while (status == LK_OK && pause_drawing(progress)) {
        status = latchkey_client_call(client, info, 2, 0, &reply);
        if (status == LK_OK && reply->type == LK_REPLY_TEXT) {
            uint64_t total = info_number(reply->text, "chore_total");

            if (total > 0) {
                draw(progress->title, info_number(reply->text, "chore_done"),
                     total);
            }
        }
    }
    fprintf(stderr, "\r\033[K");
    latchkey_client_close(client);
    return NULL;
}

struct lk_progress *lk_progress_start(const struct lk_cli *cli,
                                      const char *title)
{
    struct lk_progress *progress;

    if (cli->json || !isatty(STDERR_FILENO)) {
        return NULL;
    }
    progress = calloc(1, sizeof(*progress));
    if (progress == NULL) {
        return NULL;
    }
    progress->title = title;
    progress->where = cli->where;
    pthread_mutex_init(&progress->lock, NULL);
    pthread_cond_init(&progress->woken, NULL);
    if (pthread_create(&progress->thread, NULL, run_thread, progress) != 0) {
        free(progress);
        return NULL;
    }
    return progress;
}

void lk_progress_stop(struct lk_progress *progress)
{
    if (progress == NULL) {
        return;
    }
    pthread_mutex_lock(&progress->lock);
    progress->over = true;
    pthread_cond_signal(&progress->woken);
    pthread_mutex_unlock(&progress->lock);
    pthread_join(progress->thread, NULL);
    pthread_cond_destroy(&progress->woken);
    pthread_mutex_destroy(&progress->lock);
    free(progress);
}

/* ---- Drawn by whoever does the work ---------------------------------------
 */

void lk_bar_start(struct lk_bar *bar, const struct lk_cli *cli,
                  const char *title)
{
    *bar = (struct lk_bar){title, !cli->json && isatty(STDERR_FILENO),
                           lk_monotonic_ms()};
}

void lk_bar_show(struct lk_bar *bar, uint64_t done, uint64_t total)
{
    if (bar->on && total > 0 && lk_monotonic_ms() - bar->drawn_ms >= POLL_MS) {
        draw(bar->title, done, total);
        bar->drawn_ms = lk_monotonic_ms();
    }
}

void lk_bar_stop(struct lk_bar *bar)
{
    if (bar->on) {
        fprintf(stderr, "\r\033[K");
        bar->on = false;
    }
}
