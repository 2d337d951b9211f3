/* webhook_sign.c - HMAC-SHA-256 over id, timestamp and body. */
#include "courier/webhook_sign.h"

#include <inttypes.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum { KEY_MAX = 512, HASH = 32 };

/* Base64, with or without its padding. Returns the number of bytes; 0: it is
 * not base64. */
static size_t read_base64(struct lk_slice text, unsigned char key[KEY_MAX])
{
    unsigned char padded[KEY_MAX + 4];
    size_t len = text.len;

    while (len && text.data[len - 1] == '=') {
        len--;
    }
    size_t whole = (len + 3) / 4 * 4;
    memcpy(padded, text.data, len);
    memset(padded + len, '=', whole - len);
    int read = whole - len > 2 ? 0 : EVP_DecodeBlock(key, padded, (int)whole);
    explicit_bzero(padded, sizeof(padded));
    /* What it returns counts the padding as bytes. */
    return read > 0 ? (size_t)read - (whole - len) : 0;
}

/* Returns the number of bytes of the key; 0: it cannot be read. */
static size_t read_key(struct lk_slice secret, unsigned char key[KEY_MAX])
{
    static const char prefix[] = "whsec_";
    size_t len = sizeof(prefix) - 1;

    if (secret.len > KEY_MAX) {
        return 0;
    }
    if (secret.len >= len && !memcmp(secret.data, prefix, len)) {
        return read_base64(
            (struct lk_slice){secret.data + len, secret.len - len}, key);
    }
    memcpy(key, secret.data, secret.len);
    return secret.len;
}

/* False: out of memory. */
static bool compute_hmac(const unsigned char *key, size_t key_len,
                         struct lk_slice head, struct lk_slice body,
                         unsigned char hash[HASH])
{
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = mac ? EVP_MAC_CTX_new(mac) : NULL;
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(
                               OSSL_MAC_PARAM_DIGEST, (char[]){"SHA256"}, 0),
                           OSSL_PARAM_construct_end()};
    size_t len = 0;
    bool good =
        context && EVP_MAC_init(context, key, key_len, params) &&
        EVP_MAC_update(context, (const unsigned char *)head.data, head.len) &&
        EVP_MAC_update(context, (const unsigned char *)body.data, body.len) &&
        EVP_MAC_final(context, hash, &len, HASH) && len == HASH;

    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    return good;
}

/* One signature, if the secret can be read. */
static enum lk_status add_signature(struct lk_slice secret,
                                    struct lk_slice head, struct lk_slice body,
                                    struct lk_buf *text)
{
    unsigned char key[KEY_MAX];
    unsigned char hash[HASH];
    char base64[HASH * 2];
    size_t len = read_key(secret, key);

    if (!len) {
        return LK_OK;
    }
    bool good = compute_hmac(key, len, head, body, hash);
    explicit_bzero(key, sizeof(key));
    if (!good) {
        return LK_NOMEM;
    }
    EVP_EncodeBlock((unsigned char *)base64, hash, HASH);
    return latchkey_buf_printf(text, "%sv1,%s", text->len ? " " : "", base64);
}

/* One signature for each secret, with spaces between. */
static enum lk_status add_signatures(struct lk_slice secrets,
                                     struct lk_slice head, struct lk_slice body,
                                     struct lk_buf *text)
{
    enum lk_status status = LK_OK;

    while (secrets.len && !status) {
        const char *space = memchr(secrets.data, ' ', secrets.len);
        size_t len = space ? (size_t)(space - secrets.data) : secrets.len;
        status = add_signature((struct lk_slice){secrets.data, len}, head, body,
                               text);
        len += space != NULL;
        secrets.data += len;
        secrets.len -= len;
    }
    return !status && !text->len ? LK_INVALID : status;
}

enum lk_status lk_sign(struct lk_slice secret, struct lk_slice id,
                       uint64_t seconds, struct lk_slice body,
                       struct lk_buf *headers)
{
    struct lk_buf head = {0};
    struct lk_buf text = {0};
    enum lk_status status = latchkey_buf_printf(&head, "%.*s.%" PRIu64 ".",
                                                (int)id.len, id.data, seconds);

    if (!status) {
        status = add_signatures(secret, latchkey_buf_slice(&head), body, &text);
    }
    if (!status) {
        status = latchkey_buf_printf(
            headers,
            "webhook-id: %.*s\r\nwebhook-timestamp: %" PRIu64
            "\r\nwebhook-signature: %.*s\r\n",
            (int)id.len, id.data, seconds, (int)text.len, text.data);
    }
    latchkey_buf_free(&head);
    latchkey_buf_free(&text);
    return status;
}
