package gateway

// Request is what a decision needs to know of a client's request.
type Request struct {
	ServiceID  string // empty: found by Path
	Path       string // decoded
	Token      string // empty: none
	Login      bool
	Username   string // of a login; empty: could not be read
	ID         string // X-Request-Id
	ClientAddr string

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
	Epoch     int64  // of the user's binding; 0 = none
	Cacheable bool   // the same token gets the same decision until a change says otherwise
}
