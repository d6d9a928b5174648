-- What decides every race, and what tells everybody of a change. (00003, the
-- username keys of rows that exist, is written in Go.)

-- +goose Up
CREATE UNIQUE INDEX IF NOT EXISTS gateway_user_route_user
    ON gateway_user_route (service_id, user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS gateway_user_route_username
    ON gateway_user_route (service_id, username_key) WHERE username_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS gateway_user_route_node ON gateway_user_route (node_id);
CREATE INDEX IF NOT EXISTS gateway_node_service ON gateway_node (service_id);

-- An old table without the constraint may hold what it would forbid: such rows
-- stay, and the gateway itself refuses new ones.
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = 'gateway_service'::regclass AND i.indisunique AND i.indnkeyatts = 1 AND a.attname = 'path_prefix'
    ) AND NOT EXISTS (
        SELECT FROM gateway_service WHERE path_prefix IS NOT NULL GROUP BY path_prefix HAVING count(*) > 1
    ) THEN
        CREATE UNIQUE INDEX gateway_service_path_prefix ON gateway_service (path_prefix);
    END IF;
END $$;
-- +goose StatementEnd

-- NOT VALID: new rows are checked, an old orphan does not stop the migration.
-- +goose StatementBegin
DO $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT * FROM (VALUES
            ('gateway_node', 'service_id', 'gateway_service'),
            ('gateway_user_route', 'service_id', 'gateway_service'),
            ('gateway_user_route', 'node_id', 'gateway_node')
        ) AS w (source, source_column, target)
    LOOP
        IF NOT EXISTS (
            SELECT FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
            WHERE c.contype = 'f' AND c.conrelid = wanted.source::regclass
              AND cardinality(c.conkey) = 1 AND a.attname = wanted.source_column
        ) THEN
            EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I FOREIGN KEY (%I) REFERENCES %I (id) NOT VALID',
                wanted.source, wanted.source || '_' || wanted.source_column || '_fk', wanted.source_column, wanted.target);
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd

-- A row written by the old gateway or by hand gets its username key here. Rows
-- written by this gateway bring theirs (gateway.KeyOf). A key that is NULL beside a
-- username stays: the name is another row's (see 00003).
-- +goose StatementBegin
CREATE FUNCTION gateway_user_route_key() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF coalesce(NEW.username, '') = '' THEN
        NEW.username_key := NULL;
    ELSIF TG_OP = 'INSERT' THEN
        NEW.username_key := coalesce(NEW.username_key, gateway_username_key(NEW.username));
    ELSIF NEW.username IS DISTINCT FROM OLD.username AND NEW.username_key IS NOT DISTINCT FROM OLD.username_key THEN
        NEW.username_key := gateway_username_key(NEW.username);
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER gateway_user_route_key BEFORE INSERT OR UPDATE ON gateway_user_route
    FOR EACH ROW EXECUTE FUNCTION gateway_user_route_key();

-- Changes are told on the channel homenode, as the JSON of gateway.Change, once
-- the transaction commits. A payload has to stay below 8000 bytes.
-- +goose StatementBegin
CREATE FUNCTION gateway_notify(kind text, service_id text DEFAULT NULL, user_id text DEFAULT NULL, username_key text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    payload text := json_strip_nulls(json_build_object('kind', kind, 'service', service_id, 'user', user_id, 'username', username_key))::text;
BEGIN
    IF octet_length(payload) > 7900 THEN
        payload := '{"kind":"bindings"}';
    END IF;
    PERFORM pg_notify('homenode', payload);
END $$;
-- +goose StatementEnd

-- Tells of each look-up, or of "any binding" when a statement changed more than 100 rows.
-- +goose StatementBegin
CREATE FUNCTION gateway_notify_lookups(services text[], users text[], keys text[])
RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF cardinality(services) > 200 THEN
        PERFORM gateway_notify('bindings');
        RETURN;
    END IF;
    PERFORM gateway_notify('user', l.service_id, l.user_id)
    FROM (SELECT DISTINCT u.service_id, u.user_id FROM unnest(services, users) AS u (service_id, user_id)) AS l
    WHERE l.user_id IS NOT NULL;
    PERFORM gateway_notify('username', l.service_id, NULL, l.username_key)
    FROM (SELECT DISTINCT u.service_id, u.username_key FROM unnest(services, keys) AS u (service_id, username_key)) AS l
    WHERE l.username_key IS NOT NULL;
END $$;
-- +goose StatementEnd

-- A changed row changes what its aliases lead to. Those of a deleted row are
-- deleted with it, and tell by themselves.
-- +goose StatementBegin
CREATE FUNCTION gateway_user_route_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    services text[];
    users    text[];
    keys     text[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(service_id), array_agg(user_id), array_agg(username_key) INTO services, users, keys FROM new_rows;
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

-- +goose StatementBegin
CREATE FUNCTION gateway_login_alias_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    services text[];
    keys     text[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(service_id), array_agg(alias_key) INTO services, keys FROM new_rows;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(service_id), array_agg(alias_key) INTO services, keys FROM old_rows;
    ELSE
        SELECT array_agg(service_id), array_agg(alias_key) INTO services, keys FROM (
            SELECT service_id, alias_key FROM old_rows
            UNION ALL
            SELECT service_id, alias_key FROM new_rows
        ) AS changed;
    END IF;
    PERFORM gateway_notify_lookups(services, NULL, keys);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION gateway_bindings_truncated() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM gateway_notify('bindings');
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION gateway_registry_changed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM gateway_notify('registry');
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER gateway_user_route_inserted AFTER INSERT ON gateway_user_route
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_changed();
CREATE TRIGGER gateway_user_route_updated AFTER UPDATE ON gateway_user_route
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_changed();
CREATE TRIGGER gateway_user_route_deleted AFTER DELETE ON gateway_user_route
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_route_changed();
CREATE TRIGGER gateway_user_route_truncated AFTER TRUNCATE ON gateway_user_route
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_bindings_truncated();

CREATE TRIGGER gateway_login_alias_inserted AFTER INSERT ON gateway_login_alias
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_login_alias_changed();
CREATE TRIGGER gateway_login_alias_updated AFTER UPDATE ON gateway_login_alias
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_login_alias_changed();
CREATE TRIGGER gateway_login_alias_deleted AFTER DELETE ON gateway_login_alias
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_login_alias_changed();
CREATE TRIGGER gateway_login_alias_truncated AFTER TRUNCATE ON gateway_login_alias
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_bindings_truncated();

CREATE TRIGGER gateway_service_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON gateway_service
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_registry_changed();
CREATE TRIGGER gateway_node_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON gateway_node
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_registry_changed();
