package gateway

import "net/netip"

// Request is what a decision needs to know of a client's request.
type Request struct {
	ServiceID string // empty: found by Path
	Path      string // decoded
	Ambiguous bool   // one server takes Path for another path than the next (policy.PathOf)
	Token     string // empty: none
	Login     bool
	Username  string // of a login; empty: could not be read
	ID        string // X-Request-Id

	// What guards look at. The last four are told only where a policy needs them.
	Method  string
	Address netip.Addr // the client's; the zero one if it is not told, or no address
	Source  string     // value of the service's source header
	Query   string     // as in the URL, still encoded
	Form    Form       // of the body

	AddressTold, SourceTold, QueryTold bool
	CanTellMore                        bool // the caller can be asked again, for more

	// User stands in for the token when a decision is only to be explained.
	User *NamedUser
}

// NamedUser is a user by id, or by username if the id is empty.
type NamedUser struct{ ID, Name string }

// Decision is the answer "forward" for one request; a refusal is an *Error.
type Decision struct {
	ServiceID string
	NodeID    string
	UserID    string // empty: anonymous, or a login
	Channel   string // of the user's token, where it tells
	Source    string // likewise
	App       string // client-id of a signed request
	Epoch     int64  // of the user's binding; 0 = none
	Cacheable bool   // the same token gets the same decision until a change says otherwise
}

// Form is the form body (application/x-www-form-urlencoded) of a request.
type Form struct {
	State FormState
	Body  string // still encoded
}

// FormState is how much is known of a Form.
type FormState int

// The states of a Form.
const (
	FormNotTold    FormState = iota // there may be one
	FormNone                        // the body is none, or there is no body
	FormGiven                       // Body is all of it
	FormTooLarge                    // it is longer than may be told (64 KiB)
	FormUnreadable                  // it broke off, or is encoded
)
