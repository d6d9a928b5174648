package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homenode/homenode/bindsvc/api"
)

// changeAnswer shows what a change of policies did, or in a dry run would do.
func changeAnswer(kind api.PolicyKind, done api.PolicyChanged) answer {
	g := grid{header: []string{"kind", "id", "action", "change"}}
	for _, change := range done.Changes {
		g.rows = append(g.rows, []string{string(kind), change.ID, actionText(change.Action), bodyChange(change.Before, change.After)})
	}
	a := answer{data: done, tables: []grid{g}, note: fmt.Sprintf("revision %d", done.Revision)}
	switch {
	case done.DryRun:
		a.note = "a dry run: nothing has changed"
	case done.Pending:
		a.note = "in force on all instances; the database cannot be written, and gets it when it is back"
	}
	if done.Replay != nil {
		a.tables = append(a.tables, replayTables(*done.Replay)...)
		a.lines = replayLines(kind, *done.Replay)
	}
	return a
}

func actionText(action api.PolicyChangeAction) string {
	if action == api.ChangeNone {
		return "none (is so already)"
	}
	return string(action)
}

// replayTables are the reasons and samples of what a dry run would have refused.
func replayTables(replay api.PolicyReplay) []grid {
	if replay.Refused == 0 {
		return nil
	}
	reasons := grid{header: []string{"would be refused with", "requests"}}
	for _, reason := range slices.Sorted(maps.Keys(replay.Reasons)) {
		reasons.rows = append(reasons.rows, []string{reason, number(int64(replay.Reasons[reason]))})
	}
	samples := grid{header: []string{"for example", "service", "method", "path", "user", "reason"}}
	for _, r := range replay.Samples {
		samples.rows = append(samples.rows, []string{clock(r.Time), r.ServiceID, r.Method, r.Path, orNone(r.UserID), r.Reason})
	}
	return []grid{reasons, samples}
}

func replayLines(kind api.PolicyKind, replay api.PolicyReplay) (lines []string) {
	if replay.Since == nil {
		lines = []string{string(kind) + ": the service remembers no requests to try it on"}
	} else {
		lines = []string{fmt.Sprintf("%s: of the last %s (since %s) %d that pass now would be refused, %d that are refused now would pass",
			kind, plural(int64(replay.Requests), "request"), clock(*replay.Since), replay.Refused, replay.Admitted)}
	}
	if kind == api.KindSignature || kind == api.KindApps {
		lines = append(lines, "Signatures of past requests are not remembered: what "+string(kind)+" would refuse is not among them.")
	}
	return lines
}

// bodyChange names the fields in which two policies differ; a new or deleted one is shown whole.
func bodyChange(before, after api.Policy) string {
	was, is := fieldsOf(before), fieldsOf(after)
	switch {
	case was == nil && is == nil:
		return ""
	case was == nil:
		return unescaped(after)
	case is == nil:
		return unescaped(before)
	}
	fields := maps.Clone(was)
	maps.Copy(fields, is)
	var changes []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if a, b := compact(was[field]), compact(is[field]); a != b {
			changes = append(changes, fmt.Sprintf("%s: %s -> %s", field, a, b))
		}
	}
	return strings.Join(changes, ", ")
}

// jsonEscape is an escape of JSON: one that encoding/json needs not write but writes, for
// browsers, or any other.
var jsonEscape = regexp.MustCompile(`\\u00(?:3c|3e|26)|\\.`)

// unescaped is a policy with the <, > and & of its expressions as they were written.
func unescaped(body api.Policy) string {
	return jsonEscape.ReplaceAllStringFunc(string(body), func(found string) string {
		switch found {
		case `\u003c`:
			return "<"
		case `\u003e`:
			return ">"
		case `\u0026`:
			return "&"
		}
		return found
	})
}

// fieldsOf is nil for no policy.
func fieldsOf(body api.Policy) (fields map[string]any) {
	if json.Unmarshal(body, &fields) != nil {
		return nil
	}
	return fields
}
