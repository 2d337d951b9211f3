/* curl_poll.c - curl's sockets and timer, and the bell, in one epoll. */
#include "courier/curl_poll.h"

#include "courier/courier.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POLL_EVENTS = 256, POLL_SLEEP_MAX_MS = 60000 };

/*
 * A connection is used by call after call, and each time curl asks to watch its
 * socket and then not to. It stays in the epoll in between: it is taken out
 * only if it becomes ready while curl does not want it.
 */
struct lk_poll_socket {
    bool ours;         /* closed by close_socket alone */
    uint32_t in_epoll; /* with these events; 0: it is not */
    uint32_t wanted;   /* by curl */
};

static struct lk_poll_socket *find_poll_socket(const struct lk_poll *poll,
                                               int fd)
{
    bool known = (size_t)fd < poll->socket_cap && poll->sockets[fd].ours;

    return known ? &poll->sockets[fd] : NULL;
}

/* Out of memory: the socket is handled like one that curl has opened itself. */
static void note_socket(struct lk_poll *poll, int fd)
{
    size_t cap = poll->socket_cap ? poll->socket_cap : 64;

    while (cap <= (size_t)fd) {
        cap *= 2;
    }
    if (cap > poll->socket_cap) {
        struct lk_poll_socket *sockets =
            realloc(poll->sockets, cap * sizeof(*sockets));
        if (!sockets) {
            return;
        }
        memset(sockets + poll->socket_cap, 0,
               (cap - poll->socket_cap) * sizeof(*sockets));
        poll->sockets = sockets;
        poll->socket_cap = cap;
    }
    poll->sockets[fd] = (struct lk_poll_socket){.ours = true};
}

static curl_socket_t open_socket(void *context, curlsocktype purpose,
                                 struct curl_sockaddr *address)
{
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC,
                    address->protocol);

    (void)purpose;
    if (fd < 0) {
        return CURL_SOCKET_BAD;
    }
    note_socket(context, fd);
    return fd;
}

/* close() takes it out of the epoll as well. */
static int close_socket(void *context, curl_socket_t fd)
{
    struct lk_poll_socket *found = find_poll_socket(context, fd);

    if (found) {
        *found = (struct lk_poll_socket){0};
    }
    return close(fd);
}

enum lk_status lk_poll_attach(struct lk_poll *poll, CURL *easy)
{
    return curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket) ||
                   curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, poll) ||
                   curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION,
                                    close_socket) ||
                   curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, poll)
               ? LK_NOMEM
               : LK_OK;
}

/* If there is no memory for it, its call ends by its timeout: an error returned
 * to curl would end all calls. */
static void add_to_epoll(struct lk_poll *poll, int fd, uint32_t events,
                         bool known)
{
    struct epoll_event event = {.events = events, .data.fd = fd};

    if (epoll_ctl(poll->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd,
                  &event)) {
        epoll_ctl(poll->epoll, known ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd,
                  &event);
    }
}

static void set_wanted_events(struct lk_poll *poll, int fd, uint32_t events)
{
    struct lk_poll_socket *found = &poll->sockets[fd];

    found->wanted = events;
    if (events && found->in_epoll != events) {
        add_to_epoll(poll, fd, events, found->in_epoll != 0);
        found->in_epoll = events;
    }
}

/* curl says which sockets it waits for, and for what. */
static int note_curl_socket(CURL *easy, curl_socket_t fd, int what,
                            void *context, void *known)
{
    struct lk_poll *poll = context;
    uint32_t events = 0;

    (void)easy;
    if (what != CURL_POLL_REMOVE) {
        events |= what & CURL_POLL_IN ? EPOLLIN : 0;
        events |= what & CURL_POLL_OUT ? EPOLLOUT : 0;
    }
    if (find_poll_socket(poll, fd)) {
        set_wanted_events(poll, fd, events);
    } else if (what == CURL_POLL_REMOVE) {
        epoll_ctl(poll->epoll, EPOLL_CTL_DEL, fd, NULL);
    } else {
        add_to_epoll(poll, fd, events, known != NULL);
        if (!known) {
            curl_multi_assign(poll->multi, fd, poll);
        }
    }
    return 0;
}

static int note_curl_timer(CURLM *multi, long wait_ms, void *context)
{
    struct lk_poll *poll = context;

    (void)multi;
    poll->timer_ms =
        wait_ms < 0 ? UINT64_MAX : lk_courier_clock_ms() + (uint64_t)wait_ms;
    return 0;
}

enum lk_status lk_poll_open(struct lk_poll *poll)
{
    struct epoll_event event = {.events = EPOLLIN};

    *poll = (struct lk_poll){.timer_ms = UINT64_MAX};
    poll->multi = curl_multi_init();
    poll->epoll = epoll_create1(EPOLL_CLOEXEC);
    poll->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    event.data.fd = poll->bell;
    if (!poll->multi || poll->epoll < 0 || poll->bell < 0 ||
        epoll_ctl(poll->epoll, EPOLL_CTL_ADD, poll->bell, &event)) {
        return LK_NOMEM;
    }
    curl_multi_setopt(poll->multi, CURLMOPT_SOCKETFUNCTION, note_curl_socket);
    curl_multi_setopt(poll->multi, CURLMOPT_SOCKETDATA, poll);
    curl_multi_setopt(poll->multi, CURLMOPT_TIMERFUNCTION, note_curl_timer);
    curl_multi_setopt(poll->multi, CURLMOPT_TIMERDATA, poll);
    return LK_OK;
}

void lk_poll_close(struct lk_poll *poll)
{
    curl_multi_cleanup(poll->multi);
    free(poll->sockets);
    if (poll->epoll > 0) {
        close(poll->epoll);
    }
    if (poll->bell > 0) {
        close(poll->bell);
    }
}

/* The bell, a socket that curl waits for, or one that it does not want now. */
static void handle_poll_event(struct lk_poll *poll,
                              const struct epoll_event *event)
{
    struct lk_poll_socket *found = find_poll_socket(poll, event->data.fd);
    uint64_t rings;
    int running;
    int what = 0;

    if (event->data.fd == poll->bell) {
        /* Its count does not matter: the inbox says what is to do. */
        (void)!read(poll->bell, &rings, sizeof(rings));
        return;
    }
    if (found && !found->wanted) {
        epoll_ctl(poll->epoll, EPOLL_CTL_DEL, event->data.fd, NULL);
        found->in_epoll = 0;
        return;
    }
    what |= event->events & EPOLLIN ? CURL_CSELECT_IN : 0;
    what |= event->events & EPOLLOUT ? CURL_CSELECT_OUT : 0;
    what |= event->events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0;
    curl_multi_socket_action(poll->multi, event->data.fd, what, &running);
}

void lk_poll_timers(struct lk_poll *poll)
{
    int running;

    if (poll->timer_ms <= lk_courier_clock_ms()) {
        poll->timer_ms = UINT64_MAX; /* unless curl sets it again */
        curl_multi_socket_action(poll->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

void lk_poll_wait(struct lk_poll *poll, uint64_t until_ms)
{
    struct epoll_event events[POLL_EVENTS];
    uint64_t now_ms = lk_courier_clock_ms();

    until_ms = poll->timer_ms < until_ms ? poll->timer_ms : until_ms;
    uint64_t wait_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    int count = epoll_wait(poll->epoll, events, POLL_EVENTS,
                           wait_ms < POLL_SLEEP_MAX_MS ? (int)wait_ms
                                                       : POLL_SLEEP_MAX_MS);
    for (int i = 0; i < count; i++) {
        handle_poll_event(poll, &events[i]);
    }
}

void lk_poll_ring(struct lk_poll *poll)
{
    uint64_t one = 1;

    (void)!write(poll->bell, &one, sizeof(one));
}
