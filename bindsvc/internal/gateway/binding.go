package gateway

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Binding ties a user to a node of one service: a row of gateway_user_route.
// At least one of UserID and Username is set.
type Binding struct {
	ID        int64
	ServiceID string
	UserID    string // empty: bound in advance by username, not logged in yet
	Username  string // as the node spells it
	NodeID    string
	Epoch     int64 // starts at 1, raised by every rebind
	ImportID  int64 // of the import that made it; 0 = none
	CreatedAt time.Time
	UpdatedAt time.Time
}

// UsernameKey is what makes two spellings of a username the same user:
// lower-cased, then NFC. It is computed here and nowhere else, so that every
// store and cache agrees.
type UsernameKey string

// KeyOf returns the key of a username; the key of "" is "".
func KeyOf(username string) UsernameKey {
	return UsernameKey(norm.NFC.String(strings.ToLower(norm.NFC.String(username))))
}

// MaxNameLength is the longest username and user id, in characters.
const MaxNameLength = 255

// VerifyUserID checks a user id, which travels in a header: a username's rules,
// and no control character.
func VerifyUserID(field, id string) error {
	if strings.ContainsFunc(id, unicode.IsControl) {
		return fmt.Errorf("%s contains a control character", field)
	}
	return VerifyName(field, id)
}

// VerifyName checks a username: not empty, at most MaxNameLength characters of
// valid UTF-8, none of them NUL.
func VerifyName(field, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", field)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s is not valid UTF-8", field)
	case utf8.RuneCountInString(name) > MaxNameLength:
		return fmt.Errorf("%s is longer than %d characters", field, MaxNameLength)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%s contains NUL", field)
	}
	return nil
}

// MaxTokenBytes is the longest token that is looked up or cached. A client
// can hardly send a longer one: Traefik limits all headers together to 1 MiB.
const MaxTokenBytes = 64 << 10

// Login is a successful login, as the plugin reports it.
type Login struct {
	ServiceID     string
	NodeID        string // where the login took place
	UserID        string
	Username      string // of the response; empty: bound by user id alone
	LoginUsername string // as typed; kept as an alias where it differs from Username
}

// Verify reports everything that is wrong with the login, each problem naming the field.
func (l Login) Verify() error {
	var problems []error
	if l.ServiceID == "" {
		problems = append(problems, errors.New("service is empty"))
	}
	if l.NodeID == "" {
		problems = append(problems, errors.New("node is empty"))
	}
	problems = append(problems, VerifyUserID("userId", l.UserID))
	for _, optional := range []struct{ field, name string }{{"username", l.Username}, {"loginUsername", l.LoginUsername}} {
		if optional.name != "" {
			problems = append(problems, VerifyName(optional.field, optional.name))
		}
	}
	return errors.Join(problems...)
}

// BindResult is what a write to the bindings did.
type BindResult struct {
	Binding Binding  // the effective one; its node may differ from the candidate after a race
	Created bool     // the row is new
	Before  *Binding // the row as it was, when it existed
	Changes []Change // what caches must forget
}

// Assignment is an administrator's wish: this user on that node.
// At least one of UserID and Username is set.
type Assignment struct {
	ServiceID string
	NodeID    string
	UserID    string
	Username  string
}

// Route is the part of a binding that a request needs, and what caches keep.
type Route struct {
	NodeID string
	Epoch  int64
}

// Route returns the part of the binding that caches keep.
func (b Binding) Route() Route { return Route{NodeID: b.NodeID, Epoch: b.Epoch} }

// BindingFilter selects a page of bindings.
type BindingFilter struct {
	ServiceID string // empty = all
	Keyword   string // case-insensitive substring of user id or username; empty = all
	Offset    int
	Limit     int
}
