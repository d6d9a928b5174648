package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"time"
)

// Reason is why a request was refused: the client's data.reason and X-Gateway-Reason.
type Reason string

// The reasons of the spec, sections 3 and 8.
const (
	NodeDown                  Reason = "NODE_DOWN"
	NodeDisabled              Reason = "NODE_DISABLED"
	NodeUnknown               Reason = "NODE_UNKNOWN"
	NoBinding                 Reason = "NO_BINDING"
	NoHealthyNode             Reason = "NO_HEALTHY_NODE"
	StoreUnavailable          Reason = "STORE_UNAVAILABLE"
	BindingServiceUnavailable Reason = "BINDING_SERVICE_UNAVAILABLE"
	NodeUnreachable           Reason = "NODE_UNREACHABLE"
	NodeTimeout               Reason = "NODE_TIMEOUT"
	Degraded                  Reason = "DEGRADED"
	NoRoute                   Reason = "NO_ROUTE"
	Internal                  Reason = "INTERNAL"

	Validation         Reason = "VALIDATION"
	Unauthenticated    Reason = "UNAUTHENTICATED"
	Forbidden          Reason = "FORBIDDEN"
	NotFound           Reason = "NOT_FOUND"
	Conflict           Reason = "CONFLICT"
	PreconditionFailed Reason = "PRECONDITION_FAILED"
	TooLarge           Reason = "TOO_LARGE"
	RateLimited        Reason = "RATE_LIMITED"

	// Of the guards (spec section 5), beside UNAUTHENTICATED, FORBIDDEN, NOT_FOUND and RATE_LIMITED.
	InMaintenance       Reason = "MAINTENANCE"
	SignatureMissing    Reason = "SIGNATURE_MISSING"     // or one of its parameters
	SignatureUnknownApp Reason = "SIGNATURE_UNKNOWN_APP" // no such client-id, or not for this interface
	SignatureExpired    Reason = "SIGNATURE_EXPIRED"     // the timestamp is too far away
	SignatureInvalid    Reason = "SIGNATURE_INVALID"
	SignatureReplayed   Reason = "SIGNATURE_REPLAYED"   // the nonce was used before
	SignatureUnreadable Reason = "SIGNATURE_UNREADABLE" // parameters that cannot be read, or are too long
	MethodNotAllowed    Reason = "METHOD_NOT_ALLOWED"
	PolicyInvalid       Reason = "POLICY_INVALID" // a policy that guards this cannot be read
	NeedsMore           Reason = "NEEDS_MORE"     // the caller has to tell more of the request
)

// GuardReasons are those that guards refuse with: each may have a business code.
var GuardReasons = []Reason{
	InMaintenance, Unauthenticated, SignatureMissing, SignatureUnknownApp, SignatureExpired, SignatureInvalid, SignatureReplayed,
	SignatureUnreadable, RateLimited, Forbidden, NotFound, MethodNotAllowed, PolicyInvalid,
}

var statuses = map[Reason]int{
	NodeDown: http.StatusServiceUnavailable, NodeDisabled: http.StatusServiceUnavailable, NodeUnknown: http.StatusServiceUnavailable,
	NoBinding: http.StatusServiceUnavailable, NoHealthyNode: http.StatusServiceUnavailable,
	StoreUnavailable: http.StatusServiceUnavailable, BindingServiceUnavailable: http.StatusServiceUnavailable,
	NodeUnreachable: http.StatusBadGateway, NodeTimeout: http.StatusGatewayTimeout, Degraded: http.StatusServiceUnavailable,
	NoRoute: http.StatusNotFound, Internal: http.StatusInternalServerError,
	Validation: http.StatusBadRequest, Unauthenticated: http.StatusUnauthorized, Forbidden: http.StatusForbidden,
	NotFound: http.StatusNotFound, Conflict: http.StatusConflict, PreconditionFailed: http.StatusPreconditionFailed,
	TooLarge: http.StatusRequestEntityTooLarge, RateLimited: http.StatusTooManyRequests,
	InMaintenance: http.StatusServiceUnavailable, SignatureMissing: http.StatusUnauthorized, SignatureUnknownApp: http.StatusUnauthorized,
	SignatureExpired: http.StatusUnauthorized, SignatureInvalid: http.StatusUnauthorized, SignatureReplayed: http.StatusUnauthorized,
	SignatureUnreadable: http.StatusBadRequest, MethodNotAllowed: http.StatusMethodNotAllowed, PolicyInvalid: http.StatusServiceUnavailable,
	NeedsMore: http.StatusPreconditionRequired,
}

// Status is the HTTP status that goes with the reason.
func (r Reason) Status() int {
	if status, ok := statuses[r]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// Error is a refusal. The client sees Reason and Detail; Cause is for the log.
type Error struct {
	Reason     Reason
	Detail     string        // more than the reason's own text, safe to show; may be empty
	RetryAfter time.Duration // zero = a retry cannot help
	Cause      error

	// Of a guard's refusal.
	Guard       string           // its name; empty: no guard refuses
	Text        Text             // instead of the reason's own text, where it is not empty
	Allow       []string         // of METHOD_NOT_ALLOWED
	Maintenance *MaintenanceInfo // of MAINTENANCE
	Need        []string         // of NEEDS_MORE
}

// Text is a message in the languages that clients read.
type Text struct {
	ZH string `json:"zh,omitempty"`
	EN string `json:"en,omitempty"`
}

// Or fills what is missing, from the other language at last.
func (t Text) Or(otherwise Text) Text {
	return Text{
		ZH: cmp.Or(t.ZH, t.EN, otherwise.ZH),
		EN: cmp.Or(t.EN, t.ZH, otherwise.EN),
	}
}

// MaintenanceInfo is what clients make a maintenance page of.
type MaintenanceInfo struct {
	Start *time.Time `json:"start,omitempty"`
	End   *time.Time `json:"end,omitempty"` // expected
}

func (e *Error) Error() string {
	text := string(e.Reason)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Cause != nil {
		text += fmt.Sprintf(" (%v)", e.Cause)
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }

// Unavailable is the refusal of a store that could not be asked.
func Unavailable(cause error) *Error {
	return &Error{Reason: StoreUnavailable, RetryAfter: time.Second, Cause: cause}
}
