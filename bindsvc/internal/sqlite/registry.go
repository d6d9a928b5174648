package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const (
	serviceColumns = `id, coalesce(name, id), path_prefix, coalesce(login_path, ''), coalesce(logout_path, ''),
		coalesce(health_path, '/actuator/health'), coalesce(default_node_id, ''), coalesce(login_fields, '{}'), enabled,
		coalesce(nullif(placement, ''), 'round-robin'), create_time, update_time`
	nodeColumns = `id, service_id, coalesce(name, id), base_url, coalesce(traefik_service, ''), enabled, weight, accept_new = 0, coalesce(remark, ''), create_time, update_time`
)

func scanService(row scanner) (gateway.Service, error) {
	var s gateway.Service
	var login string
	var created, updated int64
	err := row.Scan(&s.ID, &s.Name, &s.PathPrefix, &s.LoginPath, &s.LogoutPath, &s.HealthPath, &s.DefaultNodeID, &login, &s.Enabled, &s.Placement, &created, &updated)
	if err != nil {
		return gateway.Service{}, notFound(err)
	}
	s.CreatedAt, s.UpdatedAt = time.UnixMicro(created).UTC(), time.UnixMicro(updated).UTC()
	if err := json.Unmarshal([]byte(login), &s.Login); err != nil {
		s.Login = gateway.LoginFields{}
		return s, nil //nolint:nilerr // written by hand: the defaults hold
	}
	s.Login = s.Login.WithDefaults()
	return s, nil
}

func scanNode(row scanner) (gateway.Node, error) {
	var n gateway.Node
	var created, updated int64
	err := row.Scan(&n.ID, &n.ServiceID, &n.Name, &n.BaseURL, &n.TraefikService, &n.Enabled, &n.Weight, &n.Draining, &n.Remark, &created, &updated)
	n.CreatedAt, n.UpdatedAt = time.UnixMicro(created).UTC(), time.UnixMicro(updated).UTC()
	return n, notFound(err)
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

// LoadRegistry implements gateway.RegistryStore.
func (s *Store) LoadRegistry(ctx context.Context) (services []gateway.Service, nodes []gateway.Node, err error) {
	err = s.inSnapshot(ctx, func(tx *sql.Tx) (err error) {
		if services, err = collect(ctx, tx, scanService, `SELECT `+serviceColumns+` FROM gateway_service ORDER BY id`); err != nil {
			return err
		}
		nodes, err = collect(ctx, tx, scanNode, `SELECT `+nodeColumns+` FROM gateway_node ORDER BY id`)
		return err
	})
	return services, nodes, err
}

// change runs fn in the write transaction and tells of it.
func (s *Store) change(ctx context.Context, fn func(registryTx) error) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error { return fn(registryTx{tx, s.now()}) })
	if err == nil {
		s.hub.publish(gateway.Change{Kind: gateway.ChangeRegistry})
	}
	return err
}

// SeedRegistry implements gateway.RegistryStore.
func (s *Store) SeedRegistry(ctx context.Context, services []gateway.Service, nodes []gateway.Node) (bool, error) {
	err := s.change(ctx, func(tx registryTx) error {
		if filled, err := tx.exists(ctx, `SELECT 1 FROM gateway_service`); err != nil {
			return err
		} else if filled {
			return errFilled
		}
		for _, service := range services {
			service = completeService(service)
			withoutDefault := service
			withoutDefault.DefaultNodeID = ""
			if err := tx.insertService(ctx, withoutDefault); err != nil {
				return err
			}
			if err := tx.record(ctx, gateway.AuditServiceChange(nil, &service)); err != nil {
				return err
			}
		}
		for _, node := range nodes {
			if err := tx.createNode(ctx, node); err != nil {
				return err
			}
		}
		for _, service := range services {
			if err := tx.updateService(ctx, completeService(service)); err != nil { // its default node exists now
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errFilled) {
		return false, nil
	}
	return err == nil, err
}

// What ends a transaction that has nothing to write.
var (
	errFilled    = errors.New("there are services already")
	errUnchanged = errors.New("nothing has changed")
)

// CreateService implements gateway.RegistryStore.
func (s *Store) CreateService(ctx context.Context, service gateway.Service) error {
	if service.DefaultNodeID != "" {
		return gateway.Conflictf("the new service %q has no node %q yet", service.ID, service.DefaultNodeID)
	}
	service = completeService(service)
	return s.change(ctx, func(tx registryTx) error {
		if err := tx.insertService(ctx, service); err != nil {
			return err
		}
		return tx.record(ctx, gateway.AuditServiceChange(nil, &service))
	})
}

// CreateNode implements gateway.RegistryStore.
func (s *Store) CreateNode(ctx context.Context, node gateway.Node) error {
	return s.change(ctx, func(tx registryTx) error { return tx.createNode(ctx, node) })
}

// UpdateService implements gateway.RegistryStore. A change to what it was before writes nothing.
func (s *Store) UpdateService(ctx context.Context, id string, change func(*gateway.Service) error) (service gateway.Service, err error) {
	err = s.change(ctx, func(tx registryTx) (err error) {
		if service, err = scanService(tx.QueryRowContext(ctx, `SELECT `+serviceColumns+` FROM gateway_service WHERE id = $1`, id)); err != nil {
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
			return errUnchanged
		}
		service.UpdatedAt = tx.now
		if err := tx.updateService(ctx, service); err != nil {
			return err
		}
		return tx.record(ctx, gateway.AuditServiceChange(&before, &service))
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return gateway.Service{}, err
	}
	return service, nil
}

// UpdateNode implements gateway.RegistryStore, like UpdateService.
func (s *Store) UpdateNode(ctx context.Context, id string, change func(*gateway.Node) error) (node gateway.Node, err error) {
	err = s.change(ctx, func(tx registryTx) (err error) {
		if node, err = scanNode(tx.QueryRowContext(ctx, `SELECT `+nodeColumns+` FROM gateway_node WHERE id = $1`, id)); err != nil {
			return err
		}
		before := node
		if err := change(&node); err != nil {
			return err
		}
		node = completeNode(node)
		node.ID, node.ServiceID, node.CreatedAt, node.UpdatedAt = id, before.ServiceID, before.CreatedAt, before.UpdatedAt
		if node == before {
			return errUnchanged
		}
		node.UpdatedAt = tx.now
		_, err = tx.ExecContext(ctx, `UPDATE gateway_node SET name = $2, base_url = $3, traefik_service = nullif($4, ''), enabled = $5,
			weight = $6, accept_new = $7, remark = nullif($8, ''), update_time = $9 WHERE id = $1`,
			node.ID, node.Name, node.BaseURL, node.TraefikService, node.Enabled, node.Weight, !node.Draining, node.Remark, tx.now.UnixMicro())
		if err != nil {
			return err
		}
		return tx.record(ctx, gateway.AuditNodeChange(&before, &node))
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return gateway.Node{}, err
	}
	return node, nil
}

// DeleteService implements gateway.RegistryStore.
func (s *Store) DeleteService(ctx context.Context, id string) error {
	var hadRoles bool
	err := s.change(ctx, func(tx registryTx) error {
		service, err := scanService(tx.QueryRowContext(ctx, `SELECT `+serviceColumns+` FROM gateway_service WHERE id = $1`, id))
		if err != nil {
			return err
		}
		var nodes, bindings int64
		err = tx.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM gateway_node WHERE service_id = $1),
			(SELECT count(*) FROM gateway_user_route WHERE service_id = $1)`, id).Scan(&nodes, &bindings)
		if err != nil {
			return err
		}
		if nodes+bindings > 0 {
			return gateway.Conflictf("service %q still has nodes (%d) or bindings (%d): delete those first", id, nodes, bindings)
		}
		if hadRoles, err = tx.dropRoles(ctx, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM gateway_service WHERE id = $1`, id); err != nil {
			return err
		}
		return tx.record(ctx, gateway.AuditServiceChange(&service, nil))
	})
	if err == nil && hadRoles {
		s.hub.publish(gateway.Change{Kind: gateway.ChangeRoles})
	}
	return err
}

// DeleteNode implements gateway.RegistryStore.
func (s *Store) DeleteNode(ctx context.Context, id string) error {
	return s.change(ctx, func(tx registryTx) error {
		node, err := scanNode(tx.QueryRowContext(ctx, `SELECT `+nodeColumns+` FROM gateway_node WHERE id = $1`, id))
		if err != nil {
			return err
		}
		var isDefault bool
		var bindings int64
		err = tx.QueryRowContext(ctx, `SELECT coalesce(s.default_node_id = n.id, false), (SELECT count(*) FROM gateway_user_route WHERE node_id = n.id)
			FROM gateway_node n JOIN gateway_service s ON s.id = n.service_id WHERE n.id = $1`, id).Scan(&isDefault, &bindings)
		switch {
		case err != nil:
			return notFound(err)
		case isDefault:
			return gateway.Conflictf("node %q is its service's default node: give the service another one, or none, first", id)
		case bindings > 0:
			return gateway.Conflictf("users are bound to node %q (%d): bind them elsewhere, or unbind them, first", id, bindings)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM gateway_node WHERE id = $1`, id); err != nil {
			return err
		}
		return tx.record(ctx, gateway.AuditNodeChange(&node, nil))
	})
}

// registryTx writes services and nodes in the write transaction.
type registryTx struct {
	*sql.Tx
	now time.Time
}

func (tx registryTx) record(ctx context.Context, entry gateway.AuditEntry) error {
	return record(ctx, tx.Tx, tx.now, entry)
}

func (tx registryTx) exists(ctx context.Context, query string, args ...any) (exists bool, err error) {
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (`+query+`)`, args...).Scan(&exists)
	return exists, err
}

func (tx registryTx) insertService(ctx context.Context, service gateway.Service) error {
	if taken, err := tx.exists(ctx, `SELECT 1 FROM gateway_service WHERE id = $1`, service.ID); err != nil {
		return err
	} else if taken {
		return gateway.Conflictf("there is a service %q already", service.ID)
	}
	if err := tx.refusePrefix(ctx, service); err != nil {
		return err
	}
	login, err := json.Marshal(service.Login)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO gateway_service
			(id, name, path_prefix, login_path, logout_path, health_path, default_node_id, login_fields, enabled, placement, create_time, update_time)
		VALUES ($1, $2, $3, nullif($4, ''), nullif($5, ''), $6, nullif($7, ''), $8, $9, $10, $11, $11)`,
		service.ID, service.Name, service.PathPrefix, service.LoginPath, service.LogoutPath, service.HealthPath,
		service.DefaultNodeID, string(login), service.Enabled, service.Placement, tx.now.UnixMicro())
	return err
}

func (tx registryTx) updateService(ctx context.Context, service gateway.Service) error {
	if err := tx.refusePrefix(ctx, service); err != nil {
		return err
	}
	if service.DefaultNodeID != "" {
		switch has, err := (routes{tx: tx.Tx}).HasNode(ctx, service.ID, service.DefaultNodeID); {
		case err != nil:
			return err
		case !has:
			return gateway.Conflictf("service %q has no node %q", service.ID, service.DefaultNodeID)
		}
	}
	login, err := json.Marshal(service.Login)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE gateway_service SET name = $2, path_prefix = $3, login_path = nullif($4, ''), logout_path = nullif($5, ''),
		health_path = $6, default_node_id = nullif($7, ''), login_fields = $8, enabled = $9, placement = $10, update_time = $11 WHERE id = $1`,
		service.ID, service.Name, service.PathPrefix, service.LoginPath, service.LogoutPath, service.HealthPath,
		service.DefaultNodeID, string(login), service.Enabled, service.Placement, tx.now.UnixMicro())
	return err
}

func (tx registryTx) refusePrefix(ctx context.Context, service gateway.Service) error {
	var other string
	err := tx.QueryRowContext(ctx, `SELECT id FROM gateway_service WHERE path_prefix = $1 AND id <> $2`, service.PathPrefix, service.ID).Scan(&other)
	switch {
	case err == nil:
		return gateway.Conflictf("path prefix %q belongs to service %q", service.PathPrefix, other)
	case errors.Is(err, sql.ErrNoRows):
		return nil
	}
	return err
}

func (tx registryTx) createNode(ctx context.Context, node gateway.Node) error {
	node = completeNode(node)
	if err := tx.insertNode(ctx, node); err != nil {
		return err
	}
	return tx.record(ctx, gateway.AuditNodeChange(nil, &node))
}

func (tx registryTx) insertNode(ctx context.Context, node gateway.Node) error {
	if exists, err := tx.exists(ctx, `SELECT 1 FROM gateway_service WHERE id = $1`, node.ServiceID); err != nil {
		return err
	} else if !exists {
		return gateway.Conflictf("node %q: there is no service %q", node.ID, node.ServiceID)
	}
	if taken, err := tx.exists(ctx, `SELECT 1 FROM gateway_node WHERE id = $1`, node.ID); err != nil {
		return err
	} else if taken {
		return gateway.Conflictf("there is a node %q already", node.ID)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO gateway_node (id, service_id, name, base_url, traefik_service, enabled, weight, accept_new, remark, create_time, update_time)
		VALUES ($1, $2, $3, $4, nullif($5, ''), $6, $7, $8, nullif($9, ''), $10, $10)`,
		node.ID, node.ServiceID, node.Name, node.BaseURL, node.TraefikService, node.Enabled, node.Weight, !node.Draining, node.Remark, tx.now.UnixMicro())
	return err
}
