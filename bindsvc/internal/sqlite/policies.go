package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const policyRevision = `SELECT revision FROM gateway_policy_revision`

// LoadPolicies implements gateway.Policies. A body is equal to what was written as JSON.
func (s *Store) LoadPolicies(ctx context.Context) (policies []gateway.Policy, revision int64, err error) {
	err = s.inSnapshot(ctx, func(tx *sql.Tx) (err error) {
		policies, revision, err = loadPolicies(ctx, tx)
		return err
	})
	return policies, revision, err
}

func loadPolicies(ctx context.Context, tx *sql.Tx) (policies []gateway.Policy, revision int64, err error) {
	if err := tx.QueryRowContext(ctx, policyRevision).Scan(&revision); err != nil {
		return nil, 0, err
	}
	policies, err = collect(ctx, tx, func(row scanner) (gateway.Policy, error) {
		var p gateway.Policy
		var body []byte
		var updated int64
		err := row.Scan(&p.Kind, &p.ID, &body, &p.Revision, &updated)
		p.Body, p.UpdatedAt = body, time.UnixMicro(updated).UTC()
		return p, err
	}, `SELECT kind, id, body, revision, update_time FROM gateway_policy ORDER BY kind, id`)
	return policies, revision, err
}

// PolicyRevision implements gateway.Policies.
func (s *Store) PolicyRevision(ctx context.Context) (revision int64, err error) {
	err = s.read.QueryRowContext(ctx, policyRevision).Scan(&revision)
	return revision, err
}

// ChangePolicies implements gateway.Policies. A body that is equal to the one that is
// there as JSON changes nothing. Of several changes of one policy the last counts.
// decide runs in the write transaction: it must not write to the store itself.
func (s *Store) ChangePolicies(ctx context.Context, decide func(now []gateway.Policy, revision int64) ([]gateway.PolicyChange, error)) (revision int64, err error) {
	var hasChanged bool
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		now, current, err := loadPolicies(ctx, tx)
		if err != nil {
			return err
		}
		changes, err := decide(now, current)
		if err != nil {
			return err
		}
		effective, err := effectiveChanges(now, changes)
		if err != nil {
			return err
		}
		revision, hasChanged = current, len(effective) > 0
		if !hasChanged {
			return nil
		}
		revision++
		return writePolicies(ctx, tx, effective, revision, s.now())
	})
	if err != nil {
		return 0, err
	}
	if hasChanged {
		s.hub.publish(gateway.Change{Kind: gateway.ChangePolicies})
	}
	return revision, nil
}

// effectiveChange is a change that changes something.
type effectiveChange struct {
	gateway.PolicyChange
	before json.RawMessage // nil: there was none
}

func effectiveChanges(now []gateway.Policy, changes []gateway.PolicyChange) (effective []effectiveChange, err error) {
	type key struct {
		kind gateway.PolicyKind
		id   string
	}
	before := make(map[key]json.RawMessage, len(now))
	for _, p := range now {
		before[key{p.Kind, p.ID}] = p.Body
	}
	last := make(map[key]int, len(changes))
	for i, c := range changes {
		last[key{c.Kind, c.ID}] = i
	}
	for i, c := range changes {
		k := key{c.Kind, c.ID}
		if last[k] != i {
			continue
		}
		isSame, err := isSameBody(before[k], c.Body)
		if err != nil {
			return nil, fmt.Errorf("policy %s %q: %w", c.Kind, c.ID, err)
		}
		if !isSame {
			effective = append(effective, effectiveChange{c, before[k]})
		}
	}
	return effective, nil
}

// isSameBody compares two bodies as JSON, nil standing for none.
func isSameBody(before, after json.RawMessage) (bool, error) {
	was, err := decodeBody(before)
	if err != nil {
		return false, err
	}
	is, err := decodeBody(after)
	return err == nil && reflect.DeepEqual(was, is), err
}

var errNoObject = errors.New("the body is no JSON object")

func decodeBody(body json.RawMessage) (object map[string]any, err error) {
	if body == nil {
		return nil, nil
	}
	if !json.Valid(body) {
		return nil, errNoObject
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, errors.Join(errNoObject, err)
	}
	normalize(object)
	return object, nil
}

// normalize gives equal numbers one form, in place, and returns the value. An integer
// keeps all its digits.
func normalize(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			value[name] = normalize(member)
		}
	case []any:
		for i, element := range value {
			value[i] = normalize(element)
		}
	case json.Number:
		const exact = 1 << 53
		float, err := value.Float64()
		switch {
		case err != nil || !strings.ContainsAny(value.String(), ".eE"):
			return value
		case float == math.Trunc(float) && math.Abs(float) < exact:
			return json.Number(strconv.FormatFloat(float, 'f', 0, 64))
		}
		return float
	}
	return value
}

func writePolicies(ctx context.Context, tx *sql.Tx, changes []effectiveChange, revision int64, now time.Time) error {
	put, err := tx.PrepareContext(ctx, `INSERT INTO gateway_policy (kind, id, body, revision, update_time) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, revision = excluded.revision, update_time = excluded.update_time`)
	if err != nil {
		return err
	}
	defer func() { _ = put.Close() }()
	entries := make([]gateway.AuditEntry, 0, len(changes))
	for _, c := range changes {
		if c.Body == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM gateway_policy WHERE kind = $1 AND id = $2`, c.Kind, c.ID)
		} else {
			_, err = put.ExecContext(ctx, c.Kind, c.ID, string(c.Body), revision, now.UnixMicro())
		}
		if err != nil {
			return err
		}
		entries = append(entries, gateway.AuditPolicyChange(c.Kind, c.ID, revision, c.before, c.Body))
	}
	if _, err := tx.ExecContext(ctx, `UPDATE gateway_policy_revision SET revision = $1`, revision); err != nil {
		return err
	}
	return record(ctx, tx, now, entries...)
}

// PolicyHistory implements gateway.Policies.
func (s *Store) PolicyHistory(ctx context.Context, kind gateway.PolicyKind, since int64, limit int) ([]gateway.AuditEntry, error) {
	const revision = `json_extract(coalesce(after, before), '$.revision')`
	return collect(ctx, s.read, scanAudit, `SELECT `+auditColumns+` FROM gateway_audit
		WHERE substr(action, 1, 7) = 'policy.' AND json_extract(coalesce(after, before), '$.kind') = $1 AND `+revision+` > $2
		ORDER BY `+revision+` DESC, id DESC LIMIT $3`, kind, since, limit)
}
