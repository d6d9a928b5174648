-- The policies of the guards, the roles that users have, and, as Redis keeps them in
-- production, the tokens that are no longer good.

-- +goose Up
CREATE TABLE gateway_policy (
    kind        text NOT NULL,
    id          text NOT NULL,
    body        text NOT NULL CHECK (json_valid(body) AND json_type(body) = 'object'),
    revision    integer NOT NULL, -- of the change that wrote it
    update_time integer NOT NULL,
    PRIMARY KEY (kind, id)
);

CREATE TABLE gateway_policy_revision (
    only_row integer PRIMARY KEY CHECK (only_row = 1),
    revision integer NOT NULL
);
INSERT INTO gateway_policy_revision (only_row, revision) VALUES (1, 0);

CREATE TABLE gateway_user_role (
    service_id text NOT NULL REFERENCES gateway_service (id) ON DELETE CASCADE,
    user_id    text NOT NULL,
    role       text NOT NULL,
    PRIMARY KEY (service_id, user_id, role)
) WITHOUT ROWID;

-- What PolicyHistory asks for; the condition and both expressions are its, word for word.
CREATE INDEX gateway_audit_policy
    ON gateway_audit (json_extract(coalesce(after, before), '$.kind'), json_extract(coalesce(after, before), '$.revision'), id)
    WHERE substr(action, 1, 7) = 'policy.';

-- Its times are milliseconds since 1970, UTC. The token itself is not stored.
CREATE TABLE gateway_revocation (
    service_id text NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('token', 'user')),
    key        text NOT NULL, -- the hex SHA-256 of the token, or the user id
    at         integer NOT NULL,
    expires    integer NOT NULL,
    PRIMARY KEY (service_id, kind, key)
) WITHOUT ROWID;
CREATE INDEX gateway_revocation_expires ON gateway_revocation (expires);

-- The tokens of logins that a user who was kicked out has had since.
CREATE TABLE gateway_admission (
    service_id text NOT NULL,
    user_id    text NOT NULL,
    token      text NOT NULL, -- its hex SHA-256
    expires    integer NOT NULL, -- with the revocation
    PRIMARY KEY (service_id, user_id, token)
) WITHOUT ROWID;
CREATE INDEX gateway_admission_expires ON gateway_admission (expires);
