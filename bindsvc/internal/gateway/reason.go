package gateway

import (
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
)

var statuses = map[Reason]int{
	NodeDown: http.StatusServiceUnavailable, NodeDisabled: http.StatusServiceUnavailable, NodeUnknown: http.StatusServiceUnavailable,
	NoBinding: http.StatusServiceUnavailable, NoHealthyNode: http.StatusServiceUnavailable,
	StoreUnavailable: http.StatusServiceUnavailable, BindingServiceUnavailable: http.StatusServiceUnavailable,
	NodeUnreachable: http.StatusBadGateway, NodeTimeout: http.StatusGatewayTimeout, Degraded: http.StatusServiceUnavailable,
	NoRoute: http.StatusNotFound, Internal: http.StatusInternalServerError,
	Validation: http.StatusBadRequest, Unauthenticated: http.StatusUnauthorized, Forbidden: http.StatusForbidden,
	NotFound: http.StatusNotFound, Conflict: http.StatusConflict, PreconditionFailed: http.StatusPreconditionFailed,
	TooLarge: http.StatusRequestEntityTooLarge, RateLimited: http.StatusTooManyRequests,
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
