package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Actor is who caused a change. It travels in the context, and every change that is
// stored under that context is recorded as theirs, in the same transaction.
type Actor struct {
	Name      string // ActorAdminToken, "user:<id>", ActorLogin, ActorConfiguration, "sql:<role>"
	Address   string // the client's; empty if it is not known
	RequestID string
}

// The actors that are no user.
const (
	ActorAdminToken    = "admin-token"
	ActorLogin         = "login" // a user's login, or a first request that bound to the default node
	ActorConfiguration = "configuration"
)

type actorKey struct{}

// WithActor returns a context whose changes are the actor's.
func WithActor(ctx context.Context, actor Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorOf returns the actor of the context; the zero Actor if there is none.
func ActorOf(ctx context.Context) Actor {
	actor, _ := ctx.Value(actorKey{}).(Actor)
	return actor
}

// The actions of the audit.
const (
	ActionServiceCreate = "service.create"
	ActionServiceUpdate = "service.update"
	ActionServiceDelete = "service.delete"
	ActionNodeCreate    = "node.create"
	ActionNodeUpdate    = "node.update"
	ActionNodeDelete    = "node.delete"
	ActionBindingCreate = "binding.create"
	ActionBindingRebind = "binding.rebind"
	ActionBindingUpdate = "binding.update" // its user id or username
	ActionBindingDelete = "binding.delete"
	ActionImportDone    = "import.done"
	ActionImportUndone  = "import.undone"
	ActionDenied        = "access.denied" // a user who is no administrator asked for a change
)

// AuditEntry is one change. Entries are never changed or deleted.
type AuditEntry struct {
	ID        int64
	At        time.Time
	Actor     Actor
	Action    string
	ServiceID string
	NodeID    string // the node's own id, or that of a binding after the change (before it, if it was deleted)
	UserID    string
	Username  string // likewise after, or before
	KeyBefore UsernameKey
	KeyAfter  UsernameKey
	Before    json.RawMessage // the record, as an object; nil: there was none
	After     json.RawMessage // nil: there is none any more
}

// AuditFilter selects entries; empty fields select all.
type AuditFilter struct {
	ServiceID string
	NodeID    string
	UserID    string
	Username  UsernameKey
	Actor     string
	Action    string // "binding.rebind", or "binding" for every action of bindings
	RequestID string
	Since     time.Time
	Until     time.Time
	Offset    int
	Limit     int
}

// AuditLog is the append-only record of every change, who made it and when.
// The stores add to it by themselves with every change they carry out. What is
// not told one by one: the bindings of an import, which bear its id instead.
type AuditLog interface {
	// Record adds an entry that is no change of the store; its ID, At and Actor are
	// the store's, the clock's and the context's.
	Record(ctx context.Context, entry AuditEntry) error

	// ListAudit returns a page, the newest first, and how many match in all.
	ListAudit(ctx context.Context, filter AuditFilter) (page []AuditEntry, total int64, err error)

	// BindingAt returns the binding that the user id, or the username if userID is
	// empty, had at that time, or ErrNotFound: what the first change after it found, or
	// else what is bound now (see Binding.WasHeldBy).
	BindingAt(ctx context.Context, serviceID, userID string, key UsernameKey, at time.Time) (Binding, error)
}

// auditBinding is a binding in the audit. The trigger that records changes made
// at the SQL prompt (sql/postgres) writes the same fields.
type auditBinding struct {
	ID         int64     `json:"id"`
	ServiceID  string    `json:"serviceId"`
	UserID     string    `json:"userId,omitempty"`
	Username   string    `json:"username,omitempty"`
	NodeID     string    `json:"nodeId"`
	Epoch      int64     `json:"epoch"`
	ImportID   int64     `json:"importId,omitempty"`
	CreateTime time.Time `json:"createTime"`
}

// AuditBindingChange is the entry of a binding that became another; nil stands for no
// binding. The keys are what the rows are found by (see bindrule.Row).
func AuditBindingChange(before *Binding, keyBefore UsernameKey, after *Binding, keyAfter UsernameKey) AuditEntry {
	e := AuditEntry{Action: ActionBindingUpdate}
	switch {
	case before == nil:
		e.Action = ActionBindingCreate
	case after == nil:
		e.Action = ActionBindingDelete
	case before.NodeID != after.NodeID:
		e.Action = ActionBindingRebind
	}
	for _, b := range []*Binding{before, after} {
		if b != nil {
			e.ServiceID, e.NodeID, e.UserID, e.Username = b.ServiceID, b.NodeID, b.UserID, b.Username
		}
	}
	if before != nil {
		e.Before, e.KeyBefore = bindingJSON(*before), keyBefore
	}
	if after != nil {
		e.After, e.KeyAfter = bindingJSON(*after), keyAfter
	}
	if after != nil && after.Username == "" && before != nil {
		e.Username = before.Username // the name that it lost
	}
	return e
}

func bindingJSON(b Binding) json.RawMessage {
	return mustJSON(auditBinding{b.ID, b.ServiceID, b.UserID, b.Username, b.NodeID, b.Epoch, b.ImportID, b.CreatedAt})
}

// AuditedBinding reads a binding of an entry back.
func AuditedBinding(raw json.RawMessage) (Binding, error) {
	var b auditBinding
	if len(raw) == 0 {
		return Binding{}, errors.New("no binding")
	}
	err := json.Unmarshal(raw, &b)
	return Binding{
		ID: b.ID, ServiceID: b.ServiceID, UserID: b.UserID, Username: b.Username, NodeID: b.NodeID, Epoch: b.Epoch, ImportID: b.ImportID, CreatedAt: b.CreateTime,
	}, err
}

// WasHeldBy reports whether a binding that was found for a user id, or for a username
// if that is empty, as the first change after at found it or as it is now, was theirs
// at that time. A change may have found a row that was another's. And a binding that
// began after at would have been found by the entry of its beginning, but for those of
// an import, which have none. Those from before there was an audit have none either,
// and a time of any zone: they count as old.
func (b Binding) WasHeldBy(userID string, key UsernameKey, at time.Time) bool {
	isTheirs := b.UserID == userID
	if userID == "" {
		isTheirs = KeyOf(b.Username) == key
	}
	return isTheirs && (b.ImportID == 0 || !b.CreatedAt.After(at))
}

// AuditServiceChange is the entry of a service that became another; nil stands for none.
func AuditServiceChange(before, after *Service) AuditEntry {
	e := AuditEntry{Action: ActionServiceUpdate}
	switch {
	case before == nil:
		e.Action = ActionServiceCreate
	case after == nil:
		e.Action = ActionServiceDelete
	}
	if before != nil {
		e.ServiceID, e.Before = before.ID, serviceJSON(*before)
	}
	if after != nil {
		e.ServiceID, e.After = after.ID, serviceJSON(*after)
	}
	return e
}

func serviceJSON(s Service) json.RawMessage {
	return mustJSON(map[string]any{
		"id": s.ID, "name": s.Name, "pathPrefix": s.PathPrefix, "loginPath": s.LoginPath, "logoutPath": s.LogoutPath,
		"healthPath": s.HealthPath, "defaultNodeId": s.DefaultNodeID, "enabled": s.Enabled, "placement": s.Placement, "login": s.Login,
	})
}

// AuditNodeChange is the entry of a node that became another; nil stands for none.
func AuditNodeChange(before, after *Node) AuditEntry {
	e := AuditEntry{Action: ActionNodeUpdate}
	switch {
	case before == nil:
		e.Action = ActionNodeCreate
	case after == nil:
		e.Action = ActionNodeDelete
	}
	if before != nil {
		e.ServiceID, e.NodeID, e.Before = before.ServiceID, before.ID, nodeJSON(*before)
	}
	if after != nil {
		e.ServiceID, e.NodeID, e.After = after.ServiceID, after.ID, nodeJSON(*after)
	}
	return e
}

func nodeJSON(n Node) json.RawMessage {
	return mustJSON(map[string]any{
		"id": n.ID, "serviceId": n.ServiceID, "name": n.Name, "baseUrl": n.BaseURL, "traefikService": n.TraefikService,
		"enabled": n.Enabled, "weight": n.Weight, "acceptNew": !n.Draining, "remark": n.Remark,
	})
}

// AuditImport is the entry of an import that ended.
func AuditImport(action string, i Import) AuditEntry {
	return AuditEntry{Action: action, ServiceID: i.ServiceID, NodeID: i.NodeID, After: mustJSON(map[string]any{
		"id": i.ID, "serviceId": i.ServiceID, "nodeId": i.NodeID, "source": i.Source, "counts": i.Counts, "removed": i.Removed, "kept": i.Kept,
	})}
}

func mustJSON(value any) json.RawMessage {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // plain fields always marshal
	}
	return raw
}
