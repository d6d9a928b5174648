package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/guard"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// policyReadLimit is how long a list waits for the durable store before it shows what is in force.
const policyReadLimit = 2 * time.Second

// GetPolicies answers with the guards and what is in force on this instance.
func (a admin) GetPolicies(c echo.Context) error {
	snapshot := a.policies.Snapshot()
	kinds := map[string]int{}
	for _, kind := range gateway.PolicyKinds {
		kinds[string(kind)] = snapshot.Count(kind)
	}
	problems := []api.PolicyProblem{}
	for _, p := range snapshot.Problems {
		problems = append(problems, api.PolicyProblem{Kind: api.PolicyKind(p.Kind), ID: p.ID, Error: oneLine(p.Err), LastGoodHolds: p.Kept})
	}
	return a.succeed(c, map[string]any{
		"revision": snapshot.Revision, "origin": snapshot.Origin, "askedAt": a.policies.AskedAt().UTC(), "pending": snapshot.Pending,
		"kinds": kinds, "problems": problems, "guards": a.guardStates(),
	})
}

func (a admin) guardStates() []api.GuardState {
	states := []api.GuardState{}
	for _, s := range a.guards.States() {
		states = append(states, api.GuardState{
			Name: s.Name, Cost: s.Cost.String(), Failure: api.GuardStateFailure(s.Failure), Enabled: s.Enabled, Shadow: s.Shadow, Remark: orNull(s.Remark), Broken: s.Broken,
			Policies: s.Policies, Counts: api.GuardCounts{
				Passed: s.Counts[guard.Passed], Refused: s.Counts[guard.Refused], Shadow: s.Counts[guard.Shadowed], Unchecked: s.Counts[guard.Unchecked],
			},
		})
	}
	return states
}

// storedPolicies are all policies and who answered: the durable store or, while it
// cannot be asked or lacks a switch that is in force, this instance's snapshot.
func (a admin) storedPolicies(ctx context.Context) ([]gateway.Policy, api.PolicyOrigin) {
	snapshot := a.policies.Snapshot()
	origin := api.PolicyOrigin(snapshot.Origin)
	if snapshot.Pending == 0 {
		limited, cancel := context.WithTimeout(ctx, policyReadLimit)
		defer cancel()
		policies, _, err := a.store.LoadPolicies(limited)
		if err == nil {
			return policies, api.OriginSQL
		}
		a.log.WarnContext(ctx, "policies are shown as they are in force here, since the durable store cannot be asked", "error", err)
		if origin == api.OriginSQL {
			origin = api.OriginMemory
		}
	}
	var policies []gateway.Policy
	for _, kind := range gateway.PolicyKinds {
		policies = append(policies, snapshot.Of(kind)...)
	}
	return policies, origin
}

// ListPolicies answers with a page of policies.
func (a admin) ListPolicies(c echo.Context, kind api.OfKind, params api.ListPoliciesParams) error {
	page, size := pageOf(params.Page, params.Size)
	all, origin := a.storedPolicies(c.Request().Context())
	serviceID, keyword := textOf(params.ServiceID), strings.ToLower(textOf(params.Keyword))
	found := slices.DeleteFunc(slices.Clone(all), func(p gateway.Policy) bool {
		return p.Kind != gateway.PolicyKind(kind) || !strings.Contains(strings.ToLower(p.ID), keyword) || serviceID != "" && !isAbout(p, serviceID)
	})
	view := pageView(int64(len(found)), page, size, pageOfAll(found, page, size), viewPolicy)
	view["origin"] = origin
	return a.succeed(c, view)
}

// isAbout reports whether the policy covers the service.
func isAbout(p gateway.Policy, serviceID string) bool {
	var scope policy.Common
	return json.Unmarshal(p.Body, &scope) != nil || scope.Covers(serviceID)
}

// pageOfAll is a page of what is all here.
func pageOfAll[T any](all []T, page, size int) []T {
	start := min((page-1)*size, len(all))
	return all[start:min(start+size, len(all))]
}

func viewPolicy(p gateway.Policy) api.PolicyRecord {
	view := api.PolicyRecord{
		Kind: api.PolicyKind(p.Kind), ID: p.ID, Body: policy.View(p.Kind, p.Body), UpdateTime: p.UpdatedAt, Etag: policyETag(p),
	}
	if p.Revision > 0 {
		view.Revision = &p.Revision
	}
	return view
}

// policyETag stands for a policy as it is now. It is not made of the body, which holds secrets.
func policyETag(p gateway.Policy) string {
	parts := []any{p.Kind, p.ID, p.Revision}
	if p.Revision <= 0 { // not in the durable store yet
		parts = append(parts, p.UpdatedAt)
	}
	return etag(parts)
}

// GetPolicy answers with one policy.
func (a admin) GetPolicy(c echo.Context, kind api.OfKind, id api.PolicyID) error {
	record, found := a.policyByID(c.Request().Context(), kind, id)
	if !found {
		return missing(gateway.ErrNotFound, noPolicy(kind, id))
	}
	c.Response().Header().Set("ETag", record.Etag)
	return a.succeed(c, record)
}

func (a admin) policyByID(ctx context.Context, kind api.PolicyKind, id string) (api.PolicyRecord, bool) {
	all, _ := a.storedPolicies(ctx)
	for _, p := range all {
		if p.Kind == gateway.PolicyKind(kind) && p.ID == id {
			return viewPolicy(p), true
		}
	}
	return api.PolicyRecord{}, false
}

func noPolicy(kind api.PolicyKind, id string) string {
	return fmt.Sprintf("there is no policy %q of kind %s", id, kind)
}

// SetPolicy creates or replaces a policy.
func (a admin) SetPolicy(c echo.Context, kind api.OfKind, id api.PolicyID, params api.SetPolicyParams) error {
	var body json.RawMessage
	if err := decodeJSON(c, maxPolicyBody, &body); err != nil {
		return err
	}
	wish := policy.Wish{Kind: gateway.PolicyKind(kind), ID: id, Body: body, Match: func(now *gateway.Policy) error {
		if now == nil {
			return requireMatch(params.IfMatch, "")
		}
		return requireMatch(params.IfMatch, policyETag(*now))
	}}
	return a.changePolicies(c, []policy.Wish{wish}, params.DryRun)
}

// DeletePolicy deletes a policy.
func (a admin) DeletePolicy(c echo.Context, kind api.OfKind, id api.PolicyID, params api.DeletePolicyParams) error {
	wish := policy.Wish{Kind: gateway.PolicyKind(kind), ID: id, Match: func(now *gateway.Policy) error {
		if now == nil {
			return missing(gateway.ErrNotFound, noPolicy(kind, id))
		}
		return requireMatch(params.IfMatch, policyETag(*now))
	}}
	return a.changePolicies(c, []policy.Wish{wish}, params.DryRun)
}

// changePolicies carries out a wish for one policy, or tells what it would do.
func (a admin) changePolicies(c echo.Context, wishes []policy.Wish, dryRun *bool) error {
	ctx := c.Request().Context()
	if isTrue(dryRun) {
		return a.tryPolicies(c, func(now []gateway.Policy) ([]gateway.PolicyChange, error) { return a.policies.Plan(now, wishes) })
	}
	done, err := a.policies.Change(ctx, wishes)
	if err != nil {
		return policyError(err)
	}
	view := viewChanged(done)
	if record, found := a.policyByID(ctx, api.PolicyKind(wishes[0].Kind), wishes[0].ID); found {
		view.Record = &record
		c.Response().Header().Set("ETag", record.Etag)
	}
	return a.succeed(c, view)
}

// SetPolicies sets many policies of a kind, all or none.
func (a admin) SetPolicies(c echo.Context, kind api.OfKind, params api.SetPoliciesParams) error {
	var in api.PolicyList
	if err := decodeJSON(c, maxPoliciesBody, &in); err != nil {
		return err
	}
	ofKind := gateway.PolicyKind(kind)
	seen := map[string]bool{}
	wishes := []policy.Wish{}
	for i, entry := range in.Policies {
		if seen[entry.ID] {
			return invalid(fmt.Sprintf("policies.%d.id: %s is there twice", i, entry.ID))
		}
		if entry.ID == "history" || entry.ID == "rollback" { // their paths belong to other operations
			return invalid(fmt.Sprintf("policies.%d.id: %s is taken", i, entry.ID))
		}
		seen[entry.ID] = true
		wishes = append(wishes, policy.Wish{Kind: ofKind, ID: entry.ID, Body: entry.Body})
	}
	replace := isTrue(in.Replace)
	if isTrue(params.DryRun) {
		return a.tryPolicies(c, func(now []gateway.Policy) ([]gateway.PolicyChange, error) {
			if replace {
				wishes = slices.Concat(wishes, policy.Others(now, ofKind, wishes))
			}
			return a.policies.Plan(now, wishes)
		})
	}
	change := a.policies.Change
	if replace {
		change = func(ctx context.Context, wishes []policy.Wish) (policy.Changed, error) {
			return a.policies.Replace(ctx, ofKind, wishes)
		}
	}
	done, err := change(c.Request().Context(), wishes)
	if err != nil {
		return policyError(err)
	}
	return a.succeed(c, viewChanged(done))
}

// RollBackPolicies brings all policies of a kind back to what they were at a revision.
func (a admin) RollBackPolicies(c echo.Context, kind api.OfKind, params api.RollBackPoliciesParams) error {
	var in api.PolicyRollback
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	ctx, ofKind := c.Request().Context(), gateway.PolicyKind(kind)
	if isTrue(params.DryRun) {
		return a.tryPolicies(c, func(now []gateway.Policy) ([]gateway.PolicyChange, error) {
			changes, _, err := a.policies.RollbackPlan(ctx, ofKind, in.Revision)
			if err != nil {
				return nil, err
			}
			return changes, a.policies.Verify(now, changes)
		})
	}
	done, err := a.policies.Rollback(ctx, ofKind, in.Revision)
	if err != nil {
		return policyError(err)
	}
	return a.succeed(c, viewChanged(done))
}

// tryPolicies answers with what a change would do: to the policies, and to the last requests.
func (a admin) tryPolicies(c echo.Context, plan func(now []gateway.Policy) ([]gateway.PolicyChange, error)) error {
	ctx := c.Request().Context()
	now, _ := a.storedPolicies(ctx)
	changes, err := plan(now)
	if err != nil {
		return policyError(err)
	}
	inForce := a.policies.Snapshot()
	replayed := a.guards.Replay(ctx, inForce, a.policies.Would(changes))
	replay := api.PolicyReplay{
		Since: timeOrNull(replayed.Since), Requests: replayed.Requests, Refused: replayed.Refused, Admitted: replayed.Admitted,
		Reasons: map[string]int{}, Samples: []api.ReplayedRequest{},
	}
	for reason, count := range replayed.Reasons {
		replay.Reasons[string(reason)] = count
	}
	for _, r := range replayed.Samples {
		replay.Samples = append(replay.Samples, api.ReplayedRequest{
			Time: r.At, ServiceID: r.ServiceID, Method: r.Method, Path: r.Path, UserID: orNull(r.User), Reason: string(r.Reason),
		})
	}
	view := viewChanged(policy.Changed{Revision: inForce.Revision, Changes: changes, Before: policy.Replaced(now, changes)})
	view.DryRun, view.Replay = true, &replay
	return a.succeed(c, view)
}

// policyError maps what is wrong with a policy to VALIDATION, and else as stored does.
func policyError(err error) error {
	var wrong *policy.InvalidError
	if errors.As(err, &wrong) {
		return invalid(oneLine(wrong))
	}
	return stored(err)
}

// oneLine is the text of joined errors.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func viewChanged(done policy.Changed) api.PolicyChanged {
	view := api.PolicyChanged{Revision: done.Revision, Pending: done.Pending, Changes: []api.PolicyChange{}}
	for i, change := range done.Changes {
		view.Changes = append(view.Changes, api.PolicyChange{
			ID: change.ID, Action: actionOf(done.Before[i], change.Body),
			Before: policy.View(change.Kind, done.Before[i]), After: policy.View(change.Kind, change.Body),
		})
	}
	slices.SortFunc(view.Changes, func(a, b api.PolicyChange) int { return cmp.Compare(a.ID, b.ID) })
	return view
}

func actionOf(before, after json.RawMessage) api.PolicyChangeAction {
	switch {
	case before == nil && after == nil, before != nil && after != nil && sameJSON(before, after):
		return api.ChangeNone
	case before == nil:
		return api.ChangeCreate
	case after == nil:
		return api.ChangeDelete
	}
	return api.ChangeUpdate
}

// sameJSON compares what is in them: a store may write it in another order.
func sameJSON(a, b json.RawMessage) bool {
	var inA, inB any
	return json.Unmarshal(a, &inA) == nil && json.Unmarshal(b, &inB) == nil && reflect.DeepEqual(inA, inB)
}

// mostChanges is how many changes of a kind are searched for those of one policy.
const mostChanges = 20_000

// PolicyHistory answers with a page of changes of a kind, the newest first.
func (a admin) PolicyHistory(c echo.Context, kind api.OfKind, params api.PolicyHistoryParams) error {
	page, size := pageOf(params.Page, params.Size)
	entries, total, err := a.historyOf(c.Request().Context(), gateway.PolicyKind(kind), textOf(params.ID), page, size)
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, pageView(total, page, size, entries, a.viewHistory))
}

func (a admin) historyOf(ctx context.Context, kind gateway.PolicyKind, id string, page, size int) ([]gateway.AuditEntry, int64, error) {
	if id == "" {
		return a.store.ListAudit(ctx, gateway.AuditFilter{Action: gateway.ActionPolicy + string(kind), Offset: (page - 1) * size, Limit: size})
	}
	all, err := a.store.PolicyHistory(ctx, kind, 0, mostChanges)
	ofPolicy := slices.DeleteFunc(all, func(e gateway.AuditEntry) bool {
		change, _, _, err := gateway.AuditedPolicy(e)
		return err != nil || change.ID != id
	})
	return pageOfAll(ofPolicy, page, size), int64(len(ofPolicy)), err
}

func (a admin) viewHistory(e gateway.AuditEntry) api.PolicyHistoryEntry {
	change, before, revision, err := gateway.AuditedPolicy(e)
	if err != nil {
		a.log.Error("entry of the audit that cannot be read", "entry", e.ID, "error", err)
	}
	return api.PolicyHistoryEntry{
		Revision: revision, Time: e.At, Actor: e.Actor.Name, Address: e.Actor.Address, RequestID: e.Actor.RequestID, ID: change.ID,
		Action: api.PolicyHistoryEntryAction(e.Action[strings.LastIndex(e.Action, ".")+1:]),
		Before: policy.View(change.Kind, before), After: policy.View(change.Kind, change.Body),
	}
}
