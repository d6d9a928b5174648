package guard

import (
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Parts are what the guards ask.
type Parts struct {
	Subjects    Subjects
	Revocations gateway.Revocations
	Nonces      gateway.Nonces
	Limiter     gateway.Limiter
	Roles       RoleLister
}

// Names are those of all guards, and of their master switches.
func Names() []string {
	var names []string
	for _, g := range guards(Parts{}) {
		names = append(names, g.Name())
	}
	return names
}

// guards are all of them.
func guards(p Parts) []Guard {
	return []Guard{
		maintenance{},
		signature{p.Nonces},
		identity{p.Revocations},
		rateLimit{p.Limiter},
		access{p.Roles},
	}
}
