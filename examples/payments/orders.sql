-- The shop of golden.py: one row for each order. Run it once, in the database
-- that `latchkey migrate` has prepared.
--
--   psql -v ON_ERROR_STOP=1 -d shop -f orders.sql

BEGIN;

-- No unique constraint on the key, on purpose: were an order taken twice,
-- nothing here would hide it.
CREATE TABLE orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key      text NOT NULL,
    customer text NOT NULL,
    amount   bigint NOT NULL CHECK (amount > 0), -- in cents
    at       timestamptz NOT NULL DEFAULT now()
);

-- Who runs golden.py: its own table, and Latchkey's functions for apps.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop') THEN
        CREATE ROLE shop LOGIN;
    END IF;
END
$$;
GRANT latchkey_app TO shop;
GRANT SELECT, INSERT ON orders TO shop;

COMMIT;
