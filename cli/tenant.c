/* tenant.c - `latchkey tenant`: a tenant as the gateway stores it, hashed. */
#include "cli/commands.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

/* As nginx has them: idempotency_secret, and `hashed` of idempotency_tenant. */
enum { SECRET_LEAST = 16, HASH_BYTES = 16 };

static const struct lk_option options[] = {
    {"secret-file", "FILE", "the file of nginx's idempotency_secret"},
    {0},
};

const struct lk_manual lk_manual_tenant = {
    "Prints the tenant that a VALUE becomes with \"idempotency_tenant ...\n"
    "hashed\" in nginx, so that latchkey list --tenant and others find it. If\n"
    "VALUE is -, it is read from standard input: where it is a credential,\n"
    "others could see it on a command line.",
    options};

/* Line ends after a secret or a value do not count. */
static enum lk_exit read_value(const char *path, struct lk_buf *value)
{
    enum lk_exit result = lk_read_file(path, value);

    while (value->len > 0 &&
           strchr("\r\n", value->data[value->len - 1]) != NULL) {
        value->len--;
    }
    return result;
}

static void show_tenant(struct lk_cli *cli, struct lk_slice secret,
                        struct lk_slice value)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf tenant = {0};
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned length;

    if (HMAC(EVP_sha256(), secret.data, (int)secret.len,
             (const unsigned char *)value.data, value.len, mac,
             &length) == NULL) {
        lk_must(LK_NOMEM);
    }
    lk_put(&tenant, "h:");
    for (size_t i = 0; i < HASH_BYTES; i++) {
        lk_put(&tenant, "%02x", mac[i]);
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "tenant", latchkey_buf_slice(&tenant));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&tenant, "\n");
        lk_put_raw(&cli->out, latchkey_buf_slice(&tenant));
    }
    latchkey_buf_free(&tenant);
}

enum lk_exit lk_run_tenant(struct lk_cli *cli)
{
    const char *path = lk_args_value(&cli->args, "secret-file");
    const char *word = cli->args.words[0];
    struct lk_buf secret = {0};
    struct lk_buf value = {0};
    enum lk_exit result = LK_EXIT_DONE;

    if (path == NULL) {
        return lk_complain_usage(cli, "name the file of nginx's "
                                      "idempotency_secret with --secret-file");
    }
    if (strcmp(word, "-") == 0) {
        result = read_value(word, &value);
    } else {
        lk_put_raw(&value, latchkey_slice(word));
    }
    if (result == LK_EXIT_DONE) {
        result = read_value(path, &secret);
    }
    if (result == LK_EXIT_DONE && secret.len < SECRET_LEAST) {
        lk_complain("%s is shorter than %d bytes; nginx would refuse it as "
                    "idempotency_secret",
                    path, SECRET_LEAST);
        result = LK_EXIT_USAGE;
    } else if (result == LK_EXIT_DONE && value.len == 0) {
        result = lk_complain_usage(cli, "the value is empty; nginx would "
                                        "refuse such a tenant");
    }
    if (result == LK_EXIT_DONE) {
        show_tenant(cli, latchkey_buf_slice(&secret),
                    latchkey_buf_slice(&value));
    }
    latchkey_buf_free(&secret);
    latchkey_buf_free(&value);
    return result;
}
