/*
 * up_config.c - the nginx configuration that `latchkey up` uses, and what it
 * prints once requests can come. Every value was checked when it was read.
 */
#include "cli/up.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ==== The nginx configuration that `latchkey up` uses. Every value in it was
 * checked when it was read, see up.c */

/* Where Debian's packages put them; for --print-config without either. */
#define USUAL_MODULE      "/usr/lib/nginx/modules/ngx_http_latchkey_module.so"
#define OPERATIONS        "/latchkey/operations/"
#define USUAL_AUTHORITIES "/etc/ssl/certs/ca-certificates.crt"

/* A word for a shell: quoted unless it is plain. */
void lk_up_put_word(struct lk_buf *out, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "abcdefghijklmnopqrstuvwxyz"
                                "0123456789/._-:=@%+,";

    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        lk_put(out, "%s", word);
        return;
    }
    lk_put(out, "'");
    for (; *word != '\0'; word++) {
        lk_put(out, *word == '\'' ? "'\\''" : "%c", *word);
    }
    lk_put(out, "'");
}

/* The options of latchkeyd; the caller frees each word. NULL ends the list. */
void lk_up_daemon_words(const struct lk_up *up, char *words[LK_UP_DAEMON_WORDS])
{
    const struct lk_up_files *files = &up->files;
    size_t i = 0;

    words[i++] = lk_text("--store");
    words[i++] = lk_text("%s", files->store_url);
    words[i++] = lk_text("--listen");
    words[i++] = lk_text("unix:%s", files->socket);
    if (up->async) {
        words[i++] = lk_text("--set");
        words[i++] = lk_text("courier.gateway=unix:%s", files->courier);
    }
    words[i] = NULL;
}

/* As a comment, two words on a line: an option and its value. */
static void put_daemon_command(const struct lk_up *up, struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;
    char *words[LK_UP_DAEMON_WORDS];

    lk_up_daemon_words(up, words);
    lk_put(out, "#   ");
    lk_up_put_word(out,
                   files->latchkeyd == NULL ? "latchkeyd" : files->latchkeyd);
    for (size_t i = 0; words[i] != NULL; i++) {
        lk_put(out, "%s", i % 2 == 0 ? " \\\n#       " : " ");
        lk_up_put_word(out, words[i]);
        free(words[i]);
    }
    lk_put(out, "\n");
}

static void put_nginx_command(const struct lk_up *up, struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;

    lk_put(out, "#   ");
    lk_up_put_word(out, files->nginx == NULL ? "nginx" : files->nginx);
    lk_put(out, " -e stderr -p ");
    lk_up_put_word(out, files->folder);
    lk_put(out, " -c ");
    lk_up_put_word(out, files->config);
    lk_put(out, "\n");
}

/* An existing file stays: another secret would lose every response. */
static void put_random_command(struct lk_buf *out, const char *path)
{
    lk_put(out, "#   test -s ");
    lk_up_put_word(out, path);
    lk_put(out, " || openssl rand -hex 32 >");
    lk_up_put_word(out, path);
    lk_put(out, "\n");
}

/* What `latchkey up` makes itself, as commands for people who copy the file. */
static void put_files_commands(const struct lk_up *up, struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;
    const char *store = files->store == NULL ? files->secret : files->store;
    int length = (int)(strrchr(store, '/') - store);
    char *folder = lk_text("%.*s", length, store);

    lk_put(out, "#   umask 077\n#   mkdir -p ");
    lk_up_put_word(out, files->folder);
    if (length > 0 && strcmp(folder, files->folder) != 0) {
        lk_put(out, " ");
        lk_up_put_word(out, folder);
    }
    lk_put(out, "\n");
    if (!up->plain) {
        put_random_command(out, files->secret);
    }
    free(folder);
}

/* The comment at the top, and the main context of nginx. */
static void put_head(const struct lk_up *up, struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;

    lk_put(
        out,
        "# nginx in front of %s, as \"latchkey up\" starts it.\n"
        "# That command writes this file again each time: copy it before you "
        "change it.\n"
        "#\n"
        "# What must be there first; that command makes it by itself:\n",
        up->app.shown);
    put_files_commands(up, out);
    lk_put(out, "#\n# The daemon that decides which request runs:\n");
    put_daemon_command(up, out);
    lk_put(out,
           "#\n# And nginx, with this file as nginx.conf in that folder:\n");
    put_nginx_command(up, out);
    lk_put(out,
           "\n"
           "load_module \"%s\";\n"
           "\n"
           "# In the foreground, with everything in one private folder.\n"
           "daemon off;\n"
           "master_process on;\n"
           "worker_processes 2;\n"
           "pid \"%s\";\n"
           "error_log stderr warn;\n",
           files->module == NULL ? USUAL_MODULE : files->module, files->pid);
    if (geteuid() == 0) {
        lk_put(out, "# Started by root, so the folder is root's. In production "
                    "use a user of its own.\n"
                    "user root root;\n");
    }
    lk_put(out, "\n"
                "events {\n"
                "    worker_connections 1024;\n"
                "}\n");
}

/* The fields are those of enum field in up_run.c, in the same order. */
static void put_log(const struct lk_up *up, struct lk_buf *out)
{
    lk_put(out,
           "    # One line for each request, which \"latchkey up\" reads; "
           "fields end at a tab.\n"
           "    log_format latchkey escape=json\n"
           "        '$msec\\t$request_method\\t$status\\t$idempotency_verdict"
           "\\t'\n"
           "        '$idempotency_outcome\\t$idempotency_reference\\t"
           "$request_time\\t$request_uri';\n"
           "    access_log \"%s\" latchkey;\n"
           "\n",
           up->files.requests);
}

/* All temporary files in one folder that is removed at the end. */
static void put_places(const struct lk_up *up, struct lk_buf *out)
{
    static const char *const kinds[] = {"client_body", "proxy", "fastcgi",
                                        "uwsgi", "scgi"};

    lk_put(out, "    # Bodies that do not fit into memory.\n");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        lk_put(out, "    %s_temp_path \"%s\";\n", kinds[i],
               up->files.temporary);
    }
    lk_put(out, "    client_max_body_size 64m;\n\n");
}

/* What all servers of the file share. */
static void put_http(const struct lk_up *up, struct lk_buf *out)
{
    lk_put(out,
           "\nhttp {\n"
           "    # Where the daemon listens.\n"
           "    idempotency_server \"unix:%s\";\n\n",
           up->files.socket);
    if (up->async) {
        lk_put(out,
               "    # Where the daemon's courier brings requests that were "
               "accepted for later.\n"
               "    idempotency_courier \"unix:%s\";\n\n",
               up->files.courier);
    }
    if (!up->plain) {
        lk_put(out,
               "    # The key with which tenants are hashed. Keep it with the "
               "store: with another\n"
               "    # one, callers do not find their responses again.\n"
               "    idempotency_secret \"%s\";\n"
               "\n",
               up->files.secret);
    }
    if (up->tenant == NULL) {
        lk_put(out, "    # Who asks: the credential that the request carries. "
                    "A renewed one is another\n"
                    "    # caller; better is an account id that nginx has "
                    "verified.\n"
                    "    map $http_authorization $latchkey_caller {\n"
                    "        \"\"      $http_x_api_key;\n"
                    "        default $http_authorization;\n"
                    "    }\n\n");
    }
    put_log(up, out);
    put_places(up, out);
    if (up->app.scheme == LK_UP_HTTP || up->app.scheme == LK_UP_HTTPS) {
        lk_put(out, "    map $http_upgrade $latchkey_connection {\n"
                    "        \"\"      \"\";\n"
                    "        default upgrade;\n"
                    "    }\n\n");
    }
}

/* ---- The app ------------------------------------------------------------- */

static void put_proxy(const struct lk_up *up, struct lk_buf *out)
{
    const char *authorities = up->files.authorities;

    lk_put(out,
           "            proxy_pass %s;\n"
           "            proxy_http_version 1.1;\n"
           "            proxy_set_header Connection $latchkey_connection;\n"
           "            proxy_set_header Upgrade $http_upgrade;\n"
           "            proxy_set_header X-Forwarded-For "
           "$proxy_add_x_forwarded_for;\n"
           "            proxy_set_header X-Forwarded-Proto $scheme;\n"
           "            proxy_set_header X-Forwarded-Host $http_host;\n",
           up->app.pass);
    if (up->app.scheme == LK_UP_HTTP) {
        lk_put(out, "            proxy_set_header Host $http_host;\n");
        return;
    }
    lk_put(out,
           "            proxy_ssl_server_name on;\n"
           "            proxy_ssl_verify on;\n"
           "            proxy_ssl_verify_depth 5;\n"
           "            proxy_ssl_trusted_certificate \"%s\";\n",
           authorities == NULL ? USUAL_AUTHORITIES : authorities);
}

static const char *const gateway_names[] = {
    [LK_UP_FASTCGI] = "fastcgi",
    [LK_UP_UWSGI] = "uwsgi",
    [LK_UP_SCGI] = "scgi",
};

/* With a script (FastCGI), every request goes to it; without one the app gets
 * the path as PATH_INFO. */
static void put_script(const struct lk_up_app *app, struct lk_buf *out)
{
    const char *gateway = gateway_names[app->scheme];
    const char *slash = app->script == NULL ? NULL : strrchr(app->script, '/');

    if (slash == NULL) {
        lk_put(out,
               "            %s_param SCRIPT_NAME \"\";\n"
               "            %s_param PATH_INFO $document_uri;\n",
               gateway, gateway);
        return;
    }
    lk_put(out,
           "            %s_param SCRIPT_FILENAME \"%s\";\n"
           "            %s_param SCRIPT_NAME \"%s\";\n"
           "            %s_param DOCUMENT_ROOT \"%.*s\";\n",
           gateway, app->script, gateway, slash, gateway,
           slash == app->script ? 1 : (int)(slash - app->script), app->script);
}

/* The parameters of CGI, for FastCGI, uwsgi and SCGI. */
static void put_gateway(const struct lk_up_app *app, struct lk_buf *out)
{
    static const char *const params[][2] = {
        {"REQUEST_METHOD", "$request_method"},
        {"REQUEST_URI", "$request_uri"},
        {"QUERY_STRING", "$query_string"},
        {"CONTENT_TYPE", "$content_type"},
        {"CONTENT_LENGTH", "$content_length"},
        {"DOCUMENT_URI", "$document_uri"},
        {"REQUEST_SCHEME", "$scheme"},
        {"SERVER_PROTOCOL", "$server_protocol"},
        {"SERVER_NAME", "$host"},
        {"SERVER_ADDR", "$server_addr"},
        {"SERVER_PORT", "$server_port"},
        {"REMOTE_ADDR", "$remote_addr"},
        {"REMOTE_PORT", "$remote_port"},
    };
    const char *gateway = gateway_names[app->scheme];

    lk_put(out, "            %s_pass %s;\n", gateway, app->pass);
    for (size_t i = 0; i < sizeof(params) / sizeof(params[0]); i++) {
        /* nginx makes SCGI's length itself, and twice is an error. */
        if (app->scheme != LK_UP_SCGI || i != 4) {
            lk_put(out, "            %s_param %s %s;\n", gateway, params[i][0],
                   params[i][1]);
        }
    }
    put_script(app, out);
    if (app->scheme == LK_UP_FASTCGI) {
        lk_put(out, "            fastcgi_param GATEWAY_INTERFACE CGI/1.1;\n");
    } else if (app->scheme == LK_UP_SCGI) {
        lk_put(out, "            scgi_param SCGI 1;\n");
    }
}

/* ---- The whole ----------------------------------------------------------- */

/* The directives of Latchkey, with their meaning as comments. */
static void put_guard(const struct lk_up *up, struct lk_buf *out)
{
    static const struct {
        const char *mode;
        const char *meaning;
    } modes[] = {
        {"required", "POST and PATCH need an Idempotency-Key"},
        {"optional", "guarded if there is an Idempotency-Key, else passed on"},
        {"observe", "only decides, logs and counts; no response changes"},
    };

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(modes[i].mode, up->mode) == 0) {
            lk_put(out, "            # %s: %s.\n", up->mode, modes[i].meaning);
        }
    }
    lk_put(out,
           "            idempotency %s;\n"
           "            # Some of what else can be set, with its default:\n"
           "            #   idempotency_ttl 24h;      how long responses are "
           "stored\n"
           "            #   idempotency_wait 0;       how long a retry waits "
           "for the first\n"
           "            #   idempotency_keep default; 5xx stores errors too\n"
           "            #   idempotency_methods POST PATCH;\n"
           "\n",
           up->mode);
    if (up->async) {
        lk_put(out,
               "            # Prefer: respond-async gets 202 and a place to "
               "ask; the app gets the\n"
               "            # request from the daemon's courier, without "
               "Authorization and Cookie.\n"
               "            idempotency_async prefer;\n"
               "            idempotency_async_location " OPERATIONS ";\n\n");
    }
}

/* The one place where requests are guarded and passed on to the app. */
static void put_location(const struct lk_up *up, struct lk_buf *out)
{
    lk_put(out, "        location / {\n");
    put_guard(up, out);
    if (up->app.scheme == LK_UP_HTTP || up->app.scheme == LK_UP_HTTPS) {
        put_proxy(up, out);
    } else {
        put_gateway(&up->app, out);
    }
    lk_put(out, "        }\n");
}

/* The same location again, where the courier brings what was accepted. */
static void put_courier(const struct lk_up *up, struct lk_buf *out)
{
    lk_put(out,
           "\n    # For the courier alone.\n"
           "    server {\n"
           "        listen \"unix:%s\";\n"
           "        access_log off;\n\n",
           up->files.courier);
    put_location(up, out);
    lk_put(out, "    }\n");
}

/*
 * The whole file; it needs nothing but `up`, so --print-config prints the same.
 */
void lk_up_put_config(const struct lk_up *up, struct lk_buf *out)
{
    put_head(up, out);
    put_http(up, out);
    lk_put(out, "    server {\n");
    if (up->listen.path != NULL) {
        lk_put(out, "        listen unix:%s;\n", up->listen.path);
    } else {
        lk_put(out, "        listen %s:%u;\n", up->listen.host,
               up->listen.port);
    }
    lk_put(out, "        idempotency_tenant \"%s\"%s;\n\n",
           up->tenant == NULL ? "$latchkey_caller" : up->tenant,
           up->plain ? "" : " hashed");
    put_location(up, out);
    if (up->async) {
        lk_put(out, "\n        # Where clients ask for the outcome.\n"
                    "        location " OPERATIONS " {\n"
                    "            idempotency_operation;\n"
                    "        }\n");
    }
    lk_put(out, "    }\n");
    if (up->async) {
        put_courier(up, out);
    }
    lk_put(out, "}\n");
}

/* ==== What `latchkey up` says once requests can come */

/* Each option of curl has a line of its own: a narrow terminal does not break
 * them, and they can be pasted. */
#define CURL_LINE " \\\n    "

/* ---- A first request ----------------------------------------------------- */

/* The next variable's name in a text with $name or ${name}; *length is its
 * length. NULL: there are no more. */
static const char *next_variable(const char *at, size_t *length)
{
    at = strchr(at, '$');
    if (at == NULL) {
        return NULL;
    }
    at += at[1] == '{' ? 2 : 1;
    *length = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_");
    return at;
}

/* http_x_api_key: X-Api-Key */
static void put_header_name(struct lk_buf *out, const char *name, size_t length)
{
    bool first = true;

    for (size_t i = 0; i < length; i++) {
        char c = name[i];

        if (first && c >= 'a' && c <= 'z') {
            c = (char)(c - 'a' + 'A');
        }
        first = c == '_';
        lk_put(out, "%c", first ? '-' : c);
    }
}

/* What a request needs for one variable of the tenant; arguments go to `url`.
 */
static void put_source(struct lk_buf *words, struct lk_buf *url,
                       const char *name, size_t length)
{
    if (length == 18 && strncmp(name, "http_authorization", length) == 0) {
        lk_put(words, CURL_LINE "-H 'Authorization: Bearer demo'");
    } else if (length > 5 && strncmp(name, "http_", 5) == 0) {
        lk_put(words, CURL_LINE "-H '");
        put_header_name(words, name + 5, length - 5);
        lk_put(words, ": demo'");
    } else if (length > 7 && strncmp(name, "cookie_", 7) == 0) {
        lk_put(words, CURL_LINE "-H 'Cookie: %.*s=demo'", (int)length - 7,
               name + 7);
    } else if (length > 4 && strncmp(name, "arg_", 4) == 0) {
        lk_put(url, "%s%.*s=demo", strchr(url->data, '?') == NULL ? "?" : "&",
               (int)length - 4, name + 4);
    }
}

/* A random UUID (version 4), so that a pasted line is a new operation. */
static void put_key(struct lk_buf *out)
{
    unsigned char bytes[16] = {0};

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
        lk_put(out, "my-first-key");
        return;
    }
    bytes[6] = (unsigned char)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (unsigned char)((bytes[8] & 0x3f) | 0x80);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        lk_put(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
               bytes[i]);
    }
}

/* A command that a person can paste: with everything that the tenant needs. */
static void put_curl(const struct lk_up *up, struct lk_buf *out)
{
    const char *at = up->tenant == NULL ? "$http_authorization" : up->tenant;
    struct lk_buf words = {0};
    struct lk_buf url = {0};
    size_t length;

    if (up->listen.path != NULL) {
        lk_put(&words, CURL_LINE "--unix-socket ");
        lk_up_put_word(&words, up->listen.path);
        lk_put(&url, "http://localhost");
    } else {
        lk_put_raw(&url, latchkey_buf_slice(&up->url));
    }
    lk_put(&url, "%s", up->path);
    while ((at = next_variable(at, &length)) != NULL) {
        put_source(&words, &url, at, length);
    }
    lk_put(out, "  curl -i ");
    lk_up_put_word(out, url.data);
    lk_put_raw(out, latchkey_buf_slice(&words));
    lk_put(out, CURL_LINE "-H 'Idempotency-Key: ");
    put_key(out);
    lk_put(out, "'" CURL_LINE "-H 'Content-Type: application/json'" CURL_LINE
                "-d '{\"amount\":4200,\"currency\":\"eur\","
                "\"customer\":\"cus_1\"}'\n");
    latchkey_buf_free(&words);
    latchkey_buf_free(&url);
}

/* ---- The whole ----------------------------------------------------------- */

/* For people who see it for the first time. */
static const char *mode_meaning(const char *mode)
{
    if (strcmp(mode, "required") == 0) {
        return "POST and PATCH run once for each Idempotency-Key,\n"
               "           and are refused without one";
    }
    if (strcmp(mode, "observe") == 0) {
        return "nothing is changed; what would have been done is\n"
               "           shown below";
    }
    return "POST and PATCH with an Idempotency-Key run once;\n"
           "           without one they pass unguarded";
}

/* What identifies a caller, and what is refused without it. */
static void put_tenant(const struct lk_up *up, struct lk_buf *out)
{
    const char *stored = up->plain ? "as it is" : "as a hash";

    if (up->tenant == NULL) {
        lk_put(out,
               "  callers  identified by Authorization, else by X-Api-Key, "
               "stored %s;\n"
               "           a request with a key and neither is refused "
               "(--tenant changes that)\n",
               stored);
    } else if (strchr(up->tenant, '$') == NULL) {
        lk_put(out,
               "  callers  all clients are one caller, \"%s\": equal keys get\n"
               "           the same response\n",
               up->tenant);
    } else {
        lk_put(out,
               "  callers  identified by %s, stored %s;\n"
               "           a request with a key and without it is refused\n",
               up->tenant, stored);
    }
}

/* As people write it: ~/FILE. */
static void put_shown_path(struct lk_buf *out, const char *path)
{
    const char *home = getenv("HOME");
    size_t length = home == NULL ? 0 : strlen(home);

    if (length > 1 && strncmp(path, home, length) == 0 && path[length] == '/') {
        lk_put(out, "~%s\n", path + length);
    } else {
        lk_put(out, "%s\n", path);
    }
}

/* The shortest line by which another terminal asks this daemon. */
static void put_look(const struct lk_up *up, const char *words,
                     struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;

    lk_up_put_word(out, files->self);
    lk_put(out, " %s", words);
    if (up->announced && !lk_where_is_running()) {
        lk_put(out, " --profile ");
        lk_up_put_word(out, strrchr(files->running, '/') + 1);
    } else if (!up->announced) {
        lk_put(out, " --server unix:");
        lk_up_put_word(out, files->socket);
    }
    lk_put(out, "\n");
}

/* Without the password that it may hold. */
static void put_store(const struct lk_up *up, struct lk_buf *out)
{
    const char *url = up->files.store_url;
    const char *host = strstr(url, "://");
    const char *at;

    if (up->files.store != NULL || host == NULL) {
        put_shown_path(out, up->files.store == NULL ? url : up->files.store);
        return;
    }
    host += 3;
    at = memchr(host, '@', strcspn(host, "/?"));
    lk_put(out, "%.*s", (int)(host - url), url);
    host = at == NULL ? host : at + 1;
    lk_put(out, "%.*s\n", (int)strcspn(host, "?"), host);
}

/* Below a request that was refused for lack of a key, or of a tenant. */
void lk_up_put_hint(const struct lk_up *up, bool tenant, struct lk_buf *out)
{
    if (!tenant) {
        lk_put(out, "  ^ POST and PATCH need an Idempotency-Key header here; "
                    "--mode optional\n    lets them pass without one\n");
    } else if (up->tenant == NULL) {
        lk_put(out, "  ^ it has a key, but does not say who asks: send\n"
                    "    -H 'Authorization: Bearer demo', or start with "
                    "--tenant demo,\n    which makes all clients one caller\n");
    } else {
        lk_put(out,
               "  ^ it has a key, but nothing in %s, which says who asks: "
               "send it\n    as the curl line does, or choose another "
               "--tenant\n",
               up->tenant);
    }
}

/* Printed once, when the first request can come. */
void lk_up_put_banner(const struct lk_up *up, struct lk_buf *out)
{
    lk_put(out,
           "Latchkey is up: %.*s, in front of %s\n\n"
           "  mode     %s: %s\n",
           (int)up->url.len, up->url.data, up->app.shown, up->mode,
           mode_meaning(up->mode));
    put_tenant(up, out);
    lk_put(out, "  store    ");
    put_store(up, out);
    lk_put(out, "  config   ");
    put_shown_path(out, up->files.config);
    lk_put(out, "  inspect  ");
    put_look(up, "list", out);
    if (up->announced) {
        lk_put(out, "           ");
        put_look(up, "find REFERENCE", out);
    }
    lk_put(out,
           "\n"
           "Try this twice; the second response is the first one, replayed:\n"
           "\n");
    put_curl(up, out);
    if (strcmp(up->path, "/") == 0) {
        lk_put(out, "\nIn place of / put a path of your app that takes POST; "
                    "--path PATH prints it.\n");
    }
    if (up->async) {
        lk_put(out, "\n"
                    "With -H 'Prefer: respond-async' and a new key it gets 202 "
                    "at once, with the\n"
                    "Location where the same caller asks for the response.\n");
    }
    lk_put(out, "\nCtrl-C stops it.\n\n");
}
