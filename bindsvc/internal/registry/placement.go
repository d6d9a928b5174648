package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// placer chooses among nodes by the service's placement. It is safe for concurrent use.
type placer struct {
	mu     sync.Mutex
	turns  map[string]uint64 // by service id
	credit map[string]int    // by node id, of the smooth weighted round robin
	bound  map[string]int64  // by node id: bindings when they were counted last, and users placed since
}

func newPlacer() *placer {
	return &placer{turns: map[string]uint64{}, credit: map[string]int{}, bound: map[string]int64{}}
}

// counted replaces what is known of the bindings of every node.
func (p *placer) counted(bound map[string]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound = maps.Clone(bound)
	if p.bound == nil {
		p.bound = map[string]int64{}
	}
}

// choice is what a placement comes to: the node, and why it is the one.
type choice struct {
	node gateway.Node
	why  string
	take func() // makes it the next one's past
}

// choose returns the next choice among candidates, of which there is at least one.
// The choice changes nothing until it is taken, with p.mu held all the while.
func (p *placer) choose(serviceID string, placement gateway.Placement, candidates []gateway.Node) choice {
	switch placement {
	case gateway.Weighted:
		return p.weighted(candidates)
	case gateway.FewestBindings:
		return p.fewest(serviceID, candidates)
	case gateway.RoundRobin:
	}
	return p.next(serviceID, candidates)
}

func (p *placer) next(serviceID string, candidates []gateway.Node) choice {
	turn := p.turns[serviceID]
	return choice{
		node: candidates[turn%uint64(len(candidates))],
		why:  fmt.Sprintf("next of %d in turn", len(candidates)),
		take: func() { p.turns[serviceID] = turn + 1 },
	}
}

// weighted is nginx's smooth weighted round robin: every node earns its weight,
// the richest is chosen and pays for all. Shares are exact, bursts are short.
func (p *placer) weighted(candidates []gateway.Node) choice {
	total := 0
	for _, node := range candidates {
		total += node.Share()
	}
	// While weights stay as they are no credit leaves these bounds; what is left of
	// larger weights must not starve a node now.
	credit := func(node gateway.Node) int { return min(max(p.credit[node.ID], -total), total) + node.Share() }
	chosen := candidates[0]
	for _, node := range candidates[1:] {
		if credit(node) > credit(chosen) {
			chosen = node
		}
	}
	return choice{
		node: chosen,
		why:  fmt.Sprintf("next of %d in turn, weight %d of %d", len(candidates), chosen.Share(), total),
		take: func() {
			for _, node := range candidates {
				p.credit[node.ID] = credit(node)
			}
			p.credit[chosen.ID] -= total
		},
	}
}

// fewest counts the users it places, since the next count of the bindings may be
// seconds away. Of equals the next in turn is chosen.
func (p *placer) fewest(serviceID string, candidates []gateway.Node) choice {
	start := p.turns[serviceID] % uint64(len(candidates))
	best := candidates[start]
	for _, node := range slices.Concat(candidates[start:], candidates[:start]) {
		if p.bound[node.ID] < p.bound[best.ID] {
			best = node
		}
	}
	return choice{
		node: best,
		why:  fmt.Sprintf("fewest bindings of %d nodes: %d", len(candidates), p.bound[best.ID]),
		take: func() {
			p.turns[serviceID]++
			p.bound[best.ID]++
		},
	}
}

// PlaceUser chooses a node for a user who has none, by the service's placement, over
// the nodes that are enabled, UP, known to Traefik and take new users.
func (r *Registry) PlaceUser(ctx context.Context, serviceID string) (string, error) {
	service, _ := r.Snapshot().Service(serviceID)
	return r.place(ctx, r.users, service, service.Placement, takingNew(r.serving(serviceID)))
}

// PlaceAnonymous chooses a node for a request without a user, which binds nobody: in
// turn, by weight where the service is weighted, over the same nodes; over all that
// serve if none takes new users, so that those who have a node can log in.
func (r *Registry) PlaceAnonymous(ctx context.Context, serviceID string) (string, error) {
	service, _ := r.Snapshot().Service(serviceID)
	placement := service.Placement
	if placement == gateway.FewestBindings {
		placement = gateway.RoundRobin
	}
	serving := r.serving(serviceID)
	if open := takingNew(slices.Clone(serving)); len(open) > 0 {
		serving = open
	}
	return r.place(ctx, r.anonymous, service, placement, serving)
}

func takingNew(nodes []gateway.Node) []gateway.Node {
	return slices.DeleteFunc(nodes, func(n gateway.Node) bool { return n.Draining })
}

func (r *Registry) place(ctx context.Context, p *placer, service gateway.Service, placement gateway.Placement, candidates []gateway.Node) (string, error) {
	trace := gateway.TraceOf(ctx)
	step := trace.Begin("placement", "registry")
	if len(candidates) == 0 {
		step.End(gateway.Refused, "no node is enabled, UP, known to Traefik and taking new users")
		return "", &gateway.Error{Reason: gateway.NoHealthyNode, RetryAfter: r.opts.Health.Interval}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	chosen := p.choose(service.ID, placement, candidates)
	if trace == nil {
		chosen.take()
	}
	step.End(gateway.Chosen, chosen.node.ID+": "+chosen.why)
	return chosen.node.ID, nil
}

// serving returns the nodes that are enabled, UP and known to Traefik.
func (r *Registry) serving(serviceID string) []gateway.Node {
	nodes := r.Snapshot().NodesOf(serviceID)
	now := r.now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	serving := make([]gateway.Node, 0, len(nodes))
	for _, node := range nodes {
		p := r.probers[node.ID]
		if node.Enabled && p != nil && p.health.Load().State == Up && !now.Before(r.published[node.ID]) {
			serving = append(serving, node)
		}
	}
	return serving
}
