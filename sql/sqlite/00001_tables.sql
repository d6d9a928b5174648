-- The same tables and columns as in PostgreSQL, plus the tokens that Redis keeps
-- there. Times are microseconds since 1970, UTC.

-- +goose Up
CREATE TABLE gateway_service (
    id              text NOT NULL PRIMARY KEY,
    name            text,
    path_prefix     text NOT NULL UNIQUE,
    login_path      text,
    logout_path     text,
    health_path     text,
    default_node_id text,
    login_fields    text,
    enabled         integer NOT NULL DEFAULT 1,
    create_time     integer NOT NULL,
    update_time     integer NOT NULL
);

CREATE TABLE gateway_node (
    id              text NOT NULL PRIMARY KEY,
    service_id      text NOT NULL REFERENCES gateway_service (id),
    name            text,
    base_url        text NOT NULL,
    traefik_service text,
    enabled         integer NOT NULL DEFAULT 1,
    remark          text,
    create_time     integer NOT NULL,
    update_time     integer NOT NULL
);
CREATE INDEX gateway_node_service ON gateway_node (service_id);

-- AUTOINCREMENT: the id of an unbound row never names another one.
CREATE TABLE gateway_user_route (
    id           integer PRIMARY KEY AUTOINCREMENT,
    service_id   text NOT NULL REFERENCES gateway_service (id),
    user_id      text,
    username     text,
    username_key text,
    node_id      text NOT NULL REFERENCES gateway_node (id),
    epoch        integer NOT NULL DEFAULT 1,
    create_time  integer NOT NULL,
    update_time  integer NOT NULL
);
CREATE UNIQUE INDEX gateway_user_route_user ON gateway_user_route (service_id, user_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX gateway_user_route_username ON gateway_user_route (service_id, username_key) WHERE username_key IS NOT NULL;
CREATE INDEX gateway_user_route_node ON gateway_user_route (node_id);

CREATE TABLE gateway_login_alias (
    service_id  text NOT NULL,
    alias_key   text NOT NULL,
    route_id    integer NOT NULL REFERENCES gateway_user_route (id) ON DELETE CASCADE,
    update_time integer NOT NULL,
    PRIMARY KEY (service_id, alias_key)
);
CREATE INDEX gateway_login_alias_route ON gateway_login_alias (route_id);

-- The token itself is not stored: who reads the file cannot use its sessions.
CREATE TABLE gateway_token (
    service_id text NOT NULL,
    token_hash blob NOT NULL, -- SHA-256
    user_id    text NOT NULL,
    expires_at integer NOT NULL,
    PRIMARY KEY (service_id, token_hash)
) WITHOUT ROWID;
CREATE INDEX gateway_token_expires ON gateway_token (expires_at);

-- Of several processes that migrate at once, one records a version.
CREATE UNIQUE INDEX gateway_schema_version_once ON gateway_schema_version (version_id);
