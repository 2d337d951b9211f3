-- The bank of these examples: accounts, and a ledger with a line for each
-- transfer. Run it once, in the database that `latchkey migrate` has prepared.
--
--   psql -v ON_ERROR_STOP=1 -d bank -f schema.sql

BEGIN;

CREATE TABLE account (
    id      text PRIMARY KEY,
    balance bigint NOT NULL CHECK (balance >= 0)
);

-- No unique constraint on the key, on purpose: were a transfer made twice,
-- nothing here would hide it.
CREATE TABLE ledger (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key    text NOT NULL,
    source text NOT NULL REFERENCES account,
    target text NOT NULL REFERENCES account,
    amount bigint NOT NULL CHECK (amount > 0),
    at     timestamptz NOT NULL DEFAULT now()
);

INSERT INTO account VALUES ('alice', 1000), ('bob', 1000), ('carol', 1000);

-- Who runs the examples: its own tables, and Latchkey's functions for apps.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'bank') THEN
        CREATE ROLE bank LOGIN;
    END IF;
END
$$;
GRANT latchkey_app TO bank;
GRANT SELECT, UPDATE ON account TO bank;
GRANT SELECT, INSERT ON ledger TO bank;

COMMIT;
