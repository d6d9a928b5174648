package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) importCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:   "import",
		Short: "Bind many users at once; list and undo such imports",
		Long: "An import binds users who have no binding and leaves every other one as it is: who is\nbound elsewhere is reported. It can be tried without changing anything (--dry-run), goes\n" +
			"on where it was cut off (--resume), and can be undone.",
		Example: "  homenode import existing --service ai node-1 --dry-run\n  homenode import file users.csv --service ai --report conflicts.csv\n  homenode import undo 12",
	}
	parent.AddCommand(c.importExistingCommand(), c.importFileCommand(), c.listImportsCommand(), c.showImportCommand(), c.undoImportCommand())
	return parent
}

// importFlags are those of every import.
type importFlags struct {
	service string
	dryRun  bool
	resume  *int64
	report  string
}

func (c *console) importFlags(cmd *cobra.Command) *importFlags {
	f := &importFlags{}
	c.serviceFlag(cmd, &f.service, "the service")
	flags := cmd.Flags()
	flags.BoolVar(&f.dryRun, "dry-run", false, "report what would happen, change nothing")
	value(flags, "resume", "ID", "go on with the import of this ID, which was cut off", func(text string) error {
		id, err := positiveID(text)
		f.resume = &id
		return err
	})
	textFlag(flags, &f.report, "report", "file", "write every user who was not bound to this file, .csv or .json")
	must(cmd.MarkFlagRequired("service"))
	cmd.MarkFlagsMutuallyExclusive("dry-run", "resume")
	return f
}

func (c *console) importExistingCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "existing NODE",
		Short: "Bind all active users of the nodes' user table who have no binding",
		Long:  "Bind every active user of the nodes' own user table (sys_user) who has no binding to NODE:\nthe first step where a gateway is put in front of a node that is in use.",
		Example: "  homenode import existing --service ai node-1 --dry-run --report conflicts.csv\n" +
			"  homenode import existing --service ai node-1\n  homenode import existing --service ai node-1 --resume 12",
		Args:              ids("NODE"),
		ValidArgsFunction: first(c.completeNodes),
	}
	f := c.importFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		again := []string{"existing", "--service", f.service, args[0]}
		return c.runImport(cmd, f, nil, again, func(ctx context.Context, gateway *api.ClientWithResponses) (*http.Response, error) {
			return gateway.ImportExisting(ctx, &api.ImportExistingParams{DryRun: &f.dryRun},
				api.ImportExistingRequest{ServiceID: f.service, NodeID: args[0], ImportID: f.resume}, acceptEvents)
		})
	}
	return cmd
}

func (c *console) importFileCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "file FILE",
		Short: "Bind the users of a CSV file who have no binding",
		Long: "Bind the users of a CSV file, or of standard input if FILE is -. Its first line names the\ncolumns, in any order: userId, username (at least one of them) and nodeId (not needed with\n" +
			"--node). UTF-8, at most 256 MiB.",
		Example: "  homenode import file users.csv --service ai --node node-1 --dry-run\n" +
			"  psql -c 'COPY (…) TO STDOUT CSV HEADER' | homenode import file - --service ai",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"csv"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	f := c.importFlags(cmd)
	idFlag(cmd.Flags(), &node, "node", "node", "the node, for lines that name none")
	must(cmd.RegisterFlagCompletionFunc("node", c.completeNodes))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		users := cmd.InOrStdin()
		var source os.FileInfo
		if args[0] != "-" {
			file, err := os.Open(args[0])
			if err != nil {
				return UsageError{err}
			}
			defer func() { _ = file.Close() }()
			if source, err = file.Stat(); err != nil {
				return UsageError{err}
			}
			users = file
		}
		again := []string{"file", args[0], "--service", f.service}
		if node != "" {
			again = append(again, "--node", node)
		}
		return c.runImport(cmd, f, source, again, func(ctx context.Context, gateway *api.ClientWithResponses) (*http.Response, error) {
			return gateway.ImportFileWithBody(ctx, &api.ImportFileParams{
				ServiceID: f.service, NodeID: optional(node), ImportID: f.resume, DryRun: &f.dryRun,
			}, "text/csv", io.NopCloser(users), acceptEvents)
		})
	}
	return cmd
}

func acceptEvents(_ context.Context, request *http.Request) error {
	request.Header.Set("Accept", "application/x-ndjson")
	return nil
}

// runImport sends an import and follows its events to the end. source is the file
// that it reads, nil if there is none; again is the command line that does the same,
// without its flags.
func (c *console) runImport(cmd *cobra.Command, f *importFlags, source os.FileInfo, again []string, send func(context.Context, *api.ClientWithResponses) (*http.Response, error)) error {
	conn, err := c.connect(noLimit)
	if err != nil {
		return err
	}
	defer conn.close()
	report, err := newReport(f.report, source)
	if err != nil {
		return err
	}
	run := importRun{
		dryRun: f.dryRun, id: f.resume, report: report,
		progress: progress{w: cmd.ErrOrStderr(), terminal: isTerminal(cmd.ErrOrStderr()), now: time.Now},
	}
	err = run.follow(cmd.Context(), conn, send)
	run.progress.end()
	if err := errors.Join(err, report.close()); err != nil {
		return run.howToGoOn(err, c.commandLine(f, again))
	}
	return c.print(cmd, run.answer(f.report))
}

// commandLine is what the user typed, but for what differs in another run.
func (c *console) commandLine(f *importFlags, again []string) []string {
	line := append([]string{"homenode", "import"}, again...)
	if f.report != "" {
		line = append(line, "--report", f.report)
	}
	if c.server != "" {
		line = append(line, "--server", c.server)
	}
	return line
}

// importRun is what is known of an import that runs.
type importRun struct {
	dryRun    bool
	id        *int64
	counts    api.ImportCounts
	conflicts []api.ImportConflict // the first ones
	more      int64                // conflicts after them
	report    *lateReport
	progress  progress
}

// keptConflicts is how many conflicts an answer holds, as the document says of a report.
const keptConflicts = 1000

// errBroken is the error of events that end before the import does.
var errBroken = errors.New("the connection broke before the import was done")

func (r *importRun) follow(ctx context.Context, conn *connection, send func(context.Context, *api.ClientWithResponses) (*http.Response, error)) error {
	response, err := send(ctx, conn.api)
	if err != nil {
		return conn.explain(ctx, &unanswered{err})
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "application/x-ndjson") {
		body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		if err != nil {
			return conn.explain(ctx, &unanswered{err})
		}
		return conn.explain(ctx, bodyOf(response.StatusCode, body))
	}
	events := json.NewDecoder(response.Body)
	for {
		var event api.ImportEvent
		if err := events.Decode(&event); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted: %w", ctx.Err())
			}
			return fmt.Errorf("%w (%w)", errBroken, err)
		}
		if err := r.heard(event); err != nil || event.Event == api.Done {
			return err
		}
	}
}

func (r *importRun) heard(event api.ImportEvent) error {
	if event.ImportID != nil && *event.ImportID > 0 {
		r.id = event.ImportID
	}
	if event.Counts != nil {
		r.counts = *event.Counts
	}
	switch event.Event {
	case api.Begin:
		if err := r.report.begin(); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
		r.progress.begin(orZero(event.Total))
	case api.Progress:
		r.progress.show(r.counts)
	case api.Conflict:
		return r.conflict(orZero(event.Conflict))
	case api.Failed:
		return fmt.Errorf("the import failed: %s (%s)", escape(orZero(event.Message)), escape(orZero(event.Reason)))
	case api.Done:
		if event.Counts == nil {
			return errBroken
		}
		if err := r.report.begin(); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	default:
		return fmt.Errorf("%w (%q is no event)", errBroken, escape(string(event.Event)))
	}
	return nil
}

func (r *importRun) conflict(conflict api.ImportConflict) error {
	if len(r.conflicts) < keptConflicts {
		r.conflicts = append(r.conflicts, conflict)
	} else {
		r.more++
	}
	if err := r.report.add(conflict); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}

// howToGoOn adds to an error what to do about it.
func (r *importRun) howToGoOn(err error, line []string) error {
	var refusal *refusal
	switch {
	case errors.As(err, &refusal), ExitCode(err) != ExitFailed:
		return err // it has not begun
	case r.dryRun:
		return fmt.Errorf("%w\nNothing has changed: it was a dry run", err)
	case r.id == nil:
		return fmt.Errorf("%w\nSee with `homenode import list` whether it has begun", err)
	}
	return fmt.Errorf("%w\nWhat is bound is bound. Go on with: %s --resume %d", err, shellLine(line), *r.id)
}

// shownConflicts is how many conflicts are shown below the summary.
const shownConflicts = 20

func (r *importRun) answer(report string) answer {
	data := api.ImportReport{ImportID: r.id, DryRun: r.dryRun, Counts: r.counts, Conflicts: r.conflicts, ConflictsLeftOut: r.more}
	if data.Conflicts == nil {
		data.Conflicts = []api.ImportConflict{}
	}
	id := none
	if r.id != nil {
		id = number(*r.id)
	}
	n := r.counts
	a := answer{data: data, tables: []grid{{
		header: []string{"import", "read", "bound", "unchanged", "skipped", "conflicts", "invalid"},
		rows:   [][]string{{id, number(n.Read), number(n.Bound), number(n.Unchanged), number(n.Skipped), number(n.Conflicts), number(n.Invalid)}},
	}}}
	if r.dryRun {
		a.note = "dry run: nothing has changed"
	}
	if len(r.conflicts) == 0 {
		return a
	}
	shown := r.conflicts[:min(len(r.conflicts), shownConflicts)]
	a.tables = append(a.tables, conflictTable(shown))
	left := int64(len(r.conflicts)-len(shown)) + r.more
	switch {
	case report != "":
		a.lines = []string{"All " + number(int64(len(shown))+left) + " are in " + report + "."}
	case left > 0:
		a.lines = []string{"And " + number(left) + " more; --report conflicts.csv writes all of them."}
	}
	return a
}

func conflictTable(conflicts []api.ImportConflict) grid {
	g := grid{header: []string{"line", "user", "username", "wanted node", "reason", "bound to", "name of user", "detail"}}
	for _, c := range conflicts {
		g.rows = append(g.rows, []string{
			number(c.Line), c.UserID, c.Username, c.NodeID, string(c.Reason), c.BoundNodeID, c.OtherUserID, c.Detail,
		})
	}
	return g
}

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// shellLine is the arguments as one would type them.
func shellLine(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if !plainWord.MatchString(arg) {
			quoted[i] = "'" + strings.ReplaceAll(escape(arg), "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

func (c *console) listImportsCommand() *cobra.Command {
	var service string
	var page pageFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List imports, the newest first",
		Example: "  homenode import list --service ai",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			found, err := answered(gateway.ListImportsWithResponse(ctx, &api.ListImportsParams{ServiceID: optional(service), Page: page.page, Size: page.size}))
			if err != nil {
				return answer{}, err
			}
			d := found.Data
			return answer{data: d, tables: []grid{importTable(d.Records...)}, note: pageNote(d.Total, d.Page, d.Size, "import")}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "only the imports of this service")
	page.register(cmd)
	return cmd
}

func (c *console) showImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Short:             "Show one import",
		Example:           "  homenode import show 12",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(c.completeImports),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			id, err := positiveID(args[0])
			if err != nil {
				return answer{}, err
			}
			found, err := answered(gateway.GetImportWithResponse(ctx, id))
			if err != nil {
				return answer{}, err
			}
			a := answer{data: found.Data, tables: []grid{importTable(found.Data)}}
			if found.Data.State == api.RUNNING && time.Since(found.Data.UpdateTime) > cutOffAfter {
				a.note = fmt.Sprintf("untouched for %s: it was cut off; go on with --resume %d", time.Since(found.Data.UpdateTime).Round(time.Second), id)
			}
			return a, nil
		}),
	}
}

// cutOffAfter is the document's: an import that runs is touched more often.
const cutOffAfter = time.Minute

func (c *console) undoImportCommand() *cobra.Command {
	undo := c.askWithin(noLimit, func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
		id, err := positiveID(args[0])
		if err != nil {
			return answer{}, err
		}
		undone, err := answered(gateway.UndoImportWithResponse(ctx, id))
		if err != nil {
			return answer{}, err
		}
		d := undone.Data
		return answer{data: d, tables: []grid{importTable(d)}, note: fmt.Sprintf("%s deleted, %d kept since they have changed", plural(d.Removed, "binding"), d.Kept)}, nil
	})
	return &cobra.Command{
		Use:               "undo ID",
		Short:             "Delete the bindings that an import made",
		Long:              "Delete the bindings that an import made. Those that have changed since stay. It may be\nrun again where it was cut off.",
		Example:           "  homenode import undo 12",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: first(c.completeImports),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := undo(cmd, args)
			var refusal *refusal
			if err == nil || ExitCode(err) == ExitUsage || errors.As(err, &refusal) {
				return err
			}
			return fmt.Errorf("%w\nRun it again: it goes on", err)
		},
	}
}

func importTable(imports ...api.Import) grid {
	g := grid{header: []string{"import", "begun", "service", "source", "node", "state", "read", "bound", "conflicts", "invalid", "removed", "kept", "actor"}}
	for _, i := range imports {
		g.rows = append(g.rows, []string{
			number(i.ID), clock(i.CreateTime), i.ServiceID, string(i.Source), orNone(i.NodeID), string(i.State),
			number(i.Counts.Read), number(i.Counts.Bound), number(i.Counts.Conflicts), number(i.Counts.Invalid), number(i.Removed), number(i.Kept), i.Actor,
		})
	}
	return g
}
