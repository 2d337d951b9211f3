/* up_run.c - starts the daemon and nginx, watches them, and stops them. */
#include "cli/up.h"

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
#include <unistd.h>

enum {
    START_TICK_MS = 20, /* nginx tells by a file that it is ready */
    TICK_MS = 250,      /* where no event announces new lines */
    CHUNK = 4096,       /* a pipe that is ready takes so much at once */
};

/* In this order; any may be followed by STOPPING_NGINX. */
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
    pid_t pid; /* 0: not running */
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
    int signals[2];  /* a pipe: what came from the handler */
    unsigned wishes; /* how often it was told to stop */
    bool mute;       /* nobody reads what is printed */
    enum lk_exit result;
};

/* ---- Signals --------------------------------------------------------------
 */

static int signal_pipe = -1;

static void note_signal(int number)
{
    char byte = (char)number;
    int saved = errno;

    (void)!write(signal_pipe, &byte, 1); /* full: enough has come */
    errno = saved;
}

/* No SA_RESTART: a signal gets through to a write that stands still. */
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
            run->wishes++;
        }
    }
}

/* ---- Output ---------------------------------------------------------------
 */

/* Waits until the file takes something. False: it is to stop, and nobody reads;
 * what is left unsaid must not keep it from ending. */
static bool wait_to_write(struct run *run, int fd)
{
    for (;;) {
        struct pollfd polls[] = {{.fd = fd, .events = POLLOUT},
                                 {.fd = run->signals[0], .events = POLLIN}};
        int ready = poll(polls, 2, run->wishes > 0 ? TICK_MS : -1);

        take_signals(run);
        if (ready > 0 && polls[0].revents != 0) {
            return true;
        }
        if (ready == 0 || (ready < 0 && errno != EINTR)) {
            return false;
        }
    }
}

static void write_out(struct run *run, int fd, struct lk_buf *text)
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
            run->wishes++;
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
    write_out(run, STDERR_FILENO, &run->err);
    write_out(run, STDOUT_FILENO, &run->out);
    return more;
}

/* ---- Children -------------------------------------------------------------
 */

/* In the child. Its log is a file, so nothing it writes waits for anybody. */
static void become(const char *program, char *const *words, int log_fd,
                   pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY);

    setpgid(0, 0); /* Ctrl-C is ours alone: the order of the end matters */
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

static void start_child(struct run *run, struct child *child,
                        const char *program, char *const *words, int log_fd)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid == 0) {
        become(program, words, log_fd, parent);
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

static void tell(const struct child *child, int number)
{
    if (child->pid > 0) {
        kill(child->pid, number);
    }
}

/* True: it has just ended, and *status says how. */
static bool has_ended(struct child *child, int *status)
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
        write_out(run, STDERR_FILENO, &run->err);
    }
    if (WIFSIGNALED(status)) {
        lk_complain("%s %s: killed by signal %d (%s)", child->name, when,
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        lk_complain("%s %s: exit status %d%s", child->name, when,
                    WEXITSTATUS(status),
                    starting ? "; its own message stands above" : "");
    }
    run->result = LK_EXIT_FAILED;
}

/* ---- Phases ---------------------------------------------------------------
 */

static void stop_nginx(struct run *run)
{
    run->phase = STOPPING_NGINX;
    lk_up_withdraw(run->up); /* while the address is still ours */
    /* nginx first, and in peace: it may hold answers that the daemon must
     * store. Without a daemon there is nothing to wait for. */
    tell(&run->nginx, run->daemon.pid == 0 ? SIGTERM : SIGQUIT);
}

static void take_wishes(struct run *run, unsigned before)
{
    if (run->wishes == before) {
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
        tell(&run->nginx, SIGTERM);
    } else {
        tell(&run->nginx, SIGKILL);
        tell(&run->daemon, SIGKILL);
    }
}

static void take_ends(struct run *run)
{
    pid_t group = run->nginx.pid;
    int status;

    if (has_ended(&run->nginx, &status)) {
        if (run->phase < STOPPING_NGINX) {
            kill(-group, SIGTERM); /* workers of a master that was killed */
            complain_end(run, &run->nginx, status);
            stop_nginx(run);
        }
    }
    if (has_ended(&run->daemon, &status)) {
        if (run->phase < STOPPING_DAEMON) {
            complain_end(run, &run->daemon, status);
            stop_nginx(run);
        } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            complain_end(run, &run->daemon, status);
        }
    }
}

/* What follows by itself. */
static void go_on(struct run *run)
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
        tell(&run->daemon, SIGTERM);
    }
    if (run->phase == STOPPING_DAEMON && run->daemon.pid == 0) {
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

static void serve(struct run *run)
{
    bool more = true;

    start_daemon(run);
    while (run->phase != OVER) {
        unsigned wishes = run->wishes;

        wait_for_events(run, more);
        more = show_logs(run);
        take_signals(run);
        take_wishes(run, wishes);
        take_ends(run);
        go_on(run);
    }
    while (show_logs(run)) {
    }
}

/* ---- The whole ------------------------------------------------------------
 */

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

static void close_all(struct run *run)
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
        serve(&run);
        result = run.result;
    }
    close_all(&run);
    return result;
}
