package httpapi

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/maypok86/otter/v2"
	"golang.org/x/time/rate"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// documentPath needs no token: it says nothing that the project's own source does not.
const documentPath = api.Prefix + "/openapi.json"

// administrator lets an administrator in: from an allowed address, with the bootstrap
// token or that of a user who is one. Every change that follows is theirs.
func (s *Server) administrator(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		request := c.Request()
		address := clientAddress(request, s.opts.TrustedProxies)
		if len(s.opts.AdminWhitelist) > 0 && !containsAddress(s.opts.AdminWhitelist, address) {
			s.log.WarnContext(request.Context(), "administrator's call from an address outside the whitelist", "address", address, "request", requestID(c))
			return &gateway.Error{Reason: gateway.Forbidden, Detail: "address"}
		}
		if c.Path() == documentPath {
			return next(c)
		}
		token := adminTokenOf(request)
		actor := gateway.Actor{Address: textOfAddress(address), RequestID: requestID(c)}
		enter := func(name string) error {
			actor.Name = name
			c.SetRequest(request.WithContext(gateway.WithActor(request.Context(), actor)))
			return next(c)
		}
		// The bootstrap token is told from others in no time and cannot be guessed: whoever
		// has it is not kept waiting by those who share an address and guess all the same.
		if s.opts.AdminToken != "" && matches(token, s.admin) {
			return enter(gateway.ActorAdminToken)
		}
		who := attemptsKey(request, address, s.opts.TrustedProxies)
		if wait := s.attempts.wait(who); wait > 0 {
			s.log.WarnContext(request.Context(), "administrator's call refused, after too many wrong tokens", "address", address, "request", requestID(c))
			return &gateway.Error{Reason: gateway.RateLimited, RetryAfter: wait}
		}
		name, err := s.authorise(c, token, actor)
		if err != nil {
			var refusal *gateway.Error
			if errors.As(err, &refusal) && refusal.Reason != gateway.StoreUnavailable {
				s.attempts.failed(who)
				s.log.WarnContext(request.Context(), "administrator's call refused", "reason", refusal.Reason, "address", address, "request", requestID(c))
			}
			return err
		}
		return enter(name)
	}
}

func adminTokenOf(r *http.Request) string {
	if token := r.Header.Get("x-token"); token != "" {
		return token
	}
	return bearer(r.Header.Get("Authorization"))
}

func textOfAddress(address netip.Addr) string {
	if !address.IsValid() { // a unix socket
		return ""
	}
	return address.String()
}

// authorise returns the name of the administrator of the user table whose token it is.
func (s *Server) authorise(c echo.Context, token string, actor gateway.Actor) (string, error) {
	request := c.Request()
	if s.users == nil || token == "" {
		return "", &gateway.Error{Reason: gateway.Unauthenticated}
	}
	ctx := request.Context()
	userID, err := s.sessions.UserByLiveToken(ctx, token)
	switch {
	case errors.Is(err, gateway.ErrNotFound):
		return "", &gateway.Error{Reason: gateway.Unauthenticated}
	case err != nil:
		return "", gateway.Unavailable(err)
	}
	user, err := s.users.UserByID(ctx, userID)
	if err != nil && !errors.Is(err, gateway.ErrNotFound) {
		return "", gateway.Unavailable(err)
	}
	name := "user:" + userID
	if err == nil && user.IsAdmin && user.Active {
		return name, nil
	}
	if request.Method != http.MethodGet {
		actor.Name = name
		denied := gateway.AuditEntry{Action: gateway.ActionDenied, UserID: userID, Username: user.Username}
		if err := s.store.Record(gateway.WithActor(ctx, actor), denied); err != nil {
			s.log.WarnContext(ctx, "refusal not audited", "actor", name, "error", err)
		}
	}
	return "", &gateway.Error{Reason: gateway.Forbidden}
}

// clientAddress is the peer's address, or, as long as the hop it came from is a
// trusted proxy, the one before it in X-Forwarded-For. What is no address there is
// the zero one, which is in no list.
func clientAddress(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // a unix socket: no address is in any list
	}
	address := peer.Addr().Unmap().WithZone("")
	forwarded := r.Header.Values("X-Forwarded-For")
	if len(forwarded) == 0 || !containsAddress(trusted, address) {
		return address
	}
	return forwardedAddress(forwarded, trusted)
}

// forwardedAddress is the client's address in an X-Forwarded-For that can be believed:
// the last hop that is no trusted proxy, or the first one.
func forwardedAddress(forwarded []string, trusted []netip.Prefix) (address netip.Addr) {
	for _, hop := range slices.Backward(strings.Split(strings.Join(forwarded, ","), ",")) {
		if address = hopAddress(strings.TrimSpace(hop)); !containsAddress(trusted, address) {
			break
		}
	}
	return address
}

// hopAddress reads an address, also with a port as some proxies append it.
func hopAddress(hop string) netip.Addr {
	address, err := netip.ParseAddr(strings.Trim(hop, "[]"))
	if err != nil {
		withPort, err := netip.ParseAddrPort(hop)
		if err != nil {
			return netip.Addr{}
		}
		address = withPort.Addr()
	}
	return address.Unmap().WithZone("")
}

func containsAddress(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}

// attemptsKey is whom wrong tokens are counted for: an IPv4 address, an IPv6 network
// (one client has all of a /64). What an untrusted proxy passes on is counted apart
// from its machine's own calls, so that nobody can lock an operator out through Traefik.
func attemptsKey(r *http.Request, address netip.Addr, trusted []netip.Prefix) string {
	key := gateway.Subnet(address)
	if r.Header.Get("X-Forwarded-For") != "" && !containsAddress(trusted, address) {
		if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && peer.Addr().Unmap().WithZone("") == address {
			key += " (proxy)"
		}
	}
	return key
}

// How many wrong tokens an address may send: ten at once, then one every six seconds.
const (
	wrongTokens      = 10
	wrongTokenEvery  = 6 * time.Second
	addressesCounted = 10_000
)

// attempts counts refused tokens by address, for the addresses seen last.
type attempts struct {
	byAddress *otter.Cache[string, *rate.Limiter]
}

func newAttempts() *attempts {
	return &attempts{otter.Must(&otter.Options[string, *rate.Limiter]{MaximumSize: addressesCounted})}
}

// wait is how long the address has to wait before a token of it is looked at again;
// zero if not at all. A right one has to wait too: else an answer would tell it from a wrong one.
func (a *attempts) wait(address string) time.Duration {
	limiter, ok := a.byAddress.GetIfPresent(address)
	if !ok || limiter.Tokens() >= 1 {
		return 0
	}
	return time.Duration((1 - limiter.Tokens()) * float64(wrongTokenEvery))
}

func (a *attempts) failed(address string) {
	limiter, _ := a.byAddress.ComputeIfAbsent(address, func() (*rate.Limiter, bool) {
		return rate.NewLimiter(rate.Every(wrongTokenEvery), wrongTokens), false
	})
	limiter.Allow()
}
