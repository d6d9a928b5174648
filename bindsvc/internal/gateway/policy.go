package gateway

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// PolicyKind is a kind of policy; each belongs to one guard, or to how the gateway answers.
type PolicyKind string

// The kinds of policy (spec section 5).
const (
	PolicyGuards      PolicyKind = "guards"      // the master switch of each guard
	PolicyMaintenance PolicyKind = "maintenance" // who is turned away, and told until when
	PolicyIdentity    PolicyKind = "identity"    // how a service's users are known
	PolicyApps        PolicyKind = "apps"        // clients of the open API and their secrets
	PolicySignature   PolicyKind = "signature"   // which interfaces want a signature
	PolicyRateLimit   PolicyKind = "rate-limit"  // how often an interface may be called
	PolicyAccess      PolicyKind = "access"      // roles, grey release, methods
	PolicyDegradation PolicyKind = "degradation" // what a failing node's clients are told
	PolicyAnswers     PolicyKind = "answers"     // business codes, and which clients get them with HTTP 200
)

// PolicyKinds are all of them.
var PolicyKinds = []PolicyKind{
	PolicyGuards, PolicyMaintenance, PolicyIdentity, PolicyApps, PolicySignature, PolicyRateLimit, PolicyAccess, PolicyDegradation, PolicyAnswers,
}

// IsSwitch reports whether policies of the kind are switches for emergencies, which
// take effect through the shared cache while the durable store cannot be written.
func (k PolicyKind) IsSwitch() bool { return k == PolicyGuards || k == PolicyMaintenance }

// Policy is one record of a guard's runtime configuration: a row of gateway_policy.
// Package policy knows what the body of each kind holds.
type Policy struct {
	Kind      PolicyKind
	ID        string
	Body      json.RawMessage // an object
	Revision  int64           // of the change that wrote it
	UpdatedAt time.Time
}

// PolicyChange replaces a policy by another, or creates or deletes it.
type PolicyChange struct {
	Kind PolicyKind
	ID   string
	Body json.RawMessage // nil: there is to be none
}

// Policies is the durable table of policies. Every change gets the next revision of
// the whole set; of two revisions the greater was committed later. The changes are
// audited (AuditPolicyChange) in their transaction.
type Policies interface {
	// LoadPolicies reads all policies in one snapshot, ordered by kind and id, and
	// the revision of the set, 0 before the first change.
	LoadPolicies(ctx context.Context) ([]Policy, int64, error)

	// PolicyRevision is the revision that LoadPolicies would return: a cheap question.
	PolicyRevision(ctx context.Context) (int64, error)

	// ChangePolicies carries out what decide makes of the policies as they are, in one
	// transaction: no other change comes between. An error of decide aborts it and is
	// returned. A change that changes nothing is left out; if nothing is left the
	// revision stays. It returns the revision after the change.
	ChangePolicies(ctx context.Context, decide func(now []Policy, revision int64) ([]PolicyChange, error)) (int64, error)

	// PolicyHistory returns the audited changes of a kind with a revision greater than
	// since, the newest first, at most limit.
	PolicyHistory(ctx context.Context, kind PolicyKind, since int64, limit int) ([]AuditEntry, error)
}

// PolicyCache serves the policies to instances that cannot ask the durable store
// (Redis: hashes gateway:policy:<kind>), and takes switches while nobody can write it.
type PolicyCache interface {
	// PublishPolicies replaces what is served, unless that has a greater revision.
	PublishPolicies(ctx context.Context, policies []Policy, revision int64) error

	// ServedPolicies returns what was published last.
	ServedPolicies(ctx context.Context) ([]Policy, int64, error)

	// AddPending takes a change that the durable store could not take. The last one
	// of a policy counts. Every instance is told at once (FollowPolicies).
	AddPending(ctx context.Context, pending PendingPolicy) error

	// PendingPolicies returns the changes that the durable store has not taken yet.
	PendingPolicies(ctx context.Context) ([]PendingPolicy, error)

	// RemovePending forgets a change that the durable store has taken, unless another
	// one of the same policy has replaced it.
	RemovePending(ctx context.Context, pending PendingPolicy) error

	// FollowPolicies calls changed whenever AddPending or PublishPolicies changed something,
	// as far as the connection lasts, until ctx ends. It reconnects by itself.
	FollowPolicies(ctx context.Context, changed func()) error
}

// PendingPolicy is a change that waits for the durable store.
type PendingPolicy struct {
	PolicyChange
	Actor Actor
	At    time.Time
}

// auditPolicy is a policy in the audit.
type auditPolicy struct {
	Kind     PolicyKind      `json:"kind"`
	ID       string          `json:"id"`
	Revision int64           `json:"revision"` // of the change that the entry tells of
	Body     json.RawMessage `json:"body"`
}

// The ends of the audit's actions of policies: policy.<kind>.create and so on.
const (
	ActionPolicy       = "policy." // begins them all
	actionPolicyCreate = ".create"
	actionPolicyUpdate = ".update"
	actionPolicyDelete = ".delete"
)

// AuditPolicyChange is the entry of a policy whose body became another by the change
// with that revision; nil stands for none. Secrets in it are sealed, and no view shows them.
func AuditPolicyChange(kind PolicyKind, id string, revision int64, before, after json.RawMessage) AuditEntry {
	end := actionPolicyUpdate
	switch {
	case before == nil:
		end = actionPolicyCreate
	case after == nil:
		end = actionPolicyDelete
	}
	e := AuditEntry{Action: ActionPolicy + string(kind) + end}
	if before != nil {
		e.Before = mustJSON(auditPolicy{kind, id, revision, before})
	}
	if after != nil {
		e.After = mustJSON(auditPolicy{kind, id, revision, after})
	}
	return e
}

// AuditedPolicy reads an entry of AuditPolicyChange back: what was changed, from which
// body to which; nil stands for none.
func AuditedPolicy(e AuditEntry) (change PolicyChange, before json.RawMessage, revision int64, err error) {
	var was, is auditPolicy
	if e.Before != nil {
		if err := json.Unmarshal(e.Before, &was); err != nil {
			return PolicyChange{}, nil, 0, err
		}
		change.Kind, change.ID, revision = was.Kind, was.ID, was.Revision
	}
	if e.After != nil {
		if err := json.Unmarshal(e.After, &is); err != nil {
			return PolicyChange{}, nil, 0, err
		}
		change.Kind, change.ID, revision = is.Kind, is.ID, is.Revision
	}
	change.Body = is.Body
	return change, was.Body, revision, nil
}

// IsOfPolicy reports whether the entry is one of AuditPolicyChange.
func (e AuditEntry) IsOfPolicy() bool { return strings.HasPrefix(e.Action, ActionPolicy) }

// ViewAuditedPolicy is Before or After of such an entry with the body as view shows it; an
// empty object if it cannot be read: what is in it is not known to be no secret.
func ViewAuditedPolicy(raw json.RawMessage, view func(PolicyKind, json.RawMessage) json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	var audited auditPolicy
	if err := json.Unmarshal(raw, &audited); err != nil {
		return json.RawMessage(`{}`)
	}
	audited.Body = view(audited.Kind, audited.Body)
	return mustJSON(audited)
}

// UserRole is a role that a user of a service has: a row of gateway_user_role.
type UserRole struct{ ServiceID, UserID, Role string }

// UserRoleFilter selects roles of users; empty fields select all.
type UserRoleFilter struct {
	ServiceID, UserID, Role string
	Offset, Limit           int
}

// Roles is the durable table of the roles that users have.
type Roles interface {
	// RolesOf returns the roles of a user, in order by their bytes; none is no error.
	RolesOf(ctx context.Context, serviceID, userID string) ([]string, error)

	// SetRoles gives a user exactly these roles (audited as role.set, with the lists before
	// and after). A service that does not exist is a ConflictError.
	SetRoles(ctx context.Context, serviceID, userID string, roles []string) error

	// ListRoles returns a page ordered by service, user and role, and how many match in all.
	ListRoles(ctx context.Context, filter UserRoleFilter) (page []UserRole, total int64, err error)
}

// ActionRoleSet is the audit's action of SetRoles.
const ActionRoleSet = "role.set"

// AuditRoles is the entry of a user whose roles became others.
func AuditRoles(serviceID, userID string, before, after []string) AuditEntry {
	list := func(roles []string) json.RawMessage {
		if len(roles) == 0 {
			return nil
		}
		return mustJSON(map[string][]string{"roles": roles})
	}
	return AuditEntry{Action: ActionRoleSet, ServiceID: serviceID, UserID: userID, Before: list(before), After: list(after)}
}
