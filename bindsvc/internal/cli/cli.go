package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

// Exit codes of the command line.
const (
	ExitDone        = 0
	ExitFailed      = 1 // refused or failed
	ExitUsage       = 2 // wrong arguments or settings
	ExitUnreachable = 3 // the service could not be reached
)

// ExitCodes is what a help text says about them.
const ExitCodes = "Exit codes: 0 done; 1 refused or failed; 2 wrong arguments or settings; 3 the service could not be reached."

// UsageError is an error of whoever typed the command or wrote the settings.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e UsageError) Unwrap() error { return e.Err }

// ExitCode is ExitUsage.
func (UsageError) ExitCode() int { return ExitUsage }

func usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// ExitCode returns the exit code that err asks for by a method ExitCode, of itself
// or of an error that it wraps; else ExitFailed, and ExitDone for no error.
func ExitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return ExitFailed
}

// Commands returns the administrator's commands. They read their settings with
// getenv when they run, and nothing before.
func Commands(getenv func(string) string) []*cobra.Command {
	c := &console{getenv: getenv, format: "table"}
	commands := []*cobra.Command{
		c.statusCommand(), c.servicesCommand(), c.nodesCommand(), c.reloadCommand(),
		c.routesCommand(), c.bindCommand(), c.unbindCommand(), c.importCommand(),
		c.policiesCommand(), c.guardsCommand(), c.maintenanceCommand(), c.appsCommand(), c.rolesCommand(), c.kickOutCommand(),
		c.explainCommand(), c.auditCommand(),
	}
	for _, command := range commands {
		flags := command.PersistentFlags()
		textFlag(flags, &c.server, "server", "URL", "URL of the admin API (HOMENODE_ADMIN_URL; by default that of the service on this machine)")
		forms := []string{"table", "json"}
		flags.VarP(&valueFlag{kind: "form", given: c.format, set: oneOf(forms, func(form string) { c.format = form })}, "output", "o", "form of the answer: table or json")
		must(command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)))
	}
	return commands
}

// Strict makes every wrong argument, flag and command name below root a UsageError;
// cobra itself tells them from no other error. It is called when root has all its commands.
func Strict(root *cobra.Command) {
	root.SetFlagErrorFunc(wrongUsage)
	root.InitDefaultCompletionCmd()
	strict(root)
}

func strict(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if verify := cmd.Args; verify != nil || cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if cmd.HasSubCommands() && len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			if verify != nil {
				if err := verify(cmd, args); err != nil {
					return wrongUsage(cmd, err)
				}
			}
			// cobra would ask the same two after this, with errors of no type.
			if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
				return wrongUsage(cmd, err)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(name); len(similar) > 0 {
		hint = fmt.Sprintf(" (is it %q?)", similar[0])
	}
	return wrongUsage(cmd, fmt.Errorf("unknown command %q of %q%s", name, cmd.CommandPath(), hint))
}

func wrongUsage(cmd *cobra.Command, err error) error {
	if ExitCode(err) == ExitUsage {
		return err
	}
	return usagef("%w; see %s --help", err, cmd.CommandPath())
}

// console is what all commands share: the settings and the flags that each of them has.
type console struct {
	getenv func(string) string
	server string
	format string
}

// question asks the service one thing.
type question func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error)

// ask makes the run of a command from its question.
func (c *console) ask(q question) func(*cobra.Command, []string) error {
	return c.askWithin(plainLimit, q)
}

func (c *console) askWithin(limit time.Duration, q question) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := c.connect(limit)
		if err != nil {
			return err
		}
		defer conn.close()
		a, err := q(cmd.Context(), conn.api, args)
		if err != nil {
			return conn.explain(cmd.Context(), err)
		}
		return c.print(cmd, a)
	}
}

// idPattern is the document's Id. An id becomes part of a path, which another text could leave.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

var errNoID = errors.New("want 1 to 64 of A-Z a-z 0-9 . _ -, beginning with a letter or digit")

// ids takes as many arguments as it has names, all of them ids.
func ids(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return fmt.Errorf("want %s, got %d arguments", strings.Join(names, " "), len(args))
		}
		for i, id := range args {
			if !idPattern.MatchString(id) {
				return fmt.Errorf("%s %q: %w", names[i], id, errNoID)
			}
		}
		return nil
	}
}

func must(err error) {
	if err != nil {
		panic(err) // a flag that this package has just defined
	}
}
