/*
 * up_run.c - starts the daemon and nginx of `latchkey up`, watches them,
 * shows their logs, and stops them.
 */
#include "cli/up.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ==== The logs of nginx and the daemon, for people. They are files and not
 * pipes: a terminal that is stopped must not hold up a request */

enum {
    LINE_MAX_BYTES = 256 * 1024,
    HELD_MAX_BYTES = 16 * 1024,
    FREE_STEP = 4 * 1024 * 1024, /* disk space is given back in such steps */
    METHOD_COLUMNS = 16, /* a client may send one of thousands of letters */
};

enum field {
    TIME,
    METHOD,
    STATUS,
    VERDICT,
    OUTCOME,
    REFERENCE,
    DURATION,
    URI,
    FIELDS,
};

/* ---- One request --------------------------------------------------------- */

static bool split_request(struct lk_slice line, struct lk_slice fields[FIELDS])
{
    for (size_t i = 0; i < FIELDS; i++) {
        const char *tab = memchr(line.data, '\t', line.len);
        size_t length = tab == NULL ? line.len : (size_t)(tab - line.data);

        if ((tab == NULL) != (i + 1 == FIELDS)) {
            return false;
        }
        fields[i] = (struct lk_slice){line.data, length};
        if (tab != NULL) {
            line.data += length + 1;
            line.len -= length + 1;
        }
    }
    return true;
}

/* nginx has escaped quotes and control characters, but not all that drives a
 * terminal. */
static void put_field(struct lk_buf *cell, struct lk_slice field)
{
    if (field.len == 0) {
        lk_put(cell, "-");
    } else {
        lk_put_line(cell, field);
    }
}

/* A column is as wide as the widest that was ever in it. */
static void put_method(struct lk_buf *cell, struct lk_slice method)
{
    struct lk_buf text = {0};

    put_field(&text, method);
    lk_put_cut(cell, latchkey_buf_slice(&text), METHOD_COLUMNS);
    latchkey_buf_free(&text);
}

static void put_clock(struct lk_buf *cell, struct lk_slice msec)
{
    time_t seconds = 0;
    struct tm local;
    char text[16] = "-";

    for (size_t i = 0;
         i < msec.len && msec.data[i] >= '0' && msec.data[i] <= '9'; i++) {
        seconds = seconds * 10 + (msec.data[i] - '0');
    }
    if (localtime_r(&seconds, &local) != NULL) {
        strftime(text, sizeof(text), "%H:%M:%S", &local);
    }
    lk_put(cell, "%s", text);
}

/* "1.234" seconds, as nginx writes them. */
static void put_took(struct lk_buf *cell, struct lk_slice seconds)
{
    unsigned long ms = 0;

    for (size_t i = 0; i < seconds.len && i < 12; i++) {
        if (seconds.data[i] >= '0' && seconds.data[i] <= '9') {
            ms = ms * 10 + (unsigned long)(seconds.data[i] - '0');
        }
    }
    if (ms < 10000) {
        lk_put(cell, "%lu ms", ms);
    } else {
        lk_put(cell, "%lu.%lu s", ms / 1000, ms / 100 % 10);
    }
}

/* A query may hold secrets: only that there is one is shown. */
static void put_request_path(struct lk_buf *cell, struct lk_slice uri)
{
    const char *query = memchr(uri.data, '?', uri.len);

    if (query != NULL) {
        uri.len = (size_t)(query - uri.data);
    }
    put_field(cell, uri);
    lk_put(cell, "%s", query == NULL ? "" : "?...");
}

static enum lk_put_colour colour_of(struct lk_slice verdict,
                                    struct lk_slice outcome)
{
    static const struct {
        const char *word;
        enum lk_put_colour colour;
    } colours[] = {
        {"doubted", LK_ALARM},
        {"late", LK_ALARM},
        {"stale", LK_ALARM},
        {"uncertain", LK_ALARM},
        {"unavailable", LK_ALARM},
        {"released", LK_BUSYING},
        {"mismatch", LK_BUSYING},
        {"inflight", LK_BUSYING},
        {"limited", LK_BUSYING},
        {"key_missing", LK_BUSYING},
        {"key_invalid", LK_BUSYING},
        {"tenant_missing", LK_BUSYING},
        {"request_invalid", LK_BUSYING},
        {"too_old", LK_BUSYING},
        {"replay", LK_BOLD},
        {"accepted", LK_GOOD},
        {"new", LK_GOOD},
        {"passed", LK_DIM},
    };

    for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++) {
        struct lk_slice word = latchkey_slice(colours[i].word);

        if (latchkey_slice_equal(word, outcome) ||
            latchkey_slice_equal(word, verdict)) {
            return colours[i].colour;
        }
    }
    return LK_PLAIN;
}

/* Once for each kind: newcomers need it, and no one twice. */
static void put_refusal_hint(struct lk_up_log *log, struct lk_slice verdict,
                             struct lk_buf *out)
{
    static const char *const kinds[] = {"tenant_missing", "key_missing"};

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (latchkey_slice_equal(verdict, latchkey_slice(kinds[i])) &&
            (log->hinted >> i & 1) == 0) {
            log->hinted |= 1U << i;
            lk_up_put_hint(log->up, i == 0, out);
        }
    }
}

static void put_request(struct lk_up_log *log, struct lk_slice line,
                        struct lk_buf *out)
{
    static const char *const names[] = {
        "TIME", "METHOD", "CODE", "VERDICT", "REFERENCE", "TOOK", "PATH"};
    struct lk_slice field[FIELDS];
    struct lk_table *table = &log->table;
    struct lk_buf *cell;

    if (!split_request(line, field)) {
        lk_put_line(out, line);
        lk_put(out, "\n");
        return;
    }
    if (table->widths[0] == 0) {
        lk_table_heading(table, names);
    }
    put_clock(lk_table_cell(table, LK_DIM), field[TIME]);
    put_method(lk_table_cell(table, LK_PLAIN), field[METHOD]);
    put_field(lk_table_cell(table, LK_PLAIN), field[STATUS]);
    cell = lk_table_cell(table, colour_of(field[VERDICT], field[OUTCOME]));
    put_field(cell, field[VERDICT]);
    if (field[OUTCOME].len > 0) {
        lk_put(cell, " ");
        put_field(cell, field[OUTCOME]);
    }
    put_field(lk_table_cell(table, LK_PLAIN), field[REFERENCE]);
    put_took(lk_table_cell(table, LK_DIM), field[DURATION]);
    put_request_path(lk_table_cell(table, LK_PLAIN), field[URI]);
    lk_table_flush(table, out);
    put_refusal_hint(log, field[VERDICT], out);
    log->unreached =
        log->unreached || latchkey_slice_equal(field[STATUS], LK_SLICE("502"));
}

/* ---- A log --------------------------------------------------------------- */

enum lk_exit lk_up_log_open(struct lk_up_log *log, const char *path)
{
    /* Opened for writing too, or the space could not be given back. */
    log->fd =
        open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    if (log->fd < 0) {
        lk_complain("cannot open %s: %s", path, strerror(errno));
        return LK_EXIT_FAILED;
    }
    log->table.columns = FIELDS - 1; /* verdict and outcome are one */
    log->table.right = 1U << 5;
    log->table.rigid = 0x1f; /* only the path is cut on a terminal */
    log->table.widths[1] = 6;
    log->table.widths[3] = 14;
    log->table.widths[4] = 14;
    log->table.widths[5] = 7;
    return LK_EXIT_DONE;
}

static bool has_word(struct lk_slice line, const char *word)
{
    return memmem(line.data, line.len, word, strlen(word)) != NULL;
}

static void put_message(const struct lk_up_log *log, struct lk_slice line,
                        struct lk_buf *err)
{
    lk_put(err, "%s: ", log->name);
    lk_put_line(err, line);
    lk_put(err, "\n");
}

/* What it asks for is an option here. */
static void put_daemon_hint(struct lk_up_log *log, struct lk_slice line,
                            struct lk_buf *err)
{
    if (has_word(line, "run: latchkey migrate") && log->hinted == 0) {
        log->hinted = 1;
        lk_put(err, "latchkey: latchkey up does that with --migrate; until it "
                    "is done, requests with a key get 503\n");
    }
}

/* Shows the held lines, all or those from warning upwards, and goes on holding
 * the rest. What has no level was not written by the daemon's log. */
static void put_held(struct lk_up_log *log, struct lk_buf *err, bool all)
{
    struct lk_buf *held = &log->held;
    size_t kept = 0;

    for (size_t at = 0; at < held->len;) {
        const char *text = held->data + at;
        size_t length =
            (size_t)((const char *)memchr(text, '\n', held->len - at) - text);
        struct lk_slice line = {text, length};

        at += length + 1;
        if (all || !(has_word(line, " level=info ") ||
                     has_word(line, " level=debug "))) {
            put_message(log, line, err);
            put_daemon_hint(log, line, err);
        } else {
            memmove(held->data + kept, text, length + 1);
            kept += length + 1;
        }
    }
    held->len = kept;
}

void lk_up_log_show_held(struct lk_up_log *log, struct lk_buf *err)
{
    put_held(log, err, true);
}

/* Until it is ready, everything is held, so that a failure is shown in order.
 */
static void put_daemon_line(struct lk_up_log *log, struct lk_slice line,
                            struct lk_buf *err)
{
    log->ready = log->ready || has_word(line, " event=ready ");
    if (log->held.len > HELD_MAX_BYTES) {
        put_held(log, err, false);
        log->held.len = 0;
    }
    lk_put_raw(&log->held, line);
    lk_put(&log->held, "\n");
    if (log->ready) {
        put_held(log, err, false);
    }
}

static void put_log_line(struct lk_up_log *log, struct lk_slice line,
                         struct lk_buf *out, struct lk_buf *err)
{
    if (log->name == NULL) {
        put_request(log, line, out);
        return;
    }
    if (log->holds) {
        put_daemon_line(log, line, err);
        return;
    }
    if (line.len > 7 && memcmp(line.data, "nginx: ", 7) == 0) {
        line.data += 7; /* it says so itself while it starts */
        line.len -= 7;
    }
    put_message(log, line, err);
}

/* Takes whole lines from the front of `rest`; an endless one counts as whole.
 */
static void put_log_lines(struct lk_up_log *log, struct lk_buf *out,
                          struct lk_buf *err)
{
    struct lk_buf *rest = &log->rest;
    size_t start = 0;
    const char *end;

    while (start < rest->len &&
           (end = memchr(rest->data + start, '\n', rest->len - start))) {
        size_t length = (size_t)(end - rest->data) - start;

        put_log_line(log, (struct lk_slice){rest->data + start, length}, out,
                     err);
        start += length + 1;
    }
    if (rest->len - start > LINE_MAX_BYTES) {
        put_log_line(log,
                     (struct lk_slice){rest->data + start, rest->len - start},
                     out, err);
        start = rest->len;
    }
    if (start > 0) {
        memmove(rest->data, rest->data + start, rest->len - start);
        rest->len -= start;
    }
}

/* What has been shown takes no space on the disk, however long it runs. A file
 * system that cannot do this keeps the log. */
static void free_space(struct lk_up_log *log)
{
    if (log->seen - log->freed >= FREE_STEP) {
        (void)fallocate(log->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        log->freed, log->seen - log->freed);
        log->freed = log->seen;
    }
}

bool lk_up_log_read(struct lk_up_log *log, struct lk_buf *out,
                    struct lk_buf *err)
{
    char chunk[65536];
    ssize_t length =
        log->fd < 0 ? 0 : pread(log->fd, chunk, sizeof(chunk), log->seen);

    if (length <= 0) {
        return false;
    }
    log->seen += length;
    lk_must(latchkey_buf_add(&log->rest, chunk, (size_t)length));
    put_log_lines(log, out, err);
    free_space(log);
    return true;
}

void lk_up_log_close(struct lk_up_log *log)
{
    if (log->fd >= 0) {
        close(log->fd);
    }
    free(log->table.cells);
    latchkey_buf_free(&log->rest);
    latchkey_buf_free(&log->held);
    log->fd = -1;
}

/* ==== Starts the daemon and nginx, watches them, and stops them */

enum {
    START_TICK_MS = 20, /* nginx writes a file when it is ready */
    TICK_MS = 250,      /* where no event announces new lines */
    CHUNK = 4096,       /* a pipe that is ready takes this much at once */
};

/*
 * The life of a run, in this order; any phase before STOPPING_NGINX may be
 * followed by it.
 *   STARTING_DAEMON   until its log says that it is ready
 *   STARTING_NGINX    until its pid file is there
 *   SERVING           requests can come; the banner is printed, the profile
 *                     announced, the app watched
 *   STOPPING_NGINX    after a signal, or the end of a child; the profile is
 *                     withdrawn
 *   STOPPING_DAEMON   nginx has ended, so no more responses come to be stored
 *   OVER              both have ended; the rest of the logs is shown
 */
enum phase {
    STARTING_DAEMON,
    STARTING_NGINX,
    SERVING,
    STOPPING_NGINX,
    STOPPING_DAEMON,
    OVER,
};

enum { REQUESTS, NGINX, DAEMON, LOGS };

struct child {
    const char *name;
    pid_t pid; /* 0: not running, or its end was noticed */
};

struct run {
    struct lk_up *up;
    enum phase phase;
    struct child daemon;
    struct child nginx;
    struct lk_up_log logs[LOGS];
    struct lk_up_watch watch;
    struct lk_buf out;
    struct lk_buf err;
    int inotify;
    int signals[2]; /* a pipe: what came from the handler */
    unsigned stops; /* how often a signal has asked to stop */
    bool mute;      /* no one reads what is printed */
    enum lk_exit result;
};

/* ---- Signals ------------------------------------------------------------- */

static int signal_pipe = -1;

static void note_signal(int number)
{
    char byte = (char)number;
    int saved = errno;

    (void)!write(signal_pipe, &byte, 1); /* full: enough has come */
    errno = saved;
}

/* No SA_RESTART: a signal gets through to a write that blocks. */
static enum lk_exit catch_signals(struct run *run)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    struct sigaction action = {.sa_handler = note_signal};

    if (pipe2(run->signals, O_CLOEXEC | O_NONBLOCK) < 0) {
        lk_complain("no pipe: %s", strerror(errno));
        return LK_EXIT_FAILED;
    }
    signal_pipe = run->signals[1];
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    return LK_EXIT_DONE;
}

static void take_signals(struct run *run)
{
    char byte;

    while (read(run->signals[0], &byte, 1) == 1) {
        if (byte != SIGCHLD) {
            run->stops++;
        }
    }
}

/* ---- Output -------------------------------------------------------------- */

/* Waits until the file takes something. False: it must stop, and no one reads;
 * output that is left must not keep it from ending. */
static bool wait_to_write(struct run *run, int fd)
{
    for (;;) {
        struct pollfd polls[] = {{.fd = fd, .events = POLLOUT},
                                 {.fd = run->signals[0], .events = POLLIN}};
        int ready = poll(polls, 2, run->stops > 0 ? TICK_MS : -1);

        take_signals(run);
        if (ready > 0 && polls[0].revents != 0) {
            return true;
        }
        if (ready == 0 || (ready < 0 && errno != EINTR)) {
            return false;
        }
    }
}

/* Writes all of `text`, and empties it. It waits for a slow terminal, but once
 * it must stop only for a moment: then the rest is dropped. */
static void write_output(struct run *run, int fd, struct lk_buf *text)
{
    size_t at = 0;

    while (!run->mute && at < text->len && wait_to_write(run, fd)) {
        size_t length = text->len - at < CHUNK ? text->len - at : CHUNK;
        ssize_t written = write(fd, text->data + at, length);

        if (written >= 0) {
            at += (size_t)written;
        } else if (errno != EINTR && errno != EAGAIN) {
            /* A reader that leaves, as head does, has seen enough. */
            run->mute = true;
            run->stops++;
            run->result = LK_EXIT_FAILED;
        }
    }
    text->len = 0;
}

/* True: there may be more. */
static bool show_logs(struct run *run)
{
    bool more = false;

    for (size_t i = 0; i < LOGS; i++) {
        more = lk_up_log_read(&run->logs[i], &run->out, &run->err) || more;
    }
    write_output(run, STDERR_FILENO, &run->err);
    write_output(run, STDOUT_FILENO, &run->out);
    return more;
}

/* ---- Children ------------------------------------------------------------ */

/* In the child. Its log is a file, so it never waits for a reader. */
static void become_child(const char *program, char *const *words, int log_fd,
                         pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY);

    setpgid(0, 0); /* Ctrl-C is ours alone: the order of stopping matters */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(1);
    }
    signal(SIGPIPE, SIG_DFL);
    unsetenv("NOTIFY_SOCKET"); /* it is not the child that is a service */
    unsetenv("NGINX");         /* sockets of another nginx */
    if (dup2(nothing, 0) < 0 || dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0) {
        _exit(1);
    }
    execv(program, words);
    dprintf(2, "cannot run %s: %s\n", program, strerror(errno));
    _exit(127);
}

/* The child gets a process group of its own: Ctrl-C of the terminal reaches
 * only this program, which stops both in order. A child that cannot be
 * started ends the run. */
static void start_child(struct run *run, struct child *child,
                        const char *program, char *const *words, int log_fd)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid == 0) {
        become_child(program, words, log_fd, parent);
    } else if (pid < 0) {
        lk_complain("cannot start %s: %s", child->name, strerror(errno));
        run->result = LK_EXIT_FAILED;
        run->phase = STOPPING_NGINX;
    } else {
        child->pid = pid;
    }
}

static void start_daemon(struct run *run)
{
    const struct lk_up_files *files = &run->up->files;
    char *words[LK_UP_DAEMON_WORDS + 1] = {files->latchkeyd};

    lk_up_daemon_words(run->up, words + 1);
    start_child(run, &run->daemon, files->latchkeyd, words,
                run->logs[DAEMON].fd);
    for (size_t i = 1; words[i] != NULL; i++) {
        free(words[i]);
    }
}

static void start_nginx(struct run *run)
{
    const struct lk_up_files *files = &run->up->files;
    char *const words[] = {files->nginx,  "-e", "stderr",      "-p",
                           files->folder, "-c", files->config, NULL};

    start_child(run, &run->nginx, files->nginx, words, run->logs[NGINX].fd);
}

static void signal_child(const struct child *child, int number)
{
    if (child->pid > 0) {
        kill(child->pid, number);
    }
}

/* True: it has just ended, and *status says how. */
static bool reap_child(struct child *child, int *status)
{
    if (child->pid == 0 || waitpid(child->pid, status, WNOHANG) != child->pid) {
        return false;
    }
    child->pid = 0;
    return true;
}

static void complain_end(struct run *run, const struct child *child, int status)
{
    bool starting = run->phase < SERVING;
    const char *when = starting ? "could not start" : "has ended unexpectedly";

    (void)show_logs(run); /* its own words come first */
    if (child == &run->daemon) {
        lk_up_log_show_held(&run->logs[DAEMON], &run->err);
        write_output(run, STDERR_FILENO, &run->err);
    }
    if (WIFSIGNALED(status)) {
        lk_complain("%s %s: killed by signal %d (%s)", child->name, when,
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        lk_complain("%s %s: exit status %d%s", child->name, when,
                    WEXITSTATUS(status),
                    starting ? "; its own message is above" : "");
    }
    run->result = LK_EXIT_FAILED;
}

/* ---- Phases -------------------------------------------------------------- */

static void stop_nginx(struct run *run)
{
    run->phase = STOPPING_NGINX;
    lk_up_withdraw(run->up); /* while the address is still ours */
    /* nginx first, and gracefully: it may hold responses that the daemon must
     * store. Without a daemon there is nothing to wait for. */
    signal_child(&run->nginx, run->daemon.pid == 0 ? SIGTERM : SIGQUIT);
}

/* First signal: stop gracefully. Second: nginx must end at once. Third: both
 * are killed. */
static void take_stops(struct run *run, unsigned before)
{
    if (run->stops == before) {
        return;
    }
    if (before == 0 && run->phase < STOPPING_NGINX) {
        if (run->phase == SERVING) {
            lk_complain("stopping after the requests in progress; once more to "
                        "stop at once");
        }
        stop_nginx(run);
    } else if (before < 2) {
        lk_complain("stopping at once; what was in progress may be uncertain "
                    "afterwards");
        signal_child(&run->nginx, SIGTERM);
    } else {
        signal_child(&run->nginx, SIGKILL);
        signal_child(&run->daemon, SIGKILL);
    }
}

/* Takes note of a child that has ended. An end that was not asked for is
 * reported, and stops the other one. */
static void take_child_ends(struct run *run)
{
    pid_t group = run->nginx.pid;
    int status;

    if (reap_child(&run->nginx, &status)) {
        if (run->phase < STOPPING_NGINX) {
            kill(-group, SIGTERM); /* workers of a master that was killed */
            complain_end(run, &run->nginx, status);
            stop_nginx(run);
        }
    }
    if (reap_child(&run->daemon, &status)) {
        if (run->phase < STOPPING_DAEMON) {
            complain_end(run, &run->daemon, status);
            stop_nginx(run);
        } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            complain_end(run, &run->daemon, status);
        }
    }
}

/* What follows by itself. */
static void enter_next_phase(struct run *run)
{
    const struct lk_up_files *files = &run->up->files;

    if (run->phase == STARTING_DAEMON && run->logs[DAEMON].ready) {
        run->phase = STARTING_NGINX;
        start_nginx(run);
    }
    if (run->phase == STARTING_NGINX && access(files->pid, F_OK) == 0) {
        run->phase = SERVING;
        run->up->announced = lk_up_announce(run->up);
        lk_up_put_banner(run->up, &run->out);
        lk_up_watch_start(&run->watch, run->up);
    }
    if (run->phase == SERVING && run->out.len == 0) { /* the banner is out */
        if (run->logs[REQUESTS].unreached) {
            run->logs[REQUESTS].unreached = false;
            lk_up_watch_doubt(&run->watch);
        }
        lk_up_watch_step(&run->watch);
    }
    if (run->phase == STOPPING_NGINX && run->nginx.pid == 0) {
        run->phase = STOPPING_DAEMON;
        signal_child(&run->daemon, SIGTERM);
    }
    if (run->phase == STOPPING_DAEMON && run->daemon.pid == 0) {
        assert(run->nginx.pid == 0);
        run->phase = OVER;
    }
}

static void wait_for_events(struct run *run, bool more)
{
    struct pollfd polls[] = {{.fd = run->signals[0], .events = POLLIN},
                             {.fd = run->inotify, .events = POLLIN}};
    char events[4096];
    int timeout = run->phase < SERVING ? START_TICK_MS : TICK_MS;

    (void)poll(polls, 2, more ? 0 : timeout);
    while (run->inotify >= 0 &&
           read(run->inotify, events, sizeof(events)) > 0) {
    }
}

/* Each round: wait, show what is new, take signals and ends, go to the next
 * phase. */
static void serve_until_stopped(struct run *run)
{
    bool more = true;

    start_daemon(run);
    while (run->phase != OVER) {
        unsigned stops = run->stops;

        wait_for_events(run, more);
        more = show_logs(run);
        take_signals(run);
        take_stops(run, stops);
        take_child_ends(run);
        enter_next_phase(run);
    }
    while (show_logs(run)) {
    }
}

/* ---- The whole ----------------------------------------------------------- */

static enum lk_exit open_logs(struct run *run)
{
    const struct lk_up_files *files = &run->up->files;
    const char *const paths[LOGS] = {
        [REQUESTS] = files->requests,
        [NGINX] = files->nginx_log,
        [DAEMON] = files->daemon_log,
    };
    enum lk_exit result = LK_EXIT_DONE;

    /* Without it the logs are looked at now and then. */
    run->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    for (size_t i = 0; i < LOGS && result == LK_EXIT_DONE; i++) {
        result = lk_up_log_open(&run->logs[i], paths[i]);
        if (run->inotify >= 0) {
            (void)inotify_add_watch(run->inotify, paths[i], IN_MODIFY);
        }
    }
    run->logs[NGINX].name = run->nginx.name;
    run->logs[DAEMON].name = run->daemon.name;
    run->logs[DAEMON].holds = true;
    run->logs[REQUESTS].table.colour = run->up->cli->colour;
    run->logs[REQUESTS].up = run->up;
    return result;
}

static void close_run(struct run *run)
{
    for (size_t i = 0; i < LOGS; i++) {
        lk_up_log_close(&run->logs[i]);
    }
    if (run->inotify >= 0) {
        close(run->inotify);
    }
    lk_up_watch_stop(&run->watch);
    latchkey_buf_free(&run->out);
    latchkey_buf_free(&run->err);
}

enum lk_exit lk_up_run(struct lk_up *up)
{
    struct run run = {
        .up = up,
        .daemon = {.name = "latchkeyd"},
        .nginx = {.name = "nginx"},
        .logs = {{.fd = -1}, {.fd = -1}, {.fd = -1}},
        .watch = {.fd = -1},
        .inotify = -1,
        .result = LK_EXIT_DONE,
    };
    enum lk_exit result = catch_signals(&run);

    if (result == LK_EXIT_DONE) {
        result = open_logs(&run);
    }
    if (result == LK_EXIT_DONE) {
        serve_until_stopped(&run);
        result = run.result;
    }
    close_run(&run);
    return result;
}
