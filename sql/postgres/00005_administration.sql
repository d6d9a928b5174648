-- Placement and weights, imports that can be undone, and the record of every change.

-- +goose Up
SET LOCAL lock_timeout = '2s'; -- nobody waits behind this one if it has to wait; it is tried again

ALTER TABLE gateway_service ADD COLUMN IF NOT EXISTS placement varchar; -- NULL: round-robin
ALTER TABLE gateway_node ADD COLUMN IF NOT EXISTS weight integer NOT NULL DEFAULT 1;
ALTER TABLE gateway_node ADD COLUMN IF NOT EXISTS accept_new smallint NOT NULL DEFAULT 1;
ALTER TABLE gateway_user_route ADD COLUMN IF NOT EXISTS import_id bigint;

-- When a row was made decides what a user had at some time: rows written by hand
-- tell it in UTC too, whatever the zone of the session.
ALTER TABLE gateway_user_route ALTER COLUMN create_time SET DEFAULT (now() AT TIME ZONE 'UTC');
ALTER TABLE gateway_user_route ALTER COLUMN update_time SET DEFAULT (now() AT TIME ZONE 'UTC');

CREATE TABLE gateway_import (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service_id  varchar NOT NULL,
    node_id     varchar, -- NULL: every line names its own
    source      varchar NOT NULL,
    state       varchar NOT NULL,
    run         bigint NOT NULL DEFAULT 1,
    actor       varchar NOT NULL,
    read        bigint NOT NULL DEFAULT 0,
    bound       bigint NOT NULL DEFAULT 0,
    unchanged   bigint NOT NULL DEFAULT 0,
    skipped     bigint NOT NULL DEFAULT 0,
    conflicts   bigint NOT NULL DEFAULT 0,
    invalid     bigint NOT NULL DEFAULT 0,
    removed     bigint NOT NULL DEFAULT 0,
    kept        bigint NOT NULL DEFAULT 0,
    create_time timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    update_time timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')
);

-- As in 00004, but many new rows at once do not empty every cache: who has no
-- binding is in no cache. A new username may take a name that led to an alias.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gateway_user_route_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    services text[];
    users    text[];
    keys     text[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(service_id), array_agg(user_id), array_agg(username_key) INTO services, users, keys FROM new_rows;
        IF cardinality(services) > 200 THEN
            SELECT array_agg(a.service_id), array_agg(NULL::text), array_agg(a.alias_key) INTO services, users, keys
            FROM gateway_login_alias a JOIN new_rows n ON a.service_id = n.service_id AND a.alias_key = n.username_key;
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(service_id), array_agg(user_id), array_agg(username_key) INTO services, users, keys FROM old_rows;
    ELSE
        SELECT array_agg(service_id), array_agg(user_id), array_agg(username_key) INTO services, users, keys FROM (
            SELECT service_id, user_id, username_key FROM old_rows
            UNION ALL
            SELECT service_id, user_id, username_key FROM new_rows
            UNION ALL
            SELECT a.service_id, NULL, a.alias_key FROM gateway_login_alias a JOIN new_rows n ON a.route_id = n.id
        ) AS changed;
    END IF;
    PERFORM gateway_notify_lookups(services, users, keys);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- It refers to what may be gone: no foreign keys.
CREATE TABLE gateway_audit (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at                  timestamp NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC'),
    actor               varchar NOT NULL,
    address             varchar,
    request_id          varchar,
    action              varchar NOT NULL,
    service_id          varchar,
    node_id             varchar,
    user_id             text,
    username            varchar,
    username_key_before varchar,
    username_key_after  varchar,
    before              jsonb,
    after               jsonb
);
CREATE INDEX gateway_audit_at ON gateway_audit (at);
CREATE INDEX gateway_audit_user ON gateway_audit (service_id, user_id, id) WHERE user_id IS NOT NULL;
CREATE INDEX gateway_audit_key_before ON gateway_audit (username_key_before, service_id, id) WHERE username_key_before IS NOT NULL;
CREATE INDEX gateway_audit_key_after ON gateway_audit (username_key_after, service_id, id) WHERE username_key_after IS NOT NULL;

-- +goose StatementBegin
CREATE FUNCTION gateway_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'gateway_audit is append-only: % is refused', TG_OP;
END $$;
-- +goose StatementEnd
CREATE TRIGGER gateway_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON gateway_audit
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_audit_refuse();

-- A change by hand that forgets update_time must not look like none: the undo of
-- an import leaves rows that have changed.
-- +goose StatementBegin
CREATE FUNCTION gateway_user_route_touched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.update_time := clock_timestamp() AT TIME ZONE 'UTC';
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER gateway_user_route_touched BEFORE UPDATE ON gateway_user_route FOR EACH ROW
    WHEN (NEW.update_time IS NOT DISTINCT FROM OLD.update_time
        AND (NEW.service_id, NEW.user_id, NEW.username, NEW.node_id, NEW.epoch)
            IS DISTINCT FROM (OLD.service_id, OLD.user_id, OLD.username, OLD.node_id, OLD.epoch))
    EXECUTE FUNCTION gateway_user_route_touched();

-- A binding as gateway.AuditBindingChange writes it, from a row of the table.
-- +goose StatementBegin
CREATE FUNCTION gateway_audit_binding(r jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'id', r->'id', 'serviceId', coalesce(r->>'service_id', ''), 'userId', nullif(r->>'user_id', ''),
        'username', nullif(r->>'username', ''), 'nodeId', coalesce(r->>'node_id', ''), 'epoch', r->'epoch', 'importId', nullif(r->'import_id', 'null'::jsonb),
        'createTime', coalesce(r->>'create_time', r->>'update_time', '1970-01-01T00:00:00') || 'Z'))
$$;
-- +goose StatementEnd

-- What the gateway changes it records itself: its connections are named "homenode",
-- or "homenode:" and a name. Anybody else's changes to bindings are recorded here,
-- also those of a role that may not write the audit itself: the function is its
-- owner's, so every name in it says its schema, and the temporary schema, where
-- anybody may put a table of the same name, is searched last. A row that is given to
-- another user or service is one that ends and one that begins, so that both are
-- found by their own.
-- +goose StatementBegin
DO $$
BEGIN
    -- The entry of a row that became another, as gateway.AuditBindingChange makes it.
    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_audit_entry(was jsonb, is_now jsonb)
        RETURNS TABLE (actor text, address text, action text, service_id text, node_id text, user_id text, username text,
            username_key_before text, username_key_after text, before jsonb, after jsonb) LANGUAGE sql STABLE AS $body$
            SELECT 'sql:' || session_user, host(inet_client_addr()),
                CASE
                    WHEN was IS NULL THEN 'binding.create'
                    WHEN is_now IS NULL THEN 'binding.delete'
                    WHEN was->>'node_id' IS DISTINCT FROM is_now->>'node_id' THEN 'binding.rebind'
                    ELSE 'binding.update'
                END,
                coalesce(is_now, was)->>'service_id', coalesce(is_now, was)->>'node_id', nullif(coalesce(is_now, was)->>'user_id', ''),
                coalesce(nullif(is_now->>'username', ''), nullif(was->>'username', '')),
                was->>'username_key', is_now->>'username_key', %1$I.gateway_audit_binding(was), %1$I.gateway_audit_binding(is_now)
        $body$
    $f$, current_schema());
    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_user_route_audited() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            IF current_setting('application_name') ~ '^homenode(:|$)' THEN
                RETURN NULL;
            ELSIF TG_OP = 'INSERT' THEN
                INSERT INTO %1$I.gateway_audit (actor, address, action, service_id, node_id, user_id, username, username_key_before, username_key_after, before, after)
                SELECT e.* FROM new_rows n CROSS JOIN LATERAL %1$I.gateway_audit_entry(NULL, to_jsonb(n)) AS e ORDER BY n.id;
            ELSIF TG_OP = 'DELETE' THEN
                INSERT INTO %1$I.gateway_audit (actor, address, action, service_id, node_id, user_id, username, username_key_before, username_key_after, before, after)
                SELECT e.* FROM old_rows o CROSS JOIN LATERAL %1$I.gateway_audit_entry(to_jsonb(o), NULL) AS e ORDER BY o.id;
            ELSIF TG_OP = 'TRUNCATE' THEN
                INSERT INTO %1$I.gateway_audit (actor, address, action, service_id, node_id, user_id, username, username_key_before, username_key_after, before, after)
                SELECT e.* FROM %1$I.gateway_user_route r CROSS JOIN LATERAL %1$I.gateway_audit_entry(to_jsonb(r), NULL) AS e ORDER BY r.id;
            ELSE
                INSERT INTO %1$I.gateway_audit (actor, address, action, service_id, node_id, user_id, username, username_key_before, username_key_after, before, after)
                SELECT e.* FROM old_rows o LEFT JOIN new_rows n ON n.id = o.id
                    AND n.service_id IS NOT DISTINCT FROM o.service_id AND (o.user_id IS NULL OR n.user_id = o.user_id)
                CROSS JOIN LATERAL %1$I.gateway_audit_entry(to_jsonb(o), to_jsonb(n)) AS e
                WHERE n.id IS NULL OR (n.user_id, n.username, n.node_id, n.epoch) IS DISTINCT FROM (o.user_id, o.username, o.node_id, o.epoch) ORDER BY o.id;
                INSERT INTO %1$I.gateway_audit (actor, address, action, service_id, node_id, user_id, username, username_key_before, username_key_after, before, after)
                SELECT e.* FROM new_rows n LEFT JOIN old_rows o ON n.id = o.id
                    AND n.service_id IS NOT DISTINCT FROM o.service_id AND (o.user_id IS NULL OR n.user_id = o.user_id)
                CROSS JOIN LATERAL %1$I.gateway_audit_entry(NULL, to_jsonb(n)) AS e WHERE o.id IS NULL ORDER BY n.id;
            END IF;
            RETURN NULL;
        END $body$
    $f$, current_schema());
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION gateway_user_route_audited() FROM PUBLIC; -- nobody's own table may fill the audit

CREATE TRIGGER gateway_user_route_insert_audited AFTER INSERT ON gateway_user_route
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_audited();
CREATE TRIGGER gateway_user_route_update_audited AFTER UPDATE ON gateway_user_route
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_audited();
CREATE TRIGGER gateway_user_route_delete_audited AFTER DELETE ON gateway_user_route
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_audited();
CREATE TRIGGER gateway_user_route_truncate_audited BEFORE TRUNCATE ON gateway_user_route
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_audited();
