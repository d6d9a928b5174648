// Package bindrule is the binding rules (spec sections 3 and 8), written once for
// every durable store: what a login or an administrator changes, given the rows
// of one transaction. The stores add what is theirs: SQL, locks, retries.
package bindrule

import (
	"context"
	"slices"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// MaxAliases is how many aliases a row keeps, the newest.
const MaxAliases = 16

// Row is a binding as it is stored.
type Row struct {
	gateway.Binding
	// Key is what the row is found by. It is empty without a username, and where
	// a database that was migrated gave the name to another row.
	Key gateway.UsernameKey
}

// Rows is the bindings as one transaction sees and changes them. What it
// returned may not change under the transaction.
type Rows interface {
	// Find returns the row of the user id and the row of the username key, nil
	// where there is none; empty arguments find none.
	Find(ctx context.Context, serviceID, userID string, key gateway.UsernameKey) (byUser, byKey *Row, err error)
	// FindID returns nil if there is none.
	FindID(ctx context.Context, id int64) (*Row, error)
	HasNode(ctx context.Context, serviceID, nodeID string) (bool, error)

	Insert(ctx context.Context, row Row) (id int64, err error)
	Update(ctx context.Context, row Row) error
	// Delete deletes the row and its aliases.
	Delete(ctx context.Context, id int64) error
	// Audit records a change in the same transaction, as the context's actor's.
	Audit(ctx context.Context, entry gateway.AuditEntry) error

	// Alias returns the id of the row that the alias leads to, 0 if there is none.
	Alias(ctx context.Context, serviceID string, key gateway.UsernameKey) (int64, error)
	// Aliases returns the aliases of a row, the newest first.
	Aliases(ctx context.Context, id int64) ([]gateway.UsernameKey, error)
	// PutAlias makes the alias lead to the row, wherever it led before.
	PutAlias(ctx context.Context, serviceID string, key gateway.UsernameKey, id int64, now time.Time) error
	DeleteAlias(ctx context.Context, serviceID string, key gateway.UsernameKey) error
}

// Settled reports whether the row of the login's user id already says all that
// the login would record, so that nothing has to be written. aliasLeadsHere is
// whether the alias of the login's LoginUsername leads to the row.
func Settled(row Row, aliasLeadsHere bool, login gateway.Login) bool {
	return named(row, login) == row && (aliasLeadsHere || !wantsAlias(row, login)) && !row.IsAsImported()
}

// IsAsImported reports whether an import made the row and nothing has happened to it
// since: no login, no administrator. Only such rows does an undo delete.
func (r Row) IsAsImported() bool {
	return r.ImportID != 0 && r.Epoch == 1 && r.UpdatedAt.Equal(r.CreatedAt)
}

// Entry is the audit's entry of a row that became another; nil stands for none.
func Entry(before, after *Row) gateway.AuditEntry {
	var was, is *gateway.Binding
	var keyBefore, keyAfter gateway.UsernameKey
	if before != nil {
		was, keyBefore = &before.Binding, before.Key
	}
	if after != nil {
		is, keyAfter = &after.Binding, after.Key
	}
	return gateway.AuditBindingChange(was, keyBefore, is, keyAfter)
}

// named is the row with the login's user id and, if it has one, username.
func named(row Row, login gateway.Login) Row {
	row.UserID = login.UserID
	if login.Username != "" {
		row.Username, row.Key = login.Username, gateway.KeyOf(login.Username)
	}
	return row
}

func wantsAlias(row Row, login gateway.Login) bool {
	return login.LoginUsername != "" && gateway.KeyOf(login.LoginUsername) != row.Key
}

// BindIfAbsent does what gateway.Bindings.BindIfAbsent promises. The node of the
// login is looked at only when a row is made on it.
func BindIfAbsent(ctx context.Context, rows Rows, login gateway.Login, now time.Time) (gateway.BindResult, error) {
	w := writer{rows: rows, now: now}
	own, namesake, err := rows.Find(ctx, login.ServiceID, login.UserID, gateway.KeyOf(login.Username))
	if err != nil {
		return gateway.BindResult{}, err
	}
	if own == nil && namesake != nil && namesake.UserID == "" {
		own = namesake // bound in advance
	}
	if namesake != nil && (own == nil || own.ID != namesake.ID) {
		if err := w.takeName(ctx, *namesake); err != nil {
			return gateway.BindResult{}, err
		}
	}
	var row Row
	if own == nil {
		row, err = w.insert(ctx, named(Row{Binding: gateway.Binding{ServiceID: login.ServiceID, NodeID: login.NodeID}}, login))
	} else {
		row, err = w.update(ctx, *own, named(*own, login))
	}
	if err == nil {
		row, err = w.touch(ctx, row)
	}
	if err != nil {
		return gateway.BindResult{}, err
	}
	if wantsAlias(row, login) {
		if err := w.putAlias(ctx, row, gateway.KeyOf(login.LoginUsername)); err != nil {
			return gateway.BindResult{}, err
		}
	}
	return w.result(own, row), nil
}

// Bind does what gateway.Bindings.Bind promises.
func Bind(ctx context.Context, rows Rows, want gateway.Assignment, now time.Time) (gateway.BindResult, error) {
	w := writer{rows: rows, now: now}
	byUser, byKey, err := rows.Find(ctx, want.ServiceID, want.UserID, gateway.KeyOf(want.Username))
	if err != nil {
		return gateway.BindResult{}, err
	}
	own := byUser
	if own == nil {
		own = byKey
	}
	switch {
	case byUser != nil && byKey != nil && byUser.ID != byKey.ID:
		return gateway.BindResult{}, gateway.Conflictf("user id %q is bound by row %d (node %s), username %q by row %d (node %s)",
			want.UserID, byUser.ID, byUser.NodeID, want.Username, byKey.ID, byKey.NodeID)
	case byUser == nil && byKey != nil && want.UserID != "" && byKey.UserID != "":
		return gateway.BindResult{}, gateway.Conflictf("username %q belongs to user id %q (row %d), not to %q",
			want.Username, byKey.UserID, byKey.ID, want.UserID)
	}
	if err := w.verifyNode(ctx, want.ServiceID, want.NodeID); err != nil {
		return gateway.BindResult{}, err
	}

	var after Row
	if own != nil {
		after = *own
	}
	after.ServiceID = want.ServiceID
	if want.UserID != "" {
		after.UserID = want.UserID
	}
	if want.Username != "" {
		after.Username, after.Key = want.Username, gateway.KeyOf(want.Username)
	}
	if after.NodeID != want.NodeID {
		after.NodeID = want.NodeID
		after.Epoch++
	}
	if own == nil {
		after, err = w.insert(ctx, after)
	} else {
		after, err = w.update(ctx, *own, after)
	}
	if err == nil {
		after, err = w.touch(ctx, after)
	}
	if err != nil {
		return gateway.BindResult{}, err
	}
	return w.result(own, after), nil
}

// Unbind does what gateway.Bindings.Unbind promises.
func Unbind(ctx context.Context, rows Rows, id int64) (gateway.BindResult, error) {
	w := writer{rows: rows}
	row, err := rows.FindID(ctx, id)
	if err != nil {
		return gateway.BindResult{}, err
	}
	if row == nil {
		return gateway.BindResult{}, gateway.ErrNotFound
	}
	if err := w.delete(ctx, *row); err != nil {
		return gateway.BindResult{}, err
	}
	return w.result(row, *row), nil
}

// writer writes rows and notes which look-ups that changes.
type writer struct {
	rows    Rows
	now     time.Time
	changes []gateway.Change
}

func (w *writer) result(before *Row, after Row) gateway.BindResult {
	result := gateway.BindResult{Binding: after.Binding, Created: before == nil, Changes: w.changes}
	if before != nil {
		result.Before = &before.Binding
	}
	return result
}

func (w *writer) changed(changes ...gateway.Change) {
	for _, change := range changes {
		if !slices.Contains(w.changes, change) {
			w.changes = append(w.changes, change)
		}
	}
}

func (w *writer) changedNames(serviceID string, keys ...gateway.UsernameKey) {
	for _, key := range keys {
		w.changed(gateway.Change{Kind: gateway.ChangeUsername, ServiceID: serviceID, UsernameKey: key})
	}
}

func (w *writer) verifyNode(ctx context.Context, serviceID, nodeID string) error {
	switch exists, err := w.rows.HasNode(ctx, serviceID, nodeID); {
	case err != nil:
		return err
	case !exists:
		return gateway.Conflictf("service %q has no node %q", serviceID, nodeID)
	}
	return nil
}

// takeName frees the username of a row for another one. A row that nothing else
// would find is deleted.
func (w *writer) takeName(ctx context.Context, row Row) error {
	if row.UserID == "" {
		return w.delete(ctx, row)
	}
	after := row
	after.Username, after.Key = "", ""
	_, err := w.update(ctx, row, after)
	return err
}

func (w *writer) insert(ctx context.Context, row Row) (Row, error) {
	if err := w.verifyNode(ctx, row.ServiceID, row.NodeID); err != nil {
		return Row{}, err
	}
	row.Epoch, row.CreatedAt, row.UpdatedAt = 1, w.now, w.now
	id, err := w.rows.Insert(ctx, row)
	if err != nil {
		return Row{}, err
	}
	row.ID = id
	w.changed(gateway.ChangesOf(row.Binding)...)
	return row, w.rows.Audit(ctx, Entry(nil, &row))
}

func (w *writer) update(ctx context.Context, before, after Row) (Row, error) {
	if before == after {
		return before, nil
	}
	after.UpdatedAt = w.now
	if err := w.rows.Update(ctx, after); err != nil {
		return Row{}, err
	}
	w.changed(gateway.ChangesOf(before.Binding)...)
	w.changed(gateway.ChangesOf(after.Binding)...)
	if before.Route() != after.Route() {
		aliases, err := w.rows.Aliases(ctx, after.ID)
		if err != nil {
			return Row{}, err
		}
		w.changedNames(after.ServiceID, aliases...)
	}
	return after, w.rows.Audit(ctx, Entry(&before, &after))
}

// touch makes a row no longer as it was imported: a login, or an administrator, has
// found it right.
func (w *writer) touch(ctx context.Context, row Row) (Row, error) {
	if !row.IsAsImported() {
		return row, nil
	}
	row.UpdatedAt = w.now
	return row, w.rows.Update(ctx, row)
}

func (w *writer) delete(ctx context.Context, row Row) error {
	aliases, err := w.rows.Aliases(ctx, row.ID)
	if err != nil {
		return err
	}
	if err := w.rows.Delete(ctx, row.ID); err != nil {
		return err
	}
	w.changed(gateway.ChangesOf(row.Binding)...)
	w.changedNames(row.ServiceID, aliases...)
	return w.rows.Audit(ctx, Entry(&row, nil))
}

// putAlias makes a name typed at a login lead to the row, and drops the row's oldest ones.
func (w *writer) putAlias(ctx context.Context, row Row, key gateway.UsernameKey) error {
	if leadsTo, err := w.rows.Alias(ctx, row.ServiceID, key); err != nil || leadsTo == row.ID {
		return err
	}
	aliases, err := w.rows.Aliases(ctx, row.ID)
	if err != nil {
		return err
	}
	for _, old := range aliases[min(len(aliases), MaxAliases-1):] {
		if err := w.rows.DeleteAlias(ctx, row.ServiceID, old); err != nil {
			return err
		}
		w.changedNames(row.ServiceID, old)
	}
	w.changedNames(row.ServiceID, key)
	return w.rows.PutAlias(ctx, row.ServiceID, key, row.ID, w.now)
}
