package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

const (
	serviceColumns = `id, coalesce(name, id), path_prefix, coalesce(login_path, ''), coalesce(logout_path, ''),
		coalesce(health_path, '/actuator/health'), coalesce(default_node_id, ''), coalesce(login_fields, '{}'), enabled, create_time, update_time`
	nodeColumns = `id, service_id, coalesce(name, id), base_url, coalesce(traefik_service, ''), enabled, coalesce(remark, ''), create_time, update_time`
)

func scanService(row scanner) (gateway.Service, error) {
	var s gateway.Service
	var login string
	var created, updated int64
	err := row.Scan(&s.ID, &s.Name, &s.PathPrefix, &s.LoginPath, &s.LogoutPath, &s.HealthPath, &s.DefaultNodeID, &login, &s.Enabled, &created, &updated)
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
	err := row.Scan(&n.ID, &n.ServiceID, &n.Name, &n.BaseURL, &n.TraefikService, &n.Enabled, &n.Remark, &created, &updated)
	n.CreatedAt, n.UpdatedAt = time.UnixMicro(created).UTC(), time.UnixMicro(updated).UTC()
	return n, notFound(err)
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
			withoutDefault := service
			withoutDefault.DefaultNodeID = ""
			if err := tx.insertService(ctx, withoutDefault); err != nil {
				return err
			}
		}
		for _, node := range nodes {
			if err := tx.insertNode(ctx, node); err != nil {
				return err
			}
		}
		for _, service := range services {
			if err := tx.updateService(ctx, service); err != nil { // its default node exists now
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

var errFilled = errors.New("there are services already")

// CreateService implements gateway.RegistryStore.
func (s *Store) CreateService(ctx context.Context, service gateway.Service) error {
	if service.DefaultNodeID != "" {
		return gateway.Conflictf("the new service %q has no node %q yet", service.ID, service.DefaultNodeID)
	}
	return s.change(ctx, func(tx registryTx) error { return tx.insertService(ctx, service) })
}

// CreateNode implements gateway.RegistryStore.
func (s *Store) CreateNode(ctx context.Context, node gateway.Node) error {
	return s.change(ctx, func(tx registryTx) error { return tx.insertNode(ctx, node) })
}

// UpdateService implements gateway.RegistryStore.
func (s *Store) UpdateService(ctx context.Context, id string, change func(*gateway.Service) error) (service gateway.Service, err error) {
	err = s.change(ctx, func(tx registryTx) (err error) {
		if service, err = scanService(tx.QueryRowContext(ctx, `SELECT `+serviceColumns+` FROM gateway_service WHERE id = $1`, id)); err != nil {
			return err
		}
		created := service.CreatedAt
		if err := change(&service); err != nil {
			return err
		}
		service.ID, service.CreatedAt, service.UpdatedAt = id, created, tx.now
		service.Login = service.Login.WithDefaults()
		return tx.updateService(ctx, service)
	})
	if err != nil {
		return gateway.Service{}, err
	}
	return service, nil
}

// UpdateNode implements gateway.RegistryStore.
func (s *Store) UpdateNode(ctx context.Context, id string, change func(*gateway.Node) error) (node gateway.Node, err error) {
	err = s.change(ctx, func(tx registryTx) (err error) {
		if node, err = scanNode(tx.QueryRowContext(ctx, `SELECT `+nodeColumns+` FROM gateway_node WHERE id = $1`, id)); err != nil {
			return err
		}
		serviceID, created := node.ServiceID, node.CreatedAt
		if err := change(&node); err != nil {
			return err
		}
		node.ID, node.ServiceID, node.CreatedAt, node.UpdatedAt = id, serviceID, created, tx.now
		_, err = tx.ExecContext(ctx, `UPDATE gateway_node SET name = $2, base_url = $3, traefik_service = nullif($4, ''), enabled = $5,
			remark = nullif($6, ''), update_time = $7 WHERE id = $1`,
			node.ID, node.Name, node.BaseURL, node.TraefikService, node.Enabled, node.Remark, tx.now.UnixMicro())
		return err
	})
	if err != nil {
		return gateway.Node{}, err
	}
	return node, nil
}

// DeleteService implements gateway.RegistryStore.
func (s *Store) DeleteService(ctx context.Context, id string) error {
	return s.change(ctx, func(tx registryTx) error {
		if exists, err := tx.exists(ctx, `SELECT 1 FROM gateway_service WHERE id = $1`, id); err != nil {
			return err
		} else if !exists {
			return gateway.ErrNotFound
		}
		var nodes, bindings int64
		err := tx.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM gateway_node WHERE service_id = $1),
			(SELECT count(*) FROM gateway_user_route WHERE service_id = $1)`, id).Scan(&nodes, &bindings)
		if err != nil {
			return err
		}
		if nodes+bindings > 0 {
			return gateway.Conflictf("service %q has %d nodes and %d bindings", id, nodes, bindings)
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM gateway_service WHERE id = $1`, id)
		return err
	})
}

// DeleteNode implements gateway.RegistryStore.
func (s *Store) DeleteNode(ctx context.Context, id string) error {
	return s.change(ctx, func(tx registryTx) error {
		var isDefault bool
		var bindings int64
		err := tx.QueryRowContext(ctx, `SELECT coalesce(s.default_node_id = n.id, false), (SELECT count(*) FROM gateway_user_route WHERE node_id = n.id)
			FROM gateway_node n JOIN gateway_service s ON s.id = n.service_id WHERE n.id = $1`, id).Scan(&isDefault, &bindings)
		switch {
		case err != nil:
			return notFound(err)
		case isDefault:
			return gateway.Conflictf("node %q is its service's default node", id)
		case bindings > 0:
			return gateway.Conflictf("node %q has %d bindings", id, bindings)
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM gateway_node WHERE id = $1`, id)
		return err
	})
}

// registryTx writes services and nodes in the write transaction.
type registryTx struct {
	*sql.Tx
	now time.Time
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
	login, err := json.Marshal(service.Login.WithDefaults())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO gateway_service
			(id, name, path_prefix, login_path, logout_path, health_path, default_node_id, login_fields, enabled, create_time, update_time)
		VALUES ($1, $2, $3, nullif($4, ''), nullif($5, ''), $6, nullif($7, ''), $8, $9, $10, $10)`,
		service.ID, service.Name, service.PathPrefix, service.LoginPath, service.LogoutPath, service.HealthPath,
		service.DefaultNodeID, string(login), service.Enabled, tx.now.UnixMicro())
	return err
}

func (tx registryTx) updateService(ctx context.Context, service gateway.Service) error {
	if err := tx.refusePrefix(ctx, service); err != nil {
		return err
	}
	if service.DefaultNodeID != "" {
		switch has, err := (routes{tx.Tx}).HasNode(ctx, service.ID, service.DefaultNodeID); {
		case err != nil:
			return err
		case !has:
			return gateway.Conflictf("service %q has no node %q", service.ID, service.DefaultNodeID)
		}
	}
	login, err := json.Marshal(service.Login.WithDefaults())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE gateway_service SET name = $2, path_prefix = $3, login_path = nullif($4, ''), logout_path = nullif($5, ''),
		health_path = $6, default_node_id = nullif($7, ''), login_fields = $8, enabled = $9, update_time = $10 WHERE id = $1`,
		service.ID, service.Name, service.PathPrefix, service.LoginPath, service.LogoutPath, service.HealthPath,
		service.DefaultNodeID, string(login), service.Enabled, tx.now.UnixMicro())
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
	_, err := tx.ExecContext(ctx, `INSERT INTO gateway_node (id, service_id, name, base_url, traefik_service, enabled, remark, create_time, update_time)
		VALUES ($1, $2, $3, $4, nullif($5, ''), $6, nullif($7, ''), $8, $8)`,
		node.ID, node.ServiceID, node.Name, node.BaseURL, node.TraefikService, node.Enabled, node.Remark, tx.now.UnixMicro())
	return err
}
