-- +goose Up

-- Usernames are compared by lower case and Unicode NFC.
-- +goose StatementBegin
DO $$
BEGIN
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of database % is %, homenode needs UTF8', current_database(), getdatabaseencoding();
    END IF;
END $$;
-- +goose StatementEnd

-- Lengths are checked by the gateway, which has one limit for both stores.
-- +goose StatementBegin
DO $$
DECLARE
    limited record;
BEGIN
    FOR limited IN
        SELECT table_name, column_name
        FROM information_schema.columns
        WHERE table_schema = current_schema()
          AND table_name IN ('gateway_service', 'gateway_node', 'gateway_user_route')
          AND data_type IN ('character varying', 'character')
          AND character_maximum_length IS NOT NULL
    LOOP
        EXECUTE format('ALTER TABLE %I ALTER COLUMN %I TYPE varchar', limited.table_name, limited.column_name);
    END LOOP;
END $$;
-- +goose StatementEnd

-- User ids are text: a 64-bit integer and a UUID alike. The cast from bigint loses nothing.
ALTER TABLE gateway_user_route ALTER COLUMN user_id DROP DEFAULT;
ALTER TABLE gateway_user_route ALTER COLUMN user_id TYPE text USING user_id::text;
ALTER TABLE gateway_user_route ALTER COLUMN user_id DROP NOT NULL;
ALTER TABLE gateway_user_route ALTER COLUMN username DROP NOT NULL;

ALTER TABLE gateway_user_route ADD COLUMN IF NOT EXISTS username_key varchar;
ALTER TABLE gateway_user_route ADD COLUMN IF NOT EXISTS epoch bigint NOT NULL DEFAULT 1;
ALTER TABLE gateway_service ADD COLUMN IF NOT EXISTS logout_path varchar;
ALTER TABLE gateway_service ADD COLUMN IF NOT EXISTS login_fields jsonb;
ALTER TABLE gateway_node ADD COLUMN IF NOT EXISTS traefik_service varchar;

-- Usernames are unique by their key from now on (00004). An old index over the
-- spelling would refuse a name that moves to another user.
-- +goose StatementBegin
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT i.indexrelid::regclass AS name, c.conname
        FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.contype = 'u'
        WHERE i.indrelid = 'gateway_user_route'::regclass AND i.indisunique AND NOT i.indisprimary
          AND EXISTS (SELECT FROM generate_series(1, i.indnkeyatts) n WHERE pg_get_indexdef(i.indexrelid, n, false) ~ '\musername\M')
    LOOP
        IF old.conname IS NULL THEN
            EXECUTE format('DROP INDEX %s', old.name);
        ELSE
            EXECUTE format('ALTER TABLE gateway_user_route DROP CONSTRAINT %I', old.conname);
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd

-- The old gateway numbered the rows in Java: its id column may have no default, or
-- one that is behind the rows.
-- +goose StatementBegin
DO $$
DECLARE
    numbers text;
BEGIN
    IF EXISTS (
        SELECT FROM information_schema.columns
        WHERE table_schema = current_schema() AND table_name = 'gateway_user_route' AND column_name = 'id'
          AND column_default IS NULL AND is_identity = 'NO'
    ) THEN
        ALTER TABLE gateway_user_route ALTER COLUMN id TYPE bigint;
        CREATE SEQUENCE gateway_user_route_id_seq OWNED BY gateway_user_route.id;
        ALTER TABLE gateway_user_route ALTER COLUMN id SET DEFAULT nextval('gateway_user_route_id_seq');
    END IF;
    numbers := pg_get_serial_sequence('gateway_user_route', 'id');
    IF numbers IS NOT NULL AND EXISTS (SELECT FROM gateway_user_route) THEN
        PERFORM setval(numbers, greatest(nextval(numbers), (SELECT max(id) + 1 FROM gateway_user_route)), false);
    END IF;
END $$;
-- +goose StatementEnd

CREATE TABLE IF NOT EXISTS gateway_login_alias (
    service_id  varchar NOT NULL,
    alias_key   varchar NOT NULL,
    route_id    bigint NOT NULL REFERENCES gateway_user_route (id) ON DELETE CASCADE,
    update_time timestamp NOT NULL DEFAULT now(),
    PRIMARY KEY (service_id, alias_key)
);
CREATE INDEX IF NOT EXISTS gateway_login_alias_route ON gateway_login_alias (route_id);

-- What gateway.KeyOf computes, for rows that are written without it. The server's
-- own lower() knows the letters of its locale only (of ASCII, under C), so ICU is
-- used where it is built in; translate() covers the two letters that Go, which
-- looks at one at a time, lowers differently.
-- +goose StatementBegin
DO $$
DECLARE
    collation_clause text := '';
BEGIN
    IF EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu') THEN
        collation_clause := 'COLLATE "und-x-icu"';
    END IF;
    EXECUTE format($f$
        CREATE FUNCTION gateway_username_key(username text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
        AS 'SELECT normalize(lower(translate(normalize(username, NFC), ''İΣ'', ''iσ'') %s), NFC)'
    $f$, collation_clause);
END $$;
-- +goose StatementEnd
