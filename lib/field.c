/* field.c - the text of HTTP header fields: letters, blanks, order. */
#include "lib/field.h"

unsigned char lk_lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

enum lk_status lk_add_lower(struct lk_slice text, struct lk_buf *out)
{
    enum lk_status status = latchkey_buf_reserve(out, text.len);

    for (size_t i = 0; i < text.len && !status; i++) {
        out->data[out->len++] = (char)lk_lower(text.data[i]);
    }
    return status;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

struct lk_slice lk_trim(struct lk_slice text)
{
    while (text.len && is_blank(text.data[text.len - 1])) {
        text.len--;
    }
    while (text.len && is_blank(text.data[0])) {
        text.data++;
        text.len--;
    }
    return text;
}

int lk_compare_lower(struct lk_slice a, struct lk_slice b)
{
    for (size_t i = 0; i < a.len && i < b.len; i++) {
        int order = lk_lower(a.data[i]) - lk_lower(b.data[i]);
        if (order) {
            return order;
        }
    }
    return (a.len > b.len) - (a.len < b.len);
}

int lk_compare_headers(const void *a, const void *b, const void *unused)
{
    const struct lk_header *x = a, *y = b;

    return lk_compare_lower(x->name, y->name);
}
