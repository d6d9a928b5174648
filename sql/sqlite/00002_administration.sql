-- Placement and weights, imports that can be undone, and the record of every change.

-- +goose Up
ALTER TABLE gateway_service ADD COLUMN placement text; -- NULL: round-robin
ALTER TABLE gateway_node ADD COLUMN weight integer NOT NULL DEFAULT 1;
ALTER TABLE gateway_node ADD COLUMN accept_new integer NOT NULL DEFAULT 1;
ALTER TABLE gateway_user_route ADD COLUMN import_id integer;
CREATE INDEX gateway_user_route_import ON gateway_user_route (import_id, id) WHERE import_id IS NOT NULL;

CREATE TABLE gateway_import (
    id          integer PRIMARY KEY AUTOINCREMENT,
    service_id  text NOT NULL,
    node_id     text, -- NULL: every line names its own
    source      text NOT NULL,
    state       text NOT NULL,
    run         integer NOT NULL DEFAULT 1,
    actor       text NOT NULL,
    read        integer NOT NULL DEFAULT 0,
    bound       integer NOT NULL DEFAULT 0,
    unchanged   integer NOT NULL DEFAULT 0,
    skipped     integer NOT NULL DEFAULT 0,
    conflicts   integer NOT NULL DEFAULT 0,
    invalid     integer NOT NULL DEFAULT 0,
    removed     integer NOT NULL DEFAULT 0,
    kept        integer NOT NULL DEFAULT 0,
    create_time integer NOT NULL,
    update_time integer NOT NULL
);

-- It refers to what may be gone: no foreign keys.
CREATE TABLE gateway_audit (
    id                  integer PRIMARY KEY AUTOINCREMENT,
    at                  integer NOT NULL,
    actor               text NOT NULL,
    address             text,
    request_id          text,
    action              text NOT NULL,
    service_id          text,
    node_id             text,
    user_id             text,
    username            text,
    username_key_before text,
    username_key_after  text,
    before              text,
    after               text
);
CREATE INDEX gateway_audit_at ON gateway_audit (at);
CREATE INDEX gateway_audit_user ON gateway_audit (service_id, user_id, id) WHERE user_id IS NOT NULL;
CREATE INDEX gateway_audit_key_before ON gateway_audit (username_key_before, service_id, id) WHERE username_key_before IS NOT NULL;
CREATE INDEX gateway_audit_key_after ON gateway_audit (username_key_after, service_id, id) WHERE username_key_after IS NOT NULL;

-- +goose StatementBegin
CREATE TRIGGER gateway_audit_no_update BEFORE UPDATE ON gateway_audit BEGIN
    SELECT RAISE(ABORT, 'gateway_audit is append-only: UPDATE is refused');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER gateway_audit_no_delete BEFORE DELETE ON gateway_audit BEGIN
    SELECT RAISE(ABORT, 'gateway_audit is append-only: DELETE is refused');
END;
-- +goose StatementEnd

-- INSERT OR REPLACE deletes without asking the trigger above.
-- +goose StatementBegin
CREATE TRIGGER gateway_audit_no_replace BEFORE INSERT ON gateway_audit
WHEN EXISTS (SELECT 1 FROM gateway_audit WHERE id = NEW.id) BEGIN
    SELECT RAISE(ABORT, 'gateway_audit is append-only: REPLACE is refused');
END;
-- +goose StatementEnd
