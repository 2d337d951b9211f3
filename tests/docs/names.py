# Names that fragments of the documents leave open, for an app named shop.
import secrets

idempotency_key = key = "k-" + secrets.token_hex(4)
fingerprint = "f"
tenant, scope = "acme", "POST /orders"
body = '{"order":1}'
charge = '{"amount":4200}'


def charge_the_card():
    return '{"id":"ch_1"}'


def do_the_work(connection):
    connection.execute("SELECT 1")


def respond(status, body):
    print("responded", status, body)


try:
    import psycopg
    connection = psycopg.connect("dbname=shop", autocommit=True)
    connection.execute("SET ROLE shop")
    token = connection.execute(
        "SELECT token FROM latchkey.claim(%s, %s, %s, %s)",
        (tenant, scope, key, fingerprint)).fetchone()[0]
    headers = {"Latchkey-Tenant": tenant, "Latchkey-Scope": scope,
               "Latchkey-Key": key, "Latchkey-Token": str(token)}
except (ImportError, psycopg.Error):  # a fragment that needs none
    connection = None
