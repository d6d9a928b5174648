package postgres

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// policyRevision is the counter that every change of a policy raises, by triggers
// (sql/postgres/00006_policies.sql). Its row's lock orders the changes.
const policyRevision = `SELECT revision FROM gateway_policy_revision`

// LoadPolicies implements gateway.Policies. A body is equal to what was written as
// JSON, not byte for byte: it comes back as jsonb prints it.
func (s *Store) LoadPolicies(ctx context.Context) (policies []gateway.Policy, revision int64, err error) {
	err = s.inSnapshot(ctx, func(tx pgx.Tx) (err error) {
		if err := tx.QueryRow(ctx, policyRevision).Scan(&revision); err != nil {
			return err
		}
		policies, err = loadPolicies(ctx, tx)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return policies, revision, nil
}

func loadPolicies(ctx context.Context, tx pgx.Tx) ([]gateway.Policy, error) {
	rows, err := tx.Query(ctx, `SELECT kind, id, body, revision, update_time FROM gateway_policy ORDER BY kind COLLATE "C", id COLLATE "C"`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (gateway.Policy, error) {
		var p gateway.Policy
		var body []byte
		err := row.Scan(&p.Kind, &p.ID, &body, &p.Revision, &p.UpdatedAt)
		p.Body = body
		return p, err
	})
}

// PolicyRevision implements gateway.Policies.
func (s *Store) PolicyRevision(ctx context.Context) (revision int64, err error) {
	err = s.pool.QueryRow(ctx, policyRevision).Scan(&revision)
	return revision, err
}

// ChangePolicies implements gateway.Policies. A body that is equal to the one that is
// there as JSON changes nothing. Of several changes of one policy the last counts. A
// transaction that is run again asks decide again.
func (s *Store) ChangePolicies(ctx context.Context, decide func(now []gateway.Policy, revision int64) ([]gateway.PolicyChange, error)) (revision int64, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		// Whoever holds the row is alone with the policies until the transaction ends.
		if err := tx.QueryRow(ctx, policyRevision+` FOR UPDATE`).Scan(&revision); err != nil {
			return err
		}
		now, err := loadPolicies(ctx, tx)
		if err != nil {
			return err
		}
		changes, err := decide(now, revision)
		if err != nil {
			return err
		}
		effective, err := writePolicies(ctx, tx, changes)
		if err != nil || len(effective) == 0 {
			return err
		}
		if err := tx.QueryRow(ctx, policyRevision).Scan(&revision); err != nil {
			return err
		}
		return recordPolicies(ctx, tx, now, effective, revision)
	})
	if err != nil {
		return 0, err
	}
	return revision, nil
}

// policyKey names a policy.
type policyKey struct {
	kind gateway.PolicyKind
	id   string
}

// writePolicies carries the changes out with one statement for those that delete and
// one for the others, and returns those that changed something, in their order.
func writePolicies(ctx context.Context, tx pgx.Tx, changes []gateway.PolicyChange) (effective []gateway.PolicyChange, err error) {
	last := make(map[policyKey]int, len(changes))
	for i, c := range changes {
		last[policyKey{c.Kind, c.ID}] = i
	}
	var puts, deletions [3][]string // kinds, ids, bodies
	for i, c := range changes {
		if last[policyKey{c.Kind, c.ID}] != i {
			continue
		}
		columns := &puts
		if c.Body == nil {
			columns = &deletions
		}
		for column, value := range [...]string{string(c.Kind), c.ID, string(c.Body)} {
			columns[column] = append(columns[column], value)
		}
	}
	written := make(map[policyKey]bool, len(last))
	err = changedPolicies(ctx, tx, written, `DELETE FROM gateway_policy p USING unnest($1::text[], $2::text[]) AS w (kind, id)
		WHERE p.kind = w.kind AND p.id = w.id RETURNING p.kind, p.id`, deletions[0], deletions[1])
	if err != nil {
		return nil, err
	}
	err = changedPolicies(ctx, tx, written, `INSERT INTO gateway_policy AS p (kind, id, body)
		SELECT w.kind, w.id, w.body::jsonb FROM unnest($1::text[], $2::text[], $3::text[]) AS w (kind, id, body)
		ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body WHERE p.body <> excluded.body
		RETURNING p.kind, p.id`, puts[0], puts[1], puts[2])
	if err != nil {
		return nil, err
	}
	for i, c := range changes {
		if key := (policyKey{c.Kind, c.ID}); last[key] == i && written[key] {
			effective = append(effective, c)
		}
	}
	return effective, nil
}

// changedPolicies runs a statement for the policies that the columns name, and notes
// which of them it returns.
func changedPolicies(ctx context.Context, tx pgx.Tx, noted map[policyKey]bool, statement string, columns ...any) error {
	rows, err := tx.Query(ctx, statement, columns...)
	if err != nil {
		return err
	}
	var key policyKey
	_, err = pgx.ForEachRow(rows, []any{&key.kind, &key.id}, func() error {
		noted[key] = true
		return nil
	})
	return err
}

// recordPolicies audits changes of the policies as they were.
func recordPolicies(ctx context.Context, tx pgx.Tx, were []gateway.Policy, changes []gateway.PolicyChange, revision int64) error {
	before := make(map[policyKey]json.RawMessage, len(were))
	for _, p := range were {
		before[policyKey{p.Kind, p.ID}] = p.Body
	}
	entries := make([]gateway.AuditEntry, 0, len(changes))
	for _, c := range changes {
		entries = append(entries, gateway.AuditPolicyChange(c.Kind, c.ID, revision, before[policyKey{c.Kind, c.ID}], c.Body))
	}
	return record(ctx, tx, entries...)
}

// PolicyHistory implements gateway.Policies.
func (s *Store) PolicyHistory(ctx context.Context, kind gateway.PolicyKind, since int64, limit int) ([]gateway.AuditEntry, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+auditColumns+` FROM gateway_audit
		WHERE starts_with(action, 'policy.') AND coalesce(after, before)->>'kind' = $1 AND (coalesce(after, before)->>'revision')::bigint > $2
		ORDER BY (coalesce(after, before)->>'revision')::bigint DESC, id DESC LIMIT $3`, kind, since, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanAudit)
}
