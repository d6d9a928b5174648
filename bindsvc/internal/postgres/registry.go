package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// The registry as it is read: a row of the old gateway may lack anything but its
// id. What is then invalid is for gateway's Verify to say.
const (
	serviceColumns = `id, coalesce(name, id), coalesce(path_prefix, ''), coalesce(login_path, ''), coalesce(logout_path, ''),
		coalesce(health_path, '/actuator/health'), coalesce(default_node_id, ''), login_fields, coalesce(enabled, 0) <> 0,
		coalesce(nullif(placement, ''), 'round-robin'),
		coalesce(create_time, update_time, 'epoch'), coalesce(update_time, create_time, 'epoch')`
	nodeColumns = `id, coalesce(service_id, ''), coalesce(name, id), coalesce(base_url, ''), coalesce(traefik_service, ''),
		coalesce(enabled, 0) <> 0, coalesce(weight, 1), coalesce(accept_new, 1) = 0, coalesce(remark, ''),
		coalesce(create_time, update_time, 'epoch'), coalesce(update_time, create_time, 'epoch')`
)

func scanService(row pgx.CollectableRow) (gateway.Service, error) {
	var s gateway.Service
	var login []byte
	err := row.Scan(&s.ID, &s.Name, &s.PathPrefix, &s.LoginPath, &s.LogoutPath, &s.HealthPath, &s.DefaultNodeID, &login, &s.Enabled, &s.Placement, &s.CreatedAt, &s.UpdatedAt)
	if err != nil {
		return gateway.Service{}, err
	}
	if prefix := strings.TrimSuffix(s.PathPrefix, "/"); prefix != "" {
		s.PathPrefix = prefix
	}
	if login == nil {
		login = []byte(`{}`)
	}
	if err := json.Unmarshal(login, &s.Login); err != nil {
		s.Login = gateway.LoginFields{}
		return s, nil //nolint:nilerr // written by hand: the defaults hold
	}
	s.Login = s.Login.WithDefaults()
	return s, nil
}

func scanNode(row pgx.CollectableRow) (gateway.Node, error) {
	var n gateway.Node
	err := row.Scan(&n.ID, &n.ServiceID, &n.Name, &n.BaseURL, &n.TraefikService, &n.Enabled, &n.Weight, &n.Draining, &n.Remark, &n.CreatedAt, &n.UpdatedAt)
	n.BaseURL = strings.TrimSuffix(n.BaseURL, "/")
	return n, err
}

// completeService and completeNode fill what has a default, as reading does.
func completeService(service gateway.Service) gateway.Service {
	service.Login = service.Login.WithDefaults()
	service.Placement = cmp.Or(service.Placement, gateway.RoundRobin)
	return service
}

func completeNode(node gateway.Node) gateway.Node {
	node.Weight = node.Share()
	return node
}

func flag(is bool) int16 {
	if is {
		return 1
	}
	return 0
}

// inSnapshot runs fn in a transaction that sees one state of the database and changes nothing.
func (s *Store) inSnapshot(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}

// LoadRegistry implements gateway.RegistryStore.
func (s *Store) LoadRegistry(ctx context.Context) (services []gateway.Service, nodes []gateway.Node, err error) {
	err = s.inSnapshot(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+serviceColumns+` FROM gateway_service ORDER BY id COLLATE "C"`)
		if err != nil {
			return err
		}
		if services, err = pgx.CollectRows(rows, scanService); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, `SELECT `+nodeColumns+` FROM gateway_node ORDER BY id COLLATE "C"`); err != nil {
			return err
		}
		nodes, err = pgx.CollectRows(rows, scanNode)
		return err
	})
	return services, nodes, err
}

// SeedRegistry implements gateway.RegistryStore.
func (s *Store) SeedRegistry(ctx context.Context, services []gateway.Service, nodes []gateway.Node) (seeded bool, err error) {
	const hasServices = `SELECT EXISTS (SELECT FROM gateway_service)`
	var filled bool
	if err := s.pool.QueryRow(ctx, hasServices).Scan(&filled); err != nil || filled {
		return false, err
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		// Of the processes that start now one seeds; the others see its rows.
		if _, err := tx.Exec(ctx, `LOCK TABLE gateway_service IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, hasServices).Scan(&filled); err != nil {
			return err
		}
		if seeded = !filled; filled {
			return nil
		}
		return seed(ctx, tx, services, nodes)
	})
	return seeded && err == nil, err
}

func seed(ctx context.Context, tx pgx.Tx, services []gateway.Service, nodes []gateway.Node) error {
	for _, service := range services {
		service = completeService(service)
		withoutDefault := service
		withoutDefault.DefaultNodeID = ""
		if err := insertService(ctx, tx, withoutDefault); err != nil {
			return err
		}
		if err := record(ctx, tx, gateway.AuditServiceChange(nil, &service)); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		if err := createNode(ctx, tx, node); err != nil {
			return err
		}
	}
	for _, service := range services {
		service = completeService(service)
		service.UpdatedAt = now()
		if err := writeService(ctx, tx, service); err != nil { // its default node exists now
			return err
		}
	}
	return nil
}

// CreateService implements gateway.RegistryStore.
func (s *Store) CreateService(ctx context.Context, service gateway.Service) error {
	if service.DefaultNodeID != "" {
		return gateway.Conflictf("the new service %q has no node %q yet", service.ID, service.DefaultNodeID)
	}
	service = completeService(service)
	return s.inTx(ctx, func(tx pgx.Tx) error {
		if err := insertService(ctx, tx, service); err != nil {
			return err
		}
		return record(ctx, tx, gateway.AuditServiceChange(nil, &service))
	})
}

// CreateNode implements gateway.RegistryStore.
func (s *Store) CreateNode(ctx context.Context, node gateway.Node) error {
	return s.inTx(ctx, func(tx pgx.Tx) error { return createNode(ctx, tx, node) })
}

func createNode(ctx context.Context, tx pgx.Tx, node gateway.Node) error {
	node = completeNode(node)
	if err := insertNode(ctx, tx, node); err != nil {
		return err
	}
	return record(ctx, tx, gateway.AuditNodeChange(nil, &node))
}

// UpdateService implements gateway.RegistryStore. A lost race runs change again, on
// the new row; a change to what it was before writes nothing.
func (s *Store) UpdateService(ctx context.Context, id string, change func(*gateway.Service) error) (service gateway.Service, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		service, err = one(ctx, tx, scanService, `SELECT `+serviceColumns+` FROM gateway_service WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err != nil {
			return err
		}
		before := service
		before.Login.Success = slices.Clone(service.Login.Success)
		if err := change(&service); err != nil {
			return err
		}
		service = completeService(service)
		service.ID, service.CreatedAt, service.UpdatedAt = id, before.CreatedAt, before.UpdatedAt
		if reflect.DeepEqual(before, service) {
			return nil
		}
		service.UpdatedAt = now()
		if err := writeService(ctx, tx, service); err != nil {
			return err
		}
		return record(ctx, tx, gateway.AuditServiceChange(&before, &service))
	})
	if err != nil {
		return gateway.Service{}, err
	}
	return service, nil
}

// UpdateNode implements gateway.RegistryStore, like UpdateService.
func (s *Store) UpdateNode(ctx context.Context, id string, change func(*gateway.Node) error) (node gateway.Node, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		node, err = one(ctx, tx, scanNode, `SELECT `+nodeColumns+` FROM gateway_node WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err != nil {
			return err
		}
		before := node
		if err := change(&node); err != nil {
			return err
		}
		node = completeNode(node)
		node.ID, node.ServiceID, node.CreatedAt, node.UpdatedAt = id, before.ServiceID, before.CreatedAt, before.UpdatedAt
		if node == before {
			return nil
		}
		node.UpdatedAt = now()
		_, err = tx.Exec(ctx, `UPDATE gateway_node SET name = $2, base_url = $3, traefik_service = nullif($4, ''), enabled = $5, weight = $6, accept_new = $7,
			remark = nullif($8, ''), update_time = $9 WHERE id = $1`,
			node.ID, node.Name, node.BaseURL, node.TraefikService, flag(node.Enabled), node.Weight, flag(!node.Draining), node.Remark, node.UpdatedAt)
		if err != nil {
			return err
		}
		return record(ctx, tx, gateway.AuditNodeChange(&before, &node))
	})
	if err != nil {
		return gateway.Node{}, err
	}
	return node, nil
}

// DeleteService implements gateway.RegistryStore.
func (s *Store) DeleteService(ctx context.Context, id string) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		// The lock keeps out new nodes and bindings, whose foreign keys want the row.
		service, err := one(ctx, tx, scanService, `SELECT `+serviceColumns+` FROM gateway_service WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		var nodes, bindings int64
		err = tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM gateway_node WHERE service_id = $1),
			(SELECT count(*) FROM gateway_user_route WHERE service_id = $1)`, id).Scan(&nodes, &bindings)
		if err != nil {
			return err
		}
		if nodes+bindings > 0 {
			return gateway.Conflictf("service %q still has nodes (%d) or bindings (%d): delete those first", id, nodes, bindings)
		}
		if err := dropRoles(ctx, tx, id); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM gateway_service WHERE id = $1`, id); err != nil {
			return err
		}
		return record(ctx, tx, gateway.AuditServiceChange(&service, nil))
	})
}

// DeleteNode implements gateway.RegistryStore.
func (s *Store) DeleteNode(ctx context.Context, id string) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		// The service first, as UpdateService does; it must not make the node its default meanwhile.
		var isDefault bool
		err := tx.QueryRow(ctx, `SELECT coalesce(s.default_node_id = n.id, false) FROM gateway_node n JOIN gateway_service s ON s.id = n.service_id
			WHERE n.id = $1 FOR NO KEY UPDATE OF s`, id).Scan(&isDefault)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) { // an orphan of the old gateway has no service
			return err
		}
		if isDefault {
			return gateway.Conflictf("node %q is its service's default node: give the service another one, or none, first", id)
		}
		node, err := one(ctx, tx, scanNode, `SELECT `+nodeColumns+` FROM gateway_node WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		var bindings int64
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM gateway_user_route WHERE node_id = $1`, id).Scan(&bindings); err != nil {
			return err
		}
		if bindings > 0 {
			return gateway.Conflictf("users are bound to node %q (%d): bind them elsewhere, or unbind them, first", id, bindings)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM gateway_node WHERE id = $1`, id); err != nil {
			return err
		}
		return record(ctx, tx, gateway.AuditNodeChange(&node, nil))
	})
}

func insertService(ctx context.Context, tx pgx.Tx, service gateway.Service) error {
	var taken bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM gateway_service WHERE id = $1)`, service.ID).Scan(&taken); err != nil {
		return err
	}
	if taken {
		return gateway.Conflictf("there is a service %q already", service.ID)
	}
	if err := refusePrefix(ctx, tx, service); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO gateway_service
			(id, name, path_prefix, login_path, logout_path, health_path, default_node_id, login_fields, enabled, placement, create_time, update_time)
		VALUES ($1, $2, $3, nullif($4, ''), nullif($5, ''), $6, nullif($7, ''), $8, $9, $10, $11, $11)`,
		service.ID, service.Name, service.PathPrefix, service.LoginPath, service.LogoutPath, service.HealthPath,
		service.DefaultNodeID, service.Login, flag(service.Enabled), service.Placement, now())
	return err
}

// writeService writes a service that exists.
func writeService(ctx context.Context, tx pgx.Tx, service gateway.Service) error {
	if err := refusePrefix(ctx, tx, service); err != nil {
		return err
	}
	if service.DefaultNodeID != "" {
		switch has, err := (routes{tx}).HasNode(ctx, service.ID, service.DefaultNodeID); {
		case err != nil:
			return err
		case !has:
			return gateway.Conflictf("service %q has no node %q", service.ID, service.DefaultNodeID)
		}
	}
	_, err := tx.Exec(ctx, `UPDATE gateway_service SET name = $2, path_prefix = $3, login_path = nullif($4, ''), logout_path = nullif($5, ''),
		health_path = $6, default_node_id = nullif($7, ''), login_fields = $8, enabled = $9, placement = $10, update_time = $11 WHERE id = $1`,
		service.ID, service.Name, service.PathPrefix, service.LoginPath, service.LogoutPath, service.HealthPath,
		service.DefaultNodeID, service.Login, flag(service.Enabled), service.Placement, service.UpdatedAt)
	return err
}

// refusePrefix explains what the unique index would refuse; a race that gets past
// it fails there, and is run again.
func refusePrefix(ctx context.Context, tx pgx.Tx, service gateway.Service) error {
	var other string
	err := tx.QueryRow(ctx, `SELECT id FROM gateway_service WHERE path_prefix = $1 AND id <> $2 LIMIT 1`, service.PathPrefix, service.ID).Scan(&other)
	switch {
	case err == nil:
		return gateway.Conflictf("path prefix %q belongs to service %q", service.PathPrefix, other)
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	}
	return err
}

func insertNode(ctx context.Context, tx pgx.Tx, node gateway.Node) error {
	var serviceExists, taken bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM gateway_service WHERE id = $1), EXISTS (SELECT FROM gateway_node WHERE id = $2)`,
		node.ServiceID, node.ID).Scan(&serviceExists, &taken)
	switch {
	case err != nil:
		return err
	case !serviceExists:
		return gateway.Conflictf("node %q: there is no service %q", node.ID, node.ServiceID)
	case taken:
		return gateway.Conflictf("there is a node %q already", node.ID)
	}
	_, err = tx.Exec(ctx, `INSERT INTO gateway_node (id, service_id, name, base_url, traefik_service, enabled, weight, accept_new, remark, create_time, update_time)
		VALUES ($1, $2, $3, $4, nullif($5, ''), $6, $7, $8, nullif($9, ''), $10, $10)`,
		node.ID, node.ServiceID, node.Name, node.BaseURL, node.TraefikService, flag(node.Enabled), node.Weight, flag(!node.Draining), node.Remark, now())
	if sqlState(err) == foreignKeyViolation {
		return gateway.Conflictf("node %q: there is no service %q", node.ID, node.ServiceID) // deleted just now
	}
	return err
}

// queryer is a transaction or a pool.
type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// one reads the only row of a query, or gateway.ErrNotFound.
func one[T any](ctx context.Context, db queryer, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	found, err := pgx.CollectExactlyOneRow(rows, scan)
	return found, notFound(err)
}

func notFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return gateway.ErrNotFound
	}
	return err
}
