package gateway

// ChangeKind says what a Change is about.
type ChangeKind string

// The kinds of change.
const (
	ChangeUser     ChangeKind = "user"     // the binding found by ServiceID and UserID
	ChangeUsername ChangeKind = "username" // the binding found by ServiceID and UsernameKey
	ChangeBindings ChangeKind = "bindings" // any binding
	ChangeRegistry ChangeKind = "registry" // services or nodes
	ChangePolicies ChangeKind = "policies" // any policy
	ChangeRoles    ChangeKind = "roles"    // the roles of ServiceID and UserID, or anybody's if both are empty
)

// Change tells that something stored is no longer what it was, so that whoever
// keeps a copy forgets it. It carries no new value: the store is asked again.
type Change struct {
	Kind        ChangeKind  `json:"kind"`
	ServiceID   string      `json:"service,omitempty"`
	UserID      string      `json:"user,omitempty"`
	UsernameKey UsernameKey `json:"username,omitempty"`
}

// ChangesOf lists the look-ups that may have answered with the binding.
func ChangesOf(b Binding) []Change {
	var changes []Change
	if b.UserID != "" {
		changes = append(changes, Change{Kind: ChangeUser, ServiceID: b.ServiceID, UserID: b.UserID})
	}
	if b.Username != "" {
		changes = append(changes, Change{Kind: ChangeUsername, ServiceID: b.ServiceID, UsernameKey: KeyOf(b.Username)})
	}
	return changes
}
