-- The policies of the guards, and the roles that users have.

-- +goose Up
SET LOCAL lock_timeout = '2s'; -- nobody waits behind this one if it has to wait; it is tried again

CREATE TABLE gateway_policy (
    kind        varchar NOT NULL,
    id          varchar NOT NULL,
    body        jsonb NOT NULL CHECK (jsonb_typeof(body) = 'object'),
    revision    bigint NOT NULL DEFAULT 0, -- of the change that wrote it: the triggers' to set
    update_time timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'), -- likewise
    PRIMARY KEY (kind, id)
);

-- One row. Every change of a policy takes its lock first and holds it to the end of the
-- transaction, so that revisions are committed in their order: whoever reads one sees
-- every change up to it, and writers wait for each other instead of deadlocking.
CREATE TABLE gateway_policy_revision (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    revision bigint NOT NULL DEFAULT 0
);
INSERT INTO gateway_policy_revision DEFAULT VALUES;

CREATE TABLE gateway_user_role (
    service_id varchar NOT NULL REFERENCES gateway_service (id) ON DELETE CASCADE,
    user_id    text NOT NULL,
    role       varchar NOT NULL,
    PRIMARY KEY (service_id, user_id, role)
);

-- What PolicyHistory asks for; the condition and both expressions are its, word for word.
CREATE INDEX gateway_audit_policy
    ON gateway_audit ((coalesce(after, before)->>'kind'), ((coalesce(after, before)->>'revision')::bigint), id)
    WHERE starts_with(action, 'policy.');

-- As in 00004; of what is too long to be told, any of its kind may have changed.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION gateway_notify(kind text, service_id text DEFAULT NULL, user_id text DEFAULT NULL, username_key text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    payload text := json_strip_nulls(json_build_object('kind', kind, 'service', service_id, 'user', user_id, 'username', username_key))::text;
BEGIN
    IF octet_length(payload) > 7900 THEN
        payload := json_build_object('kind', CASE kind WHEN 'roles' THEN 'roles' ELSE 'bindings' END)::text;
    END IF;
    PERFORM pg_notify('homenode', payload);
END $$;
-- +goose StatementEnd

-- A change counts whoever makes it: the triggers give it its revision and tell of it. As
-- in 00005, what a connection of another name than the gateway's has changed they also
-- record, and they are their owner's: whoever may change a policy need not be allowed
-- to write the revision or the audit. A plan that was made for the few rows of one
-- statement is kept for the many of another: a nested loop would take forever.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_policy_begin() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            PERFORM FROM %1$I.gateway_policy_revision FOR UPDATE;
            RETURN NULL;
        END $body$
    $f$, current_schema());

    -- All changes of a transaction are one: the revision that it has written is its own.
    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_policy_own_revision() RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $body$
            SELECT CASE WHEN r.xmin = pg_current_xact_id()::xid THEN r.revision ELSE r.revision + 1 END FROM %1$I.gateway_policy_revision r
        $body$
    $f$, current_schema());

    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_policy_stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            IF TG_OP = 'UPDATE' AND (NEW.kind, NEW.id, NEW.body) = (OLD.kind, OLD.id, OLD.body) THEN
                NEW.revision := OLD.revision;
                NEW.update_time := OLD.update_time;
            ELSE
                NEW.revision := %1$I.gateway_policy_own_revision();
                NEW.update_time := clock_timestamp() AT TIME ZONE 'UTC';
            END IF;
            RETURN NEW;
        END $body$
    $f$, current_schema());

    -- The entry of a policy that became another, as gateway.AuditPolicyChange makes it.
    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_audit_policy_entry(kind text, id text, revision bigint, was jsonb, is_now jsonb)
        RETURNS TABLE (actor text, address text, action text, before jsonb, after jsonb) LANGUAGE sql STABLE AS $body$
            SELECT 'sql:' || session_user, host(inet_client_addr()),
                'policy.' || kind || CASE WHEN was IS NULL THEN '.create' WHEN is_now IS NULL THEN '.delete' ELSE '.update' END,
                CASE WHEN was IS NOT NULL THEN jsonb_build_object('kind', kind, 'id', id, 'revision', revision, 'body', was) END,
                CASE WHEN is_now IS NOT NULL THEN jsonb_build_object('kind', kind, 'id', id, 'revision', revision, 'body', is_now) END
        $body$
    $f$, current_schema());

    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_policy_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $body$
        DECLARE
            by_hand boolean := current_setting('application_name') !~ '^homenode(:|$)';
            changed bigint; -- the revision of the change; NULL: nothing has changed
        BEGIN
            IF TG_OP = 'INSERT' THEN
                SELECT max(n.revision) INTO changed FROM new_rows n;
            ELSIF TG_OP = 'UPDATE' THEN
                SELECT max(n.revision) INTO changed FROM new_rows n LEFT JOIN old_rows o ON o.kind = n.kind AND o.id = n.id WHERE n.body IS DISTINCT FROM o.body;
            ELSIF TG_OP = 'DELETE' THEN
                SELECT %1$I.gateway_policy_own_revision() INTO changed WHERE EXISTS (SELECT FROM old_rows);
            ELSE
                SELECT %1$I.gateway_policy_own_revision() INTO changed WHERE EXISTS (SELECT FROM %1$I.gateway_policy);
            END IF;
            IF changed IS NULL THEN
                RETURN NULL;
            END IF;
            UPDATE %1$I.gateway_policy_revision r SET revision = changed WHERE r.revision < changed;
            PERFORM %1$I.gateway_notify('policies');

            IF NOT by_hand THEN
                RETURN NULL;
            ELSIF TG_OP = 'INSERT' THEN
                INSERT INTO %1$I.gateway_audit (actor, address, action, before, after)
                SELECT e.* FROM new_rows n CROSS JOIN LATERAL %1$I.gateway_audit_policy_entry(n.kind, n.id, changed, NULL, n.body) AS e ORDER BY n.kind, n.id;
            ELSIF TG_OP = 'UPDATE' THEN -- a policy that is called another way is one that ends and one that begins
                INSERT INTO %1$I.gateway_audit (actor, address, action, before, after)
                SELECT e.* FROM old_rows o FULL JOIN new_rows n ON n.kind = o.kind AND n.id = o.id
                CROSS JOIN LATERAL %1$I.gateway_audit_policy_entry(coalesce(n.kind, o.kind), coalesce(n.id, o.id), changed, o.body, n.body) AS e
                WHERE n.body IS DISTINCT FROM o.body ORDER BY n.kind IS NOT NULL, coalesce(n.kind, o.kind), coalesce(n.id, o.id);
            ELSIF TG_OP = 'DELETE' THEN
                INSERT INTO %1$I.gateway_audit (actor, address, action, before, after)
                SELECT e.* FROM old_rows o CROSS JOIN LATERAL %1$I.gateway_audit_policy_entry(o.kind, o.id, changed, o.body, NULL) AS e ORDER BY o.kind, o.id;
            ELSE
                INSERT INTO %1$I.gateway_audit (actor, address, action, before, after)
                SELECT e.* FROM %1$I.gateway_policy p CROSS JOIN LATERAL %1$I.gateway_audit_policy_entry(p.kind, p.id, changed, p.body, NULL) AS e ORDER BY p.kind, p.id;
            END IF;
            RETURN NULL;
        END $body$
    $f$, current_schema());

    -- The entries are as gateway.AuditRoles makes them. What a user had is what they have,
    -- without what the statement has made and with what it has removed.
    EXECUTE format($f$
        CREATE FUNCTION %1$I.gateway_user_role_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $body$
        DECLARE
            by_hand     boolean := current_setting('application_name') !~ '^homenode(:|$)';
            old_service text[];
            old_user    text[];
            old_role    text[];
            new_service text[];
            new_user    text[];
            new_role    text[];
        BEGIN
            IF TG_OP = 'TRUNCATE' THEN
                SELECT array_agg(r.service_id), array_agg(r.user_id), array_agg(r.role) INTO old_service, old_user, old_role FROM %1$I.gateway_user_role r;
            ELSIF TG_OP IN ('UPDATE', 'DELETE') THEN
                SELECT array_agg(r.service_id), array_agg(r.user_id), array_agg(r.role) INTO old_service, old_user, old_role FROM old_rows r;
            END IF;
            IF TG_OP IN ('UPDATE', 'INSERT') THEN
                SELECT array_agg(r.service_id), array_agg(r.user_id), array_agg(r.role) INTO new_service, new_user, new_role FROM new_rows r;
            END IF;

            IF TG_OP = 'TRUNCATE' OR greatest(cardinality(old_user), cardinality(new_user)) > 100 THEN
                PERFORM %1$I.gateway_notify('roles');
            ELSE
                PERFORM %1$I.gateway_notify('roles', u.service_id, u.user_id) FROM (
                    SELECT o.service_id, o.user_id FROM unnest(old_service, old_user) AS o (service_id, user_id)
                    UNION
                    SELECT n.service_id, n.user_id FROM unnest(new_service, new_user) AS n (service_id, user_id)
                ) AS u;
            END IF;

            IF by_hand THEN
                WITH removed AS (
                    SELECT r.service_id, r.user_id, r.role FROM unnest(old_service, old_user, old_role) AS r (service_id, user_id, role)
                ), made AS (
                    SELECT r.service_id, r.user_id, r.role FROM unnest(new_service, new_user, new_role) AS r (service_id, user_id, role)
                ), touched AS (
                    SELECT r.service_id, r.user_id FROM removed r UNION SELECT r.service_id, r.user_id FROM made r
                ), has AS (
                    SELECT r.service_id, r.user_id, r.role FROM %1$I.gateway_user_role r JOIN touched t ON t.service_id = r.service_id AND t.user_id = r.user_id
                    WHERE TG_OP <> 'TRUNCATE'
                ), had AS (
                    (SELECT * FROM has EXCEPT SELECT * FROM made) UNION SELECT * FROM removed
                ), before AS (
                    SELECT r.service_id, r.user_id, jsonb_build_object('roles', jsonb_agg(r.role ORDER BY r.role COLLATE "C")) AS roles FROM had r GROUP BY 1, 2
                ), after AS (
                    SELECT r.service_id, r.user_id, jsonb_build_object('roles', jsonb_agg(r.role ORDER BY r.role COLLATE "C")) AS roles FROM has r GROUP BY 1, 2
                )
                INSERT INTO %1$I.gateway_audit (actor, address, action, service_id, user_id, before, after)
                SELECT 'sql:' || session_user, host(inet_client_addr()), 'role.set', t.service_id, t.user_id, b.roles, a.roles
                FROM touched t
                LEFT JOIN before b ON b.service_id = t.service_id AND b.user_id = t.user_id
                LEFT JOIN after a ON a.service_id = t.service_id AND a.user_id = t.user_id
                WHERE b.roles IS DISTINCT FROM a.roles ORDER BY t.service_id, t.user_id;
            END IF;
            RETURN NULL;
        END $body$
    $f$, current_schema());
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION gateway_policy_begin(), gateway_policy_stamp(), gateway_policy_changed(), gateway_user_role_changed()
    FROM PUBLIC; -- nobody's own table may fill the audit, or hold up the policies

CREATE TRIGGER gateway_policy_begin BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON gateway_policy
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_begin();
CREATE TRIGGER gateway_policy_stamp BEFORE INSERT OR UPDATE ON gateway_policy
    FOR EACH ROW EXECUTE FUNCTION gateway_policy_stamp();
CREATE TRIGGER gateway_policy_inserted AFTER INSERT ON gateway_policy
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_changed();
CREATE TRIGGER gateway_policy_updated AFTER UPDATE ON gateway_policy
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_changed();
CREATE TRIGGER gateway_policy_deleted AFTER DELETE ON gateway_policy
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_changed();
CREATE TRIGGER gateway_policy_truncated BEFORE TRUNCATE ON gateway_policy
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_policy_changed();

CREATE TRIGGER gateway_user_role_inserted AFTER INSERT ON gateway_user_role
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_role_changed();
CREATE TRIGGER gateway_user_role_updated AFTER UPDATE ON gateway_user_role
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_role_changed();
CREATE TRIGGER gateway_user_role_deleted AFTER DELETE ON gateway_user_role
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_role_changed();
CREATE TRIGGER gateway_user_role_truncated BEFORE TRUNCATE ON gateway_user_role
    FOR EACH STATEMENT EXECUTE FUNCTION gateway_user_role_changed();
