package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// FuzzJWT: whatever is not, letter by letter, one of the tokens that were signed is not good.
func FuzzJWT(f *testing.F) {
	now := newClock(noon)
	keys := []session.JWTKey{
		{ID: "r", PublicKey: publicPEM(rsaKey().Public())}, {ID: "e", PublicKey: publicPEM(p256Key().Public())},
		{PublicKey: publicPEM(edKey().Public())},
	}
	public := newJWT(f, session.JWTConfig{Algorithms: []string{"RS256", "PS256", "ES256", "EdDSA"}, Keys: keys}, now)
	symmetric := newJWT(f, hs256(), now)
	signed := map[string]bool{}
	for _, token := range []string{
		sign(f, "RS256", rsaKey(), object{"kid": "r"}, good()), sign(f, "PS256", rsaKey(), nil, good()),
		sign(f, "ES256", p256Key(), object{"kid": "e"}, good()), sign(f, "EdDSA", edKey(), nil, good()),
		sign(f, "HS256", secret, nil, good()), signRaw(`{"alg":"HS256"}`, `{"sub":7,"exp":1800000060.5,"aud":["a"]}`),
	} {
		signed[token] = true
		f.Add(token)
	}
	f.Add(a1Token)
	f.Add(a2Token)
	f.Add(a3Token)
	f.Add(a5Token)
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		for _, j := range []*session.JWT{public, symmetric} {
			claims, err := j.Verify(t.Context(), token)
			if err == nil {
				require.True(t, signed[token], "%q", token)
				require.Equal(t, "7", claims.UserID)
				continue
			}
			require.ErrorIs(t, err, gateway.ErrNotFound)
			if len(token) > 40 {
				require.NotContains(t, err.Error(), token)
			}
		}
	})
}

// FuzzSignedJWT: whatever an issuer signs is read without harm, and what is accepted
// keeps its promises.
func FuzzSignedJWT(f *testing.F) {
	for _, payload := range []string{
		`{"sub":"7","exp":1800000060}`, `{"sub":9007199254740993,"exp":1800000000.5,"nbf":1.8e9,"iat":0,"ch":"a","src":1}`,
		`{"sub":"\ud800","exp":1e300}`, `{"sub":"a","sub":"b"}`, `null`, `[[[`, `{"exp":-1,"":{}}`,
	} {
		f.Add(`{"alg":"HS256"}`, payload)
		f.Add(`{"typ":"JWT","alg":"HS256","kid":"a"}`, payload)
	}
	f.Add(`{"alg":"HS256","crit":[]}`, `{"sub":"7","exp":1800000060}`)
	cfg := hs256()
	cfg.ChannelClaim, cfg.SourceClaim = "ch", "src"
	j := newJWT(f, cfg, newClock(noon))
	f.Fuzz(func(t *testing.T, header, payload string) {
		claims, err := j.Verify(t.Context(), signRaw(header, payload))
		if err != nil {
			require.ErrorIs(t, err, gateway.ErrNotFound)
			return
		}
		require.NoError(t, gateway.VerifyUserID("user id", claims.UserID))
		require.True(t, claims.ExpiresAt.After(time.Unix(noon, 0)))
		require.False(t, claims.IssuedAt.After(time.Unix(noon, 0)))
		require.NotContains(t, claims.Channel+claims.Source, "\n")
	})
}

// FuzzJWTKey: whatever is given as a public key is read or refused, and never quoted.
func FuzzJWTKey(f *testing.F) {
	for _, key := range []string{a2Key, a3Key, a4Key, rfc8037Key, publicPEM(rsaKey().Public()), publicPEM(p256Key().Public()), certificate(f, edKey()), `{"kty":"oct","k":"AA"}`} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		cfg := session.JWTConfig{Algorithms: []string{"RS256", "ES256", "ES512", "EdDSA"}, Keys: []session.JWTKey{{PublicKey: key}}}
		if err := cfg.Verify(); err != nil && key != "" {
			require.True(t, strings.HasPrefix(err.Error(), "keys[0].publicKey: "), err)
			require.NotContains(t, err.Error(), "\n")
		}
	})
}
