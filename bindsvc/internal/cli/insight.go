package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show services, nodes, their health and how many users each has",
		Example: "  homenode status\n  homenode status --server https://gateway.example.com -o json",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			status, err := answered(gateway.GetStatusWithResponse(ctx))
			if err != nil {
				return answer{}, err
			}
			d := status.Data
			return answer{data: d, tables: []grid{statusTable(d.Services)}, lines: guardRemarks(d.Guards), note: "version " + d.Version}, nil
		}),
	}
}

func statusTable(services []api.Service) grid {
	g := grid{header: []string{"service", "path prefix", "node", "state", "since", "bindings", "remarks", "last error"}}
	for _, s := range services {
		nodes := orZero(s.Nodes)
		if len(nodes) == 0 {
			g.rows = append(g.rows, []string{s.ID, s.PathPrefix, none, none, none, number(orZero(s.Bindings)), strings.Join(serviceRemarks(s), ", "), ""})
		}
		for _, n := range nodes {
			g.rows = append(g.rows, []string{
				s.ID, s.PathPrefix, n.ID, string(n.Health.State), clockOrNone(n.Health.Since), number(orZero(n.Bindings)),
				strings.Join(append(serviceRemarks(s), nodeRemarks(s, n)...), ", "), n.Health.LastError,
			})
		}
	}
	return g
}

// guardRemarks names the guards that do not refuse as their policies say.
func guardRemarks(guards []api.GuardState) (remarks []string) {
	for _, g := range guards {
		switch {
		case !g.Enabled:
			remarks = append(remarks, "guard "+g.Name+" is switched off")
		case g.Shadow:
			remarks = append(remarks, "guard "+g.Name+" is in shadow mode: it refuses nothing")
		}
		if g.Broken {
			remarks = append(remarks, "guard "+g.Name+" has a policy that cannot be used: homenode policies")
		}
	}
	return remarks
}

func serviceRemarks(s api.Service) []string {
	if s.Enabled {
		return nil
	}
	return []string{"service disabled"}
}

func nodeRemarks(s api.Service, n api.Node) (remarks []string) {
	if s.DefaultNodeID != nil && *s.DefaultNodeID == n.ID {
		remarks = append(remarks, "default node")
	}
	if !n.Enabled {
		remarks = append(remarks, "disabled")
	}
	if !n.AcceptNew {
		remarks = append(remarks, "no new users")
	}
	return remarks
}

func orZero[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func (c *console) explainCommand() *cobra.Command {
	var service, tokenFile, method, address, source string
	var user userFlags
	cmd := &cobra.Command{
		Use:   "explain [PATH]",
		Short: "Show where a request would go, step by step, and why",
		Long: "Run the code that decides live requests, without changing anything, and show its steps.\nThe request is that of a token, a user id or a username; of nobody if none is given. With\n" +
			"method and path of the login, a username's request is its login. Ends with 0 whatever the\nverdict is.\n\nA token is read from a file or from standard input, since arguments are visible to\n" +
			"everybody on this machine. PATH is part of a URL: leave tokens out of its query.",
		Example: "  homenode explain /js/a/cases --user 7\n  homenode explain /js/a/sys/login --method POST --username ann\n" +
			"  homenode explain --service ai --token-file -     type or pipe the token in",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
		query := api.ExplainParams{ServiceID: optional(service), UserID: user.id, Username: user.name, Method: optional(method), Address: optional(address), Source: optional(source)}
		switch {
		case len(args) == 1:
			query.Path = &args[0]
		case service == "":
			return answer{}, usagef("give a PATH or --service; see homenode explain --help")
		}
		if tokenFile != "" {
			token, err := readToken(tokenFile, cmd.InOrStdin())
			if err != nil {
				return answer{}, err
			}
			query.XExplainToken = &token
		}
		explained, err := answered(gateway.ExplainWithResponse(ctx, &query))
		if err != nil {
			return answer{}, err
		}
		return explanation(explained.Data), nil
	})
	c.serviceFlag(cmd, &service, "the service; found by PATH if it is not given")
	textFlag(cmd.Flags(), &tokenFile, "token-file", "file", "file with the token of the request, - for standard input")
	textFlag(cmd.Flags(), &method, "method", "method", "method of the request (default GET)")
	textFlag(cmd.Flags(), &address, "address", "address", "address of the client, for policies that look at it")
	textFlag(cmd.Flags(), &source, "source", "value", "value of the source header, where the service's answers policy names one")
	user.register(cmd)
	cmd.MarkFlagsMutuallyExclusive("token-file", "user", "username")
	return cmd
}

const maxToken = 64 << 10 // the document's

func readToken(path string, stdin io.Reader) (string, error) {
	from := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return "", usagef("--token-file: %w", err)
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	content, err := io.ReadAll(io.LimitReader(from, maxToken+1))
	token := strings.TrimSpace(string(content))
	switch {
	case err != nil:
		return "", usagef("--token-file: %w", err)
	case token == "":
		return "", usagef("--token-file: there is no token in it")
	case len(token) > maxToken, strings.IndexFunc(token, unprintable) >= 0:
		return "", usagef("--token-file: want one token of at most %d bytes, without line breaks", maxToken)
	}
	return token, nil
}

func explanation(e api.Explanation) answer {
	g := grid{header: []string{"step", "source", "outcome", "detail", "time"}}
	for _, s := range e.Steps {
		took := (time.Duration(s.Micros) * time.Microsecond).String()
		g.rows = append(g.rows, []string{string(s.Step), s.Source, string(s.Outcome), s.Detail, took})
	}
	lines := []string{"", "Request: " + e.Request, "Verdict: " + verdict(e.Verdict)}
	if len(e.WhatWouldChangeIt) > 0 {
		lines = append(lines, "What would change it:")
	}
	for _, way := range e.WhatWouldChangeIt {
		lines = append(lines, "  - "+way)
	}
	return answer{data: e, tables: []grid{g}, lines: lines}
}

func verdict(v api.Verdict) string {
	if !v.Forward {
		return fmt.Sprintf("refused with %d %s: %s", v.Status, orNone(v.Reason), v.Message)
	}
	text := "forwarded to " + orNone(v.NodeID)
	if v.UserID != nil {
		text += ", user " + *v.UserID
	}
	if v.Epoch != nil {
		text += ", epoch " + number(*v.Epoch)
	}
	return text
}

func (c *console) auditCommand() *cobra.Command {
	var service string
	var user userFlags
	var page pageFlags
	var query api.ListAuditParams
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List changes: who made them, when, and what was before and after",
		Example: "  homenode audit --since 24h --action binding.rebind\n  homenode audit --service ai --username ann\n" +
			"  homenode audit where --service ai --username ann --at 7d",
		Args: cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			query.ServiceID, query.UserID, query.Username = optional(service), user.id, user.name
			query.Page, query.Size = page.page, page.size
			found, err := answered(gateway.ListAuditWithResponse(ctx, &query))
			if err != nil {
				return answer{}, err
			}
			d := found.Data
			return answer{data: d, tables: []grid{auditTable(d.Records)}, note: pageNote(d.Total, d.Page, d.Size, "change")}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "only changes of this service")
	flags := cmd.Flags()
	optionalText(flags, &query.NodeID, "node", "node", "only changes of this node, and bindings to it")
	user.register(cmd)
	optionalText(flags, &query.Actor, "actor", "actor", "only changes by this actor: admin-token, user:ID, login, sql:ROLE, configuration")
	optionalText(flags, &query.Action, "action", "action", "only this action, like binding.rebind, or all of one kind, like binding")
	optionalText(flags, &query.RequestID, "request", "id", "only changes by the request with this id")
	optionalTime(flags, &query.Since, "since", "time", "only changes from this time on (2026-01-31T08:00:00Z), or from so long ago: 24h, 7d")
	optionalTime(flags, &query.Until, "until", "time", "only changes before this time, or before so long ago")
	page.register(cmd)
	must(cmd.RegisterFlagCompletionFunc("node", c.completeNodes))
	cmd.AddCommand(c.whereCommand())
	return cmd
}

func (c *console) whereCommand() *cobra.Command {
	var service string
	var user userFlags
	var at *time.Time
	cmd := &cobra.Command{
		Use:     "where",
		Short:   "Show where a user was bound at a time",
		Example: "  homenode audit where --service ai --user 7 --at 2026-01-31T08:00:00+08:00\n  homenode audit where --service ai --username ann --at 24h",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			found, err := answered(gateway.BindingAtWithResponse(ctx, &api.BindingAtParams{ServiceID: service, UserID: user.id, Username: user.name, At: *at}))
			if err != nil {
				return answer{}, err
			}
			b := found.Data
			if b == nil {
				return answer{data: nil, lines: []string{"the user was bound nowhere at " + clock(*at)}}, nil
			}
			return answer{data: b, tables: []grid{{
				header: []string{"service", "user", "username", "node", "epoch"},
				rows:   [][]string{{b.ServiceID, orNone(b.UserID), orNone(b.Username), b.NodeID, number(b.Epoch)}},
			}}}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "the service")
	user.register(cmd)
	optionalTime(cmd.Flags(), &at, "at", "time", "the time (2026-01-31T08:00:00Z), or how long ago: 24h, 7d")
	must(cmd.MarkFlagRequired("service"))
	must(cmd.MarkFlagRequired("at"))
	cmd.MarkFlagsOneRequired("user", "username")
	cmd.MarkFlagsMutuallyExclusive("user", "username")
	return cmd
}

func auditTable(entries []api.AuditEntry) grid {
	g := grid{header: []string{"time", "actor", "address", "action", "service", "node", "user", "username", "change", "request"}}
	for _, e := range entries {
		g.rows = append(g.rows, []string{
			clock(e.Time), e.Actor, e.Address, e.Action, orNone(e.ServiceID), orNone(e.NodeID), orNone(e.UserID), orNone(e.Username), changeOf(e), e.RequestID,
		})
	}
	return g
}

// roleSet is the action of roles that were set. One side of it is missing where there are none.
const roleSet = "role.set"

// changeOf names the fields that differ, where there is a before and an after.
func changeOf(e api.AuditEntry) string {
	var before, after map[string]any
	if e.Before != nil {
		before = *e.Before
	}
	if e.After != nil {
		after = *e.After
	}
	if (before == nil || after == nil) && e.Action != roleSet {
		return ""
	}
	fields := map[string]any{}
	maps.Copy(fields, before)
	maps.Copy(fields, after)
	var changes []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if was, is := compact(before[field]), compact(after[field]); was != is {
			changes = append(changes, fmt.Sprintf("%s: %s -> %s", field, was, is))
		}
	}
	return strings.Join(changes, ", ")
}

// compact is a value of JSON; text without its quotes.
func compact(value any) string {
	switch v := value.(type) {
	case nil:
		return none
	case string:
		return orNone(&v)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return unescaped(raw)
}
