// Package app wires Homenode together: the only package that knows all the others.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/internal/cli"
	"github.com/homenode/homenode/bindsvc/internal/config"
	"github.com/homenode/homenode/bindsvc/internal/postgres"
)

// usageError is an error of whoever typed the command or wrote the settings.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// ExitCode is what cli.ExitCode asks an error for.
func (usageError) ExitCode() int { return cli.ExitUsage }

// Run runs the command line and returns the exit code. It ends when the command
// is done or, in order, when ctx ends.
func Run(ctx context.Context, args []string, getenv config.Getenv, stdout, stderr io.Writer) int {
	root := command(getenv)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "homenode: %v\n", err)
	}
	return cli.ExitCode(err)
}

// The groups of commands in the help text.
const (
	groupService = "service"
	groupAdmin   = "admin"
)

func command(getenv config.Getenv) *cobra.Command {
	root := &cobra.Command{
		Use:   "homenode",
		Short: "Keeps every user on the one machine that holds their data",
		Long: "Homenode is the binding service behind the Traefik plugin of the same name:\nit knows which node holds a user's data and never sends the user to another one.\n\n" +
			"Commands that administer a running service find an embedded one by themselves in the\nfolder where it runs. Elsewhere HOMENODE_ADMIN_URL says where the service is, and\nHOMENODE_ADMIN_TOKEN, or a file that HOMENODE_ADMIN_TOKEN_FILE names, who you are.\n\n" +
			cli.ExitCodes,
		Example:       "  homenode demo                 a whole gateway on this machine, to look at\n  homenode serve                run, everything in one file below ./data\n  homenode config check         report every problem of the settings\n  homenode status               ask the running service what it serves",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(&cobra.Group{ID: groupService, Title: "Run the service:"}, &cobra.Group{ID: groupAdmin, Title: "Administer a running service:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, command := range commands {
			command.GroupID = group
			root.AddCommand(command)
		}
	}
	add(groupService, serveCommand(getenv), migrateCommand(getenv), configCommand(getenv), healthCommand(getenv), demoCommand(getenv), versionCommand())
	add(groupAdmin, cli.Commands(getenv)...)
	cli.Strict(root)
	return root
}

func load(getenv config.Getenv) (config.Config, error) {
	c, err := config.Load(getenv)
	if err != nil {
		return c, usageError{fmt.Errorf("settings:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))}
	}
	return c, nil
}

func logger(c config.Config, to io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Log.Level)) // verified by config
	options := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}

func serveCommand(getenv config.Getenv) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the binding service",
		Long: "Run the binding service. Without PG_URL and Redis everything is kept in one file\nbelow HOMENODE_DATA_DIR (./data); with both, all state is in PostgreSQL and Redis.\n" +
			"SIGTERM or Ctrl-C finishes the requests that run, then ends with 0.",
		Example: "  homenode serve\n  HOMENODE_CONFIG=/etc/homenode.yml homenode serve\n  PG_URL=postgres://gateway@db/gateway REDIS_HOST=redis HOMENODE_SECRET_FILE=/run/secrets/homenode homenode serve",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(getenv)
			if err != nil {
				return err
			}
			return Serve(cmd.Context(), c, logger(c, cmd.ErrOrStderr()))
		},
	}
}

func migrateCommand(getenv config.Getenv) *cobra.Command {
	return &cobra.Command{
		Use:     "migrate",
		Short:   "Bring the database to this version's schema (serve does it too)",
		Long:    "Bring the PostgreSQL database to this version's schema, or migrate an existing\ngateway's tables in place with all bindings. serve does the same when it starts.",
		Example: "  PG_URL=jdbc:postgresql://db:5432/gateway PG_USER=gateway PG_PASSWORD=… REDIS_HOST=redis HOMENODE_SECRET=… homenode migrate",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(getenv)
			if err != nil {
				return err
			}
			if c.Embedded() {
				return usageError{errors.New("migrate: PG_URL is not set; the embedded file migrates itself")}
			}
			if err := postgres.Migrate(cmd.Context(), postgresConfig(c, logger(c, cmd.ErrOrStderr()))); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the database has this version's schema")
			return err
		},
	}
}

func configCommand(getenv config.Getenv) *cobra.Command {
	check := &cobra.Command{
		Use:     "check",
		Short:   "Report every problem of homenode.yml and the environment at once",
		Example: "  HOMENODE_CONFIG=homenode.yml homenode config check",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(getenv)
			if err != nil {
				return err
			}
			mode := "embedded: one file below " + c.DataDir
			if !c.Embedded() {
				mode = "production: PostgreSQL and Redis"
				st, err := openStores(cmd.Context(), c, slog.New(slog.DiscardHandler)) // connects to nothing
				if err != nil {
					return err
				}
				defer func() { _ = st.close() }()
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "settings are fine (%s)\n", mode)
			return err
		},
	}
	parent := &cobra.Command{Use: "config", Short: "Work with the settings", Args: noArgs, RunE: help}
	parent.AddCommand(check)
	return parent
}

func healthCommand(getenv config.Getenv) *cobra.Command {
	return &cobra.Command{
		Use:     "health",
		Short:   "Ask the running service on this machine whether it is ready",
		Long:    "Ask /readyz of the service that runs with the same settings on this machine; for a\ncontainer's health check. Ends with 0 if it is ready, with 1 if it is not or cannot be reached.",
		Example: "  homenode health",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(getenv)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, localURL(c.Listen)+"/readyz", nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return fmt.Errorf("is `homenode serve` running? %w", err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("not ready: %s", response.Status)
			}
			return nil
		},
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "homenode", version())
			return err
		},
	}
}

// version is that of the module, or the revision it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return "devel"
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q is no argument of %q; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())}
	}
	return nil
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func postgresConfig(c config.Config, log *slog.Logger) postgres.Config {
	return postgres.Config{URL: string(c.PostgresURL), User: c.PGUser, Password: string(c.PGPassword), Log: log}
}

// ensureDir makes the data folder, for this user only.
func ensureDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return usageError{fmt.Errorf("dataDir (HOMENODE_DATA_DIR): %w", err)}
	}
	return nil
}
