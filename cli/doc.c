/* doc.c - writes the one JSON document of a command. */
#include "cli/put.h"

#include "lib/json.h"

static void put_name(struct lk_doc *doc, const char *name, const char *suffix)
{
    struct lk_buf member = {0};

    lk_put(&member, "%s%s", name, suffix);
    for (size_t i = 0; i < member.len; i++) {
        if (member.data[i] == '-') {
            member.data[i] = '_';
        }
    }
    lk_must(latchkey_json_quote(latchkey_buf_slice(&member), doc->out));
    lk_put(doc->out, ":");
    latchkey_buf_free(&member);
}

static void begin_value(struct lk_doc *doc, const char *name,
                        const char *suffix)
{
    if (doc->comma) {
        lk_put(doc->out, ",");
    }
    if (name != NULL) {
        put_name(doc, name, suffix);
    }
}

static void end_value(struct lk_doc *doc)
{
    doc->comma = true;
    if (doc->depth == 0) {
        lk_put(doc->out, "\n");
    }
}

static void open_value(struct lk_doc *doc, const char *name,
                       const char *bracket)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "%s", bracket);
    doc->depth++;
    doc->comma = false;
}

static void close_value(struct lk_doc *doc, const char *bracket)
{
    lk_put(doc->out, "%s", bracket);
    doc->depth--;
    end_value(doc);
}

void lk_doc_object(struct lk_doc *doc, const char *name)
{
    open_value(doc, name, "{");
}

void lk_doc_array(struct lk_doc *doc, const char *name)
{
    open_value(doc, name, "[");
}

void lk_doc_end_object(struct lk_doc *doc)
{
    close_value(doc, "}");
}

void lk_doc_end_array(struct lk_doc *doc)
{
    close_value(doc, "]");
}

void lk_doc_integer(struct lk_doc *doc, const char *name, int64_t number)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "%lld", (long long)number);
    end_value(doc);
}

void lk_doc_bool(struct lk_doc *doc, const char *name, bool value)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "%s", value ? "true" : "false");
    end_value(doc);
}

void lk_doc_null(struct lk_doc *doc, const char *name)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "null");
    end_value(doc);
}

void lk_doc_text(struct lk_doc *doc, const char *name, struct lk_slice text)
{
    if (lk_utf8_valid(text)) {
        begin_value(doc, name, "");
        lk_must(latchkey_json_quote(text, doc->out));
    } else {
        begin_value(doc, name, "_base64");
        lk_put(doc->out, "\"");
        lk_put_base64(doc->out, text);
        lk_put(doc->out, "\"");
    }
    end_value(doc);
}

void lk_doc_reply(struct lk_doc *doc, const char *name,
                  const struct lk_reply *reply)
{
    switch (reply->type) {
    case LK_REPLY_INTEGER:
        lk_doc_integer(doc, name, reply->integer);
        break;
    case LK_REPLY_TEXT:
    case LK_REPLY_ERROR:
        lk_doc_text(doc, name, reply->text);
        break;
    case LK_REPLY_ARRAY:
        lk_doc_array(doc, name);
        for (size_t i = 0; i < reply->count; i++) {
            lk_doc_reply(doc, NULL, &reply->elements[i]);
        }
        lk_doc_end_array(doc);
        break;
    case LK_REPLY_NIL:
        lk_doc_null(doc, name);
        break;
    }
}

void lk_doc_members(struct lk_doc *doc, const struct lk_reply *list)
{
    for (size_t i = 0; i + 1 < list->count; i += 2) {
        struct lk_buf name = {0};

        lk_put_raw(&name, list->elements[i].text);
        lk_put_raw(&name, (struct lk_slice){"", 1});
        lk_doc_reply(doc, name.data, &list->elements[i + 1]);
        latchkey_buf_free(&name);
    }
}
