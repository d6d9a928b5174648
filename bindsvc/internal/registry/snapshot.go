package registry

import (
	"cmp"
	"slices"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Snapshot is the registry at one moment. It never changes.
type Snapshot struct {
	Services []gateway.Service // usable ones, longest path prefix first
	nodes    map[string]gateway.Node
	byID     map[string]*gateway.Service
	ofSvc    map[string][]gateway.Node // by service id, ordered by node id
}

// NewSnapshot makes a snapshot of what passes Verify.
func NewSnapshot(services []gateway.Service, nodes []gateway.Node) *Snapshot {
	snapshot, _ := newSnapshot(services, nodes)
	return snapshot
}

// newSnapshot indexes services and nodes. What does not pass Verify is left out
// and reported: a row made by hand must not take the others down.
func newSnapshot(services []gateway.Service, nodes []gateway.Node) (*Snapshot, []error) {
	s := &Snapshot{nodes: map[string]gateway.Node{}, byID: map[string]*gateway.Service{}, ofSvc: map[string][]gateway.Node{}}
	var problems []error
	prefixes := map[string]string{}
	for _, service := range services {
		service.Login = service.Login.WithDefaults()
		if err := service.Verify(); err != nil {
			problems = append(problems, &gateway.Error{Reason: gateway.Validation, Detail: "service " + service.ID + " left out", Cause: err})
			continue
		}
		if other, taken := prefixes[service.PathPrefix]; taken {
			problems = append(problems, &gateway.Error{Reason: gateway.Validation, Detail: "service " + service.ID + " left out: it has the path prefix of " + other})
			continue
		}
		prefixes[service.PathPrefix] = service.ID
		s.Services = append(s.Services, service)
	}
	slices.SortFunc(s.Services, func(a, b gateway.Service) int {
		return cmp.Or(cmp.Compare(len(b.PathPrefix), len(a.PathPrefix)), cmp.Compare(a.PathPrefix, b.PathPrefix))
	})
	for i := range s.Services {
		s.byID[s.Services[i].ID] = &s.Services[i]
	}
	for _, node := range nodes {
		if err := node.Verify(); err != nil {
			problems = append(problems, &gateway.Error{Reason: gateway.Validation, Detail: "node " + node.ID + " left out", Cause: err})
			continue
		}
		s.nodes[node.ID] = node
		s.ofSvc[node.ServiceID] = append(s.ofSvc[node.ServiceID], node)
	}
	for _, ofService := range s.ofSvc {
		slices.SortFunc(ofService, func(a, b gateway.Node) int { return cmp.Compare(a.ID, b.ID) })
	}
	return s, problems
}

// Service returns the service of that id.
func (s *Snapshot) Service(id string) (gateway.Service, bool) {
	service, ok := s.byID[id]
	if !ok {
		return gateway.Service{}, false
	}
	return *service, true
}

// ServiceAt returns the service that covers path, enabled or not; of nested prefixes the longest wins.
func (s *Snapshot) ServiceAt(path string) (gateway.Service, bool) {
	for _, service := range s.Services {
		if service.Covers(path) {
			return service, true
		}
	}
	return gateway.Service{}, false
}

// Node returns the node of that id.
func (s *Snapshot) Node(id string) (gateway.Node, bool) {
	node, ok := s.nodes[id]
	return node, ok
}

// NodesOf returns the nodes of a service, ordered by id.
func (s *Snapshot) NodesOf(serviceID string) []gateway.Node { return s.ofSvc[serviceID] }

// Health is what the probes say of a node.
type Health struct {
	State     State
	Since     time.Time // of State; zero before the first probe
	Failures  int       // consecutive
	Successes int       // consecutive
	CheckedAt time.Time // of the last probe
	LastError string    // of the last probe; empty if it succeeded
}

// State of a node.
type State string

// The states of a node. Unknown, before the first probe, is treated like Down.
const (
	Unknown State = "UNKNOWN"
	Up      State = "UP"
	Down    State = "DOWN"
)
