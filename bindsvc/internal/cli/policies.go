package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

// kinds are the kinds of policy, in the document's order.
var kinds = []string{
	string(api.KindGuards), string(api.KindMaintenance), string(api.KindIdentity), string(api.KindApps), string(api.KindSignature),
	string(api.KindRateLimit), string(api.KindAccess), string(api.KindDegradation), string(api.KindAnswers),
}

func (c *console) policiesCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:   "policies",
		Short: "Show the guards; list, set, try, delete and roll back their policies",
		Long: "A guard is a check that can refuse a request before a node is chosen; policies say what it\nrefuses. Without a subcommand the guards are shown, how many policies of each kind there are,\n" +
			"and the policies that cannot be used.\n\nKINDs: " + strings.Join(kinds, ", ") + ".\nWhat a policy of each kind holds is in the API's document (/gateway/admin/openapi.json).",
		Example: "  homenode policies\n  homenode policies set rate-limit orders -f orders.yml --dry-run\n  homenode policies rollback rate-limit --to 41",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			found, err := answered(gateway.GetPoliciesWithResponse(ctx))
			if err != nil {
				return answer{}, err
			}
			d := found.Data
			tables := []grid{guardTable(d.Guards), kindTable(d.Kinds)}
			if len(d.Problems) > 0 {
				tables = append(tables, problemTable(d.Problems))
			}
			note := fmt.Sprintf("revision %d, from %s, confirmed %s", d.Revision, d.Origin, clock(d.AskedAt))
			if d.Pending > 0 {
				note += fmt.Sprintf("; in force, but not in the database yet: %d", d.Pending)
			}
			return answer{data: d, tables: tables, note: note}, nil
		}),
	}
	parent.AddCommand(
		c.listPoliciesCommand(), c.showPolicyCommand(), c.setPolicyCommand(), c.deletePolicyCommand(),
		c.applyPoliciesCommand(), c.policyHistoryCommand(), c.rollbackCommand(),
	)
	return parent
}

func guardTable(guards []api.GuardState) grid {
	g := grid{header: []string{"guard", "switch", "fails", "costs", "policies", "passed", "refused", "shadow", "unchecked", "remarks"}}
	for _, s := range guards {
		var remarks []string
		if s.Broken {
			remarks = append(remarks, "a policy cannot be used")
		}
		if s.Remark != nil {
			remarks = append(remarks, *s.Remark)
		}
		g.rows = append(g.rows, []string{
			s.Name, switchOf(s), string(s.Failure), s.Cost, number(int64(s.Policies)),
			number(s.Counts.Passed), number(s.Counts.Refused), number(s.Counts.Shadow), number(s.Counts.Unchecked), strings.Join(remarks, "; "),
		})
	}
	return g
}

func switchOf(s api.GuardState) string {
	switch {
	case !s.Enabled:
		return "off"
	case s.Shadow:
		return "shadow"
	}
	return "on"
}

func kindTable(counts map[string]int) grid {
	g := grid{header: []string{"kind", "policies"}}
	for _, kind := range kinds {
		g.rows = append(g.rows, []string{kind, number(int64(counts[kind]))})
	}
	return g
}

func problemTable(problems []api.PolicyProblem) grid {
	g := grid{header: []string{"kind", "policy that cannot be used", "last good version holds", "error"}}
	for _, p := range problems {
		g.rows = append(g.rows, []string{string(p.Kind), p.ID, yesNo(p.LastGoodHolds), p.Error})
	}
	return g
}

// kindThen takes a kind, then as many ids as it has names.
func kindThen(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := ids(append([]string{"KIND"}, names...)...)(cmd, args); err != nil {
			return err
		}
		return verifyKind(args[0])
	}
}

func verifyKind(kind string) error {
	if !slices.Contains(kinds, kind) {
		return fmt.Errorf("there is no KIND %q: want one of %s", kind, strings.Join(kinds, ", "))
	}
	return nil
}

// fileFlag is the flag that names the file of a policy.
func fileFlag(cmd *cobra.Command, to *string, usage string) {
	cmd.Flags().VarP(&valueFlag{kind: "file", set: func(path string) error {
		*to = path
		return nil
	}}, "file", "f", usage)
	must(cmd.MarkFlagRequired("file"))
	must(cmd.RegisterFlagCompletionFunc("file", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"yml", "yaml", "json"}, cobra.ShellCompDirectiveFilterFileExt
	}))
}

func dryRunFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "dry-run", false, "tell what it would change and refuse, change nothing")
}

func ifMatchFlag(cmd *cobra.Command, to **string) {
	optionalText(cmd.Flags(), to, "if-match", "etag", "refuse if the policy's ETag, as show tells it, is another one now")
}

const maxPolicyFile = 8 << 20 // the document's

// readDocument reads a file of YAML, or of JSON as it is, as JSON.
func readDocument(path string, stdin io.Reader) (json.RawMessage, error) {
	from := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, usagef("--file: %w", err)
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	content, err := io.ReadAll(io.LimitReader(from, maxPolicyFile+1))
	switch {
	case err != nil:
		return nil, usagef("--file: %w", err)
	case len(content) > maxPolicyFile:
		return nil, usagef("--file: %s is longer than %d MiB", path, maxPolicyFile>>20)
	case json.Valid(content):
		return content, nil
	}
	var value any
	if err := yaml.Unmarshal(content, &value); err != nil {
		return nil, usagef("--file: %s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	document, err := json.Marshal(value)
	if err != nil {
		return nil, usagef("--file: %s: %w", path, err)
	}
	return document, nil
}

func (c *console) listPoliciesCommand() *cobra.Command {
	var service, keyword string
	var page pageFlags
	cmd := &cobra.Command{
		Use:               "list KIND",
		Short:             "List the policies of a kind",
		Example:           "  homenode policies list rate-limit --service ai",
		Args:              kindThen(),
		ValidArgsFunction: c.completeKinds,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			return listPolicies(ctx, gateway, api.PolicyKind(args[0]), &api.ListPoliciesParams{
				ServiceID: optional(service), Keyword: optional(keyword), Page: page.page, Size: page.size,
			})
		}),
	}
	c.serviceFlag(cmd, &service, "only policies that are about this service")
	textFlag(cmd.Flags(), &keyword, "keyword", "text", "only policies with this in their id")
	page.register(cmd)
	return cmd
}

func listPolicies(ctx context.Context, gateway *api.ClientWithResponses, kind api.PolicyKind, params *api.ListPoliciesParams) (answer, error) {
	found, err := answered(gateway.ListPoliciesWithResponse(ctx, kind, params))
	if err != nil {
		return answer{}, err
	}
	d := found.Data
	g := grid{header: []string{"id", "revision", "changed", "policy"}}
	for _, p := range d.Records {
		g.rows = append(g.rows, []string{p.ID, revisionOf(p.Revision), clock(p.UpdateTime), string(p.Body)})
	}
	note := pageNote(d.Total, d.Page, d.Size, "policy")
	if d.Origin != api.OriginSQL {
		note += fmt.Sprintf("; as they are in force (from %s), since the database could not be asked or lacks some", d.Origin)
	}
	return answer{data: d, tables: []grid{g}, note: note}, nil
}

func revisionOf(revision *int64) string {
	if revision == nil {
		return "pending"
	}
	return number(*revision)
}

func (c *console) showPolicyCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show KIND ID",
		Short:             "Show a policy in the form that set takes",
		Long:              "Show a policy as YAML, in the form that set takes. Secrets are not shown; a secret that is\nset again with its id alone stays as it is. Revision and ETag go to standard error.",
		Example:           "  homenode policies show rate-limit orders > orders.yml",
		Args:              kindThen("ID"),
		ValidArgsFunction: c.completePolicies,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			found, err := answered(gateway.GetPolicyWithResponse(ctx, api.PolicyKind(args[0]), args[1]))
			if err != nil {
				return answer{}, err
			}
			text, err := yaml.JSONToYAML(found.Data.Body)
			if err != nil {
				return answer{}, err
			}
			note := fmt.Sprintf("revision %s, changed %s, ETag %s", revisionOf(found.Data.Revision), clock(found.Data.UpdateTime), found.Data.Etag)
			return answer{data: found.Data, lines: strings.Split(strings.TrimRight(string(text), "\n"), "\n"), note: note}, nil
		}),
	}
}

func (c *console) setPolicyCommand() *cobra.Command {
	var file string
	var dryRun bool
	var ifMatch *string
	cmd := &cobra.Command{
		Use:   "set KIND ID",
		Short: "Create or replace a policy",
		Long: "Create or replace a policy by that of a file (YAML or JSON), or of standard input if FILE\nis -. What the file does not have gets its default. With --dry-run nothing is changed: it is\n" +
			"shown what the policy would have refused of the last requests.",
		Example: "  homenode policies set rate-limit orders -f orders.yml --dry-run\n  echo '{path: \"/js/a/orders/{id}\", rate: 10, by: user}' | homenode policies set rate-limit orders -f -\n" +
			"  homenode policies set access admin -f admin.yml --if-match '\"3f…\"'",
		Args:              kindThen("ID"),
		ValidArgsFunction: c.completePolicies,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body, err := readDocument(file, cmd.InOrStdin())
		if err != nil {
			return err
		}
		return c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			return setPolicy(ctx, gateway, api.PolicyKind(args[0]), args[1], &api.SetPolicyParams{IfMatch: ifMatch, DryRun: ifTrue(dryRun)}, body)
		})(cmd, args)
	}
	fileFlag(cmd, &file, "file with the policy, - for standard input")
	dryRunFlag(cmd, &dryRun)
	ifMatchFlag(cmd, &ifMatch)
	return cmd
}

// ifTrue is nil for false, which is the service's default.
func ifTrue(flag bool) *bool {
	if !flag {
		return nil
	}
	return &flag
}

func setPolicy(ctx context.Context, gateway *api.ClientWithResponses, kind api.PolicyKind, id string, params *api.SetPolicyParams, body any) (answer, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	done, err := answered(gateway.SetPolicyWithResponse(ctx, kind, id, params, encoded))
	if err != nil {
		return answer{}, err
	}
	return changeAnswer(kind, done.Data), nil
}

func (c *console) deletePolicyCommand() *cobra.Command {
	var dryRun bool
	var ifMatch *string
	cmd := &cobra.Command{
		Use:               "delete KIND ID",
		Short:             "Delete a policy",
		Example:           "  homenode policies delete rate-limit orders",
		Args:              kindThen("ID"),
		ValidArgsFunction: c.completePolicies,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			return deletePolicy(ctx, gateway, api.PolicyKind(args[0]), args[1], &api.DeletePolicyParams{IfMatch: ifMatch, DryRun: ifTrue(dryRun)})
		}),
	}
	dryRunFlag(cmd, &dryRun)
	ifMatchFlag(cmd, &ifMatch)
	return cmd
}

func deletePolicy(ctx context.Context, gateway *api.ClientWithResponses, kind api.PolicyKind, id string, params *api.DeletePolicyParams) (answer, error) {
	done, err := answered(gateway.DeletePolicyWithResponse(ctx, kind, id, params))
	if err != nil {
		return answer{}, err
	}
	return changeAnswer(kind, done.Data), nil
}

func (c *console) applyPoliciesCommand() *cobra.Command {
	var file string
	var replace, dryRun bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Set the policies of a file, of one kind or several",
		Long: "Set the policies of a file (YAML or JSON), which has a list of them under each kind, every\none with its id:\n\n  rate-limit:\n    - {id: orders, path: '/js/a/orders/{id}', rate: 10}\n\n" +
			"The policies of one kind are set all or none. Each kind is a change of its own: if one is\nrefused, those before it stay, and it is said which. With --replace all other policies of the\n" +
			"kinds in the file are deleted.",
		Example: "  homenode policies apply -f policies.yml --dry-run\n  homenode policies apply -f policies.yml --replace",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		document, err := readDocument(file, cmd.InOrStdin())
		if err != nil {
			return err
		}
		lists, err := policyLists(document, replace)
		if err != nil {
			return usagef("--file: %s: %w", file, err)
		}
		return c.askWithin(noLimit, func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			return applyPolicies(ctx, gateway, lists, dryRun)
		})(cmd, args)
	}
	fileFlag(cmd, &file, "file with the policies, - for standard input")
	cmd.Flags().BoolVar(&replace, "replace", false, "delete all other policies of the kinds in the file")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

// policyLists reads a file of apply: lists by kind.
func policyLists(document json.RawMessage, replace bool) (map[string]api.PolicyList, error) {
	var file map[string][]map[string]json.RawMessage
	if err := json.Unmarshal(document, &file); err != nil || len(file) == 0 {
		return nil, fmt.Errorf("want kinds (%s), and under each a list of policies with their ids", strings.Join(kinds, ", "))
	}
	lists := map[string]api.PolicyList{}
	for kind, entries := range file {
		if err := verifyKind(kind); err != nil {
			return nil, err
		}
		list := api.PolicyList{Policies: []api.PolicyEntry{}, Replace: ifTrue(replace)}
		for i, fields := range entries {
			var id string
			if err := json.Unmarshal(fields["id"], &id); err != nil || !idPattern.MatchString(id) {
				return nil, fmt.Errorf("%s[%d].id: %w", kind, i, errNoID)
			}
			delete(fields, "id")
			body, err := json.Marshal(fields)
			if err != nil {
				return nil, err
			}
			list.Policies = append(list.Policies, api.PolicyEntry{ID: id, Body: body})
		}
		lists[kind] = list
	}
	return lists, nil
}

func applyPolicies(ctx context.Context, gateway *api.ClientWithResponses, lists map[string]api.PolicyList, dryRun bool) (answer, error) {
	all := answer{}
	data := map[string]api.PolicyChanged{}
	for _, kind := range kinds {
		list, ok := lists[kind]
		if !ok {
			continue
		}
		done, err := answered(gateway.SetPoliciesWithResponse(ctx, api.PolicyKind(kind), &api.SetPoliciesParams{DryRun: ifTrue(dryRun)}, list))
		if err != nil {
			err = fmt.Errorf("%s: %w", kind, err)
			if len(data) > 0 && !dryRun {
				err = fmt.Errorf("%w\nSet before that, and still so: %s", err, strings.Join(slices.Sorted(maps.Keys(data)), ", "))
			}
			return answer{}, err
		}
		data[kind] = done.Data
		one := changeAnswer(api.PolicyKind(kind), done.Data)
		all.tables, all.lines, all.note = append(all.tables, one.tables...), append(all.lines, one.lines...), one.note
	}
	all.data = data
	return all, nil
}

func (c *console) policyHistoryCommand() *cobra.Command {
	var id *string
	var page pageFlags
	cmd := &cobra.Command{
		Use:               "history KIND",
		Short:             "List the changes of the policies of a kind, the newest first",
		Example:           "  homenode policies history rate-limit --id orders",
		Args:              kindThen(),
		ValidArgsFunction: c.completeKinds,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			found, err := answered(gateway.PolicyHistoryWithResponse(ctx, api.PolicyKind(args[0]), &api.PolicyHistoryParams{ID: id, Page: page.page, Size: page.size}))
			if err != nil {
				return answer{}, err
			}
			d := found.Data
			g := grid{header: []string{"revision", "time", "actor", "address", "id", "action", "change", "request"}}
			for _, e := range d.Records {
				g.rows = append(g.rows, []string{
					number(e.Revision), clock(e.Time), e.Actor, e.Address, e.ID, string(e.Action), bodyChange(e.Before, e.After), e.RequestID,
				})
			}
			return answer{data: d, tables: []grid{g}, note: pageNote(d.Total, d.Page, d.Size, "change")}, nil
		}),
	}
	value(cmd.Flags(), "id", "ID", "only changes of this policy", func(text string) error {
		if !idPattern.MatchString(text) {
			return errNoID
		}
		id = &text
		return nil
	})
	page.register(cmd)
	return cmd
}

func (c *console) rollbackCommand() *cobra.Command {
	var revision int64
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "rollback KIND",
		Short: "Bring all policies of a kind back to what they were at a revision",
		Long: "Bring all policies of a kind back to what they were after the change with that revision, as\nhistory tells it; 0 is before the first. It is a change with a revision of its own, which can\n" +
			"be rolled back too. Other kinds stay.",
		Example:           "  homenode policies history rate-limit\n  homenode policies rollback rate-limit --to 41 --dry-run",
		Args:              kindThen(),
		ValidArgsFunction: c.completeKinds,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			kind := api.PolicyKind(args[0])
			done, err := answered(gateway.RollBackPoliciesWithResponse(ctx, kind, &api.RollBackPoliciesParams{DryRun: ifTrue(dryRun)}, api.PolicyRollback{Revision: revision}))
			if err != nil {
				return answer{}, err
			}
			return changeAnswer(kind, done.Data), nil
		}),
	}
	value(cmd.Flags(), "to", "revision", "the revision to go back to", func(text string) (err error) {
		if revision, err = strconv.ParseInt(text, 10, 64); err != nil || revision < 0 {
			return fmt.Errorf("want a revision, 0 or more")
		}
		return nil
	})
	must(cmd.MarkFlagRequired("to"))
	dryRunFlag(cmd, &dryRun)
	return cmd
}
