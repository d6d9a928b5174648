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
