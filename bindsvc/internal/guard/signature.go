package guard

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// signature wants requests of partners to be signed by an app (seed 004): parameters
// sorted by key, their values concatenated, the secret appended, SHA-256 in hex.
//
// The algorithm is the seed's, and cannot tell a=12&b=3 from a=1&b=23.
type signature struct{ nonces gateway.Nonces }

func (signature) Name() string              { return policy.GuardSignature }
func (signature) Cost() Cost                { return CostComputation }
func (signature) Failure(*Question) Failure { return Closed }

// Check implements Guard. What is in shadow mode neither refuses, be it because the
// nonces cannot be asked, nor takes the place of what does.
func (g signature) Check(ctx context.Context, q *Question) error {
	inForce, onTrial := q.interfaces().Signature(q.Service.ID, q.Method)
	if inForce != nil {
		app, refusal, err := g.verify(ctx, q, inForce, true)
		switch {
		case err != nil:
			return err
		case refusal != nil:
			if err := q.refuse(g.Name(), inForce.ID, false, refusal); err != nil {
				return err
			}
		}
		q.App = app
	}
	if onTrial == nil {
		return nil
	}
	app, refusal, err := g.verify(ctx, q, onTrial, inForce == nil) // a nonce is good once, for whichever rule
	if refusal != nil {
		_ = q.refuse(g.Name(), onTrial.ID, true, refusal)
	}
	if err == nil && refusal == nil && inForce == nil {
		q.App = app
	}
	return nil
}

// verify returns the app that has signed the request as the rule wants, or the refusal.
func (g signature) verify(ctx context.Context, q *Question, rule *policy.SignatureRule, useNonce bool) (app string, refusal *gateway.Error, err error) {
	refuse := func(reason gateway.Reason, format string, args ...any) *gateway.Error {
		return &gateway.Error{Reason: reason, Cause: fmt.Errorf("by policy %s: %w", rule.ID, fmt.Errorf(format, args...))}
	}
	parameters, err := parametersOf(q.Request)
	if err != nil {
		return "", refuse(gateway.SignatureUnreadable, "%w", err), nil
	}
	var named [4]string
	for i, name := range []string{rule.ClientID, rule.Timestamp, rule.Sign, rule.NonceKey} {
		value, times := parameters.get(name)
		switch {
		case times > 1:
			return "", refuse(gateway.SignatureUnreadable, "parameter %s is there %d times", name, times), nil
		case value == "" && (i < 3 || rule.Nonce):
			return "", refuse(gateway.SignatureMissing, "no parameter %s", name), nil
		}
		named[i] = value
	}
	clientID, timestamp, sign, nonce := named[0], named[1], named[2], named[3]

	known := q.Policies.App(q.Service.ID, clientID)
	if known == nil || len(rule.Apps) > 0 && !slices.Contains(rule.Apps, clientID) {
		return "", refuse(gateway.SignatureUnknownApp, "no such app for this interface"), nil
	}
	signedAt, err := parseTimestamp(timestamp)
	if err != nil {
		return "", refuse(gateway.SignatureUnreadable, "parameter %s: %w", rule.Timestamp, err), nil
	}
	if age := q.Now.Sub(signedAt); age.Abs() > rule.TTL {
		return "", refuse(gateway.SignatureExpired, "the timestamp is %s away", age.Abs().Round(time.Second)), nil
	}
	if !parameters.isSignedWith(known.GoodSecrets(q.Now), rule.Sign, sign) {
		return "", refuse(gateway.SignatureInvalid, "the signature is another"), nil
	}
	if !rule.Nonce || !useNonce || gateway.TraceOf(ctx) != nil {
		return clientID, nil, nil
	}
	if len(nonce) > maxNonce {
		return "", refuse(gateway.SignatureUnreadable, "parameter %s is longer than %d bytes", rule.NonceKey, maxNonce), nil
	}
	// A timestamp may be as far in the future as in the past.
	first, err := g.nonces.UseNonce(ctx, clientID, nonce, 2*rule.TTL)
	if err != nil {
		return "", nil, fmt.Errorf("nonces: %w", err)
	}
	if !first {
		return "", refuse(gateway.SignatureReplayed, "the nonce was used before"), nil
	}
	return clientID, nil, nil
}

const (
	maxParameters = 1000
	maxNonce      = 128
)

// parameter is one of a query or a form, in the order of the request.
type parameter struct{ key, value string }

type parameters []parameter

var (
	errNotTold  = errors.New("the caller does not tell the form body")
	errTooLong  = errors.New("the form body is too long")
	errEncoded  = errors.New("the form body cannot be read")
	errTooMany  = fmt.Errorf("more than %d parameters", maxParameters)
	errNoNumber = errors.New("want the seconds or milliseconds since 1970")
)

// parametersOf reads the parameters of the query, then those of the form body.
func parametersOf(req gateway.Request) (parameters, error) {
	switch req.Form.State {
	case gateway.FormTooLarge:
		return nil, errTooLong
	case gateway.FormUnreadable:
		return nil, errEncoded
	case gateway.FormNotTold:
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			return nil, errNotTold
		}
	case gateway.FormNone, gateway.FormGiven:
	}
	// Traefik makes & of every ; in a query before it forwards.
	all, err := parseParameters(nil, strings.ReplaceAll(req.Query, ";", "&"))
	if err != nil {
		return nil, err
	}
	return parseParameters(all, req.Form.Body)
}

// parseParameters appends what application/x-www-form-urlencoded text has. What cannot
// be decoded is refused: a node may read it in its own way.
func parseParameters(to parameters, encoded string) (parameters, error) {
	for encoded != "" {
		var pair string
		pair, encoded, _ = strings.Cut(encoded, "&")
		if pair == "" {
			continue
		}
		if len(to) == maxParameters {
			return nil, errTooMany
		}
		key, value, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key)
		if err != nil {
			return nil, errEscape
		}
		if value, err = url.QueryUnescape(value); err != nil {
			return nil, errEscape
		}
		to = append(to, parameter{key, value})
	}
	return to, nil
}

var errEscape = errors.New("a parameter is not percent-encoded as it should be")

func (p parameters) get(name string) (value string, times int) {
	for _, one := range p {
		if one.key == name {
			if times++; times == 1 {
				value = one.value
			}
		}
	}
	return value, times
}

// isSignedWith reports whether sign is the signature of the other parameters with one
// of the secrets. Repeated keys keep the order of the request, as Java's sort does.
func (p parameters) isSignedWith(secrets []string, signKey, sign string) bool {
	sorted := slices.Clone(p)
	slices.SortStableFunc(sorted, func(a, b parameter) int { return compareUTF16(a.key, b.key) })
	var values strings.Builder
	for _, one := range sorted {
		if one.key != signKey {
			values.WriteString(one.value)
		}
	}
	given := []byte(strings.ToLower(sign))
	isGood := 0
	for _, secret := range secrets {
		sum := sha256.Sum256([]byte(values.String() + secret))
		isGood |= subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), given)
	}
	return isGood == 1
}

// compareUTF16 is the order of Java's String.compareTo, by UTF-16 code units. For all
// but characters beyond the first plane it is that of the bytes.
func compareUTF16(a, b string) int {
	isPlain := func(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return r > 0xD7FF }) < 0 }
	if isPlain(a) && isPlain(b) {
		return strings.Compare(a, b)
	}
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

// parseTimestamp reads milliseconds or, of up to eleven digits, seconds.
func parseTimestamp(text string) (time.Time, error) {
	number, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil, number < 0, number > 1e15:
		return time.Time{}, errNoNumber
	case number < 1e11:
		return time.Unix(number, 0), nil
	}
	return time.UnixMilli(number), nil
}
