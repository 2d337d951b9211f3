/* key.c - `latchkey key`: reads the value of an Idempotency-Key. */
#include "cli/commands.h"

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_key = {
    "Reads VALUE as the value of an Idempotency-Key header, quoted or bare,\n"
    "and prints the key that it means, or why it is refused and where. A\n"
    "value that begins with a dash stands after --.",
    options};

static void show_key(struct lk_cli *cli, struct lk_slice key)
{
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "key", key);
        lk_doc_end_object(&doc);
    } else {
        /* Printable ASCII only: as it is, so that it can be used as it is. */
        lk_put_raw(&cli->out, key);
        lk_put(&cli->out, "\n");
    }
}

static void show_fault(struct lk_cli *cli, struct lk_slice value,
                       enum lk_key_fault fault, size_t at)
{
    const char *text = latchkey_key_fault_text(fault);
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf before = {0};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_null(&doc, "key");
        lk_doc_text(&doc, "fault",
                    latchkey_slice(latchkey_key_fault_name(fault)));
        lk_doc_integer(&doc, "at", (int64_t)at);
        lk_doc_text(&doc, "detail", latchkey_slice(text));
        lk_doc_end_object(&doc);
        return;
    }
    lk_put_text(&before,
                (struct lk_slice){value.data, at < value.len ? at : value.len});
    lk_put(&cli->out, "refused: %s, at offset %zu\n  ", text, at);
    lk_put_text(&cli->out, value);
    lk_put(&cli->out, "\n  %*s^\n",
           (int)lk_put_width(latchkey_buf_slice(&before)), "");
    latchkey_buf_free(&before);
}

enum lk_exit lk_run_key(struct lk_cli *cli)
{
    struct lk_slice value = latchkey_slice(cli->args.words[0]);
    struct lk_buf key = {0};
    enum lk_key_fault fault = LK_KEY_FAULT_NONE;
    size_t at = 0;
    enum lk_status status = latchkey_key_parse(value, &key, &fault, &at);

    if (status == LK_MALFORMED) {
        show_fault(cli, value, fault, at);
        return LK_EXIT_NO;
    }
    lk_must(status);
    show_key(cli, latchkey_buf_slice(&key));
    latchkey_buf_free(&key);
    return LK_EXIT_DONE;
}
