package gateway

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotFound is returned by every look-up that was answered with "no such
// thing". Any other error of a store means that it could not be asked.
var ErrNotFound = errors.New("not found")

// IsNotFound reports whether err says "no such thing".
func IsNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// ConflictError refuses a write because of rows that exist. Message is safe to show to an administrator.
type ConflictError struct{ Message string }

func (e *ConflictError) Error() string { return e.Message }

// Conflictf makes a ConflictError.
func Conflictf(format string, args ...any) error {
	return &ConflictError{Message: fmt.Sprintf(format, args...)}
}

// Bindings is the durable table of bindings, the source of truth. Its unique
// indexes decide every race; all methods are safe for concurrent use by any
// number of processes.
type Bindings interface {
	// BindingByUser finds the binding of a user id, or ErrNotFound.
	BindingByUser(ctx context.Context, serviceID, userID string) (Binding, error)

	// BindingByUsername finds the binding of a username, else the one an alias
	// of that key leads to, else ErrNotFound. An alias never outranks a username.
	BindingByUsername(ctx context.Context, serviceID string, key UsernameKey) (Binding, error)

	// BindIfAbsent records a successful login in one transaction; the first
	// writer wins. It is idempotent. The rules (spec section 3 and 8):
	//   - a row of the user id keeps its node; its username is updated
	//   - else a row of the username without a user id gets the user id and keeps its node
	//   - else a new row is made on the login's node
	//   - a username that was another user id's moves: that row's username becomes
	//     NULL (a row left with neither id nor name is deleted)
	//   - a LoginUsername of another key becomes an alias of the row; the last
	//     writer wins; a row keeps its 16 newest aliases
	// A node that does not exist in the service is a ConflictError.
	BindIfAbsent(ctx context.Context, login Login) (BindResult, error)

	// Bind is the administrator's bind or rebind. The row is found by user id,
	// by username (not by alias), or both; when they name two rows it is a
	// ConflictError naming both. A missing row is made. A row that changes its
	// node gets the next epoch. Given both, the row gets the one it lacks; a
	// different username is updated. A row found by username that belongs to
	// another user id is a ConflictError. A node that does not exist in the
	// service is a ConflictError.
	Bind(ctx context.Context, want Assignment) (BindResult, error)

	// Unbind deletes a row and its aliases and returns it in Before and Binding, or ErrNotFound.
	Unbind(ctx context.Context, id int64) (BindResult, error)

	// ListBindings returns a page ordered by id, and how many match in all.
	// Wildcards in the keyword have no meaning.
	ListBindings(ctx context.Context, filter BindingFilter) (page []Binding, total int64, err error)

	// CountBindings counts the bindings of every node that has any, by node id.
	CountBindings(ctx context.Context) (map[string]int64, error)
}

// RegistryStore is the durable table of services and nodes.
type RegistryStore interface {
	// LoadRegistry reads all services and nodes in one snapshot, ordered by id.
	LoadRegistry(ctx context.Context) ([]Service, []Node, error)

	// SeedRegistry stores services and nodes if there is no service yet, and
	// reports whether it did. Of several processes one does.
	SeedRegistry(ctx context.Context, services []Service, nodes []Node) (bool, error)

	// CreateService and CreateNode refuse an id (or path prefix) that is taken, and a
	// node whose service does not exist, with a ConflictError.
	CreateService(ctx context.Context, service Service) error
	CreateNode(ctx context.Context, node Node) error

	// UpdateService and UpdateNode read the row, let change alter it, and write it
	// back in one transaction; an error of change aborts it and is returned. The
	// id (and a node's service) cannot change. ErrNotFound if there is none.
	// A defaultNodeId that is no node of the service is a ConflictError.
	UpdateService(ctx context.Context, id string, change func(*Service) error) (Service, error)
	UpdateNode(ctx context.Context, id string, change func(*Node) error) (Node, error)

	// DeleteService refuses with a ConflictError while nodes or bindings exist;
	// DeleteNode while bindings exist or the node is its service's default node.
	DeleteService(ctx context.Context, id string) error
	DeleteNode(ctx context.Context, id string) error
}

// ChangeFeed tells of every change to services, nodes, bindings, policies and roles, whoever
// made it: this process, another one, or a hand at the SQL prompt.
type ChangeFeed interface {
	// Follow calls live(true) once changes are being heard, live(false) when they
	// may be missed (the connection broke), and changed for each change, until
	// ctx ends. Between live(true) and live(false) a change arrives within 1 s of
	// its commit. Calls come from one goroutine, one at a time.
	Follow(ctx context.Context, live func(bool), changed func(Change)) error
}

// Store is the durable store: PostgreSQL, or the embedded SQLite file.
type Store interface {
	Bindings
	RegistryStore
	AuditLog
	Imports
	Policies
	Roles
	ChangeFeed
	Ping(ctx context.Context) error
	Close() error
}

// Tokens knows which user a token belongs to.
type Tokens interface {
	// UserByToken returns the user id, or ErrNotFound when the store answered and
	// knows no such token. Any other error, a wrong value type included, means
	// that the store could not be asked.
	UserByToken(ctx context.Context, serviceID, token string) (string, error)
}

// TokenCache is a Tokens that learns. Entries live as long as the store's TTL says (24 h).
type TokenCache interface {
	Tokens
	PutToken(ctx context.Context, serviceID, token, userID string) error
	DropToken(ctx context.Context, serviceID, token string) error
}

// RouteCache is the shared cache of bindings (Redis). It answers with an error
// whenever it cannot be sure that every change has reached it.
type RouteCache interface {
	// RouteByUser and RouteByUsername return ErrNotFound on a miss.
	RouteByUser(ctx context.Context, serviceID, userID string) (Route, error)
	RouteByUsername(ctx context.Context, serviceID string, key UsernameKey) (Route, error)

	// FillUser and FillUsername keep what the durable store answered, unless the
	// entry exists or was invalidated since.
	FillUser(ctx context.Context, serviceID, userID string, route Route) error
	FillUsername(ctx context.Context, serviceID string, key UsernameKey, route Route) error

	// Invalidate forgets the look-ups of the changes, and refuses fills that read
	// the durable store before it, for longer than such a read can take. After an
	// error the cache must not be asked again before a Flush succeeded; the
	// implementation sees to that itself.
	Invalidate(ctx context.Context, changes []Change) error

	// Flush forgets everything.
	Flush(ctx context.Context) error
}
