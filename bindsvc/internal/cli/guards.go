package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) guardsCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:     "guards",
		Short:   "Show the guards; switch one on, off or to shadow mode",
		Long:    "Show the guards in the order in which they check, and turn their master switches, for all\nservices at once. A switch works while the database is down, as long as Redis is there.",
		Example: "  homenode guards\n  homenode guards shadow rate-limit     counts what it would refuse, refuses nothing\n  homenode guards off access --remark 'roles are being imported'",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			found, err := answered(gateway.GetPoliciesWithResponse(ctx))
			if err != nil {
				return answer{}, err
			}
			return answer{data: found.Data.Guards, tables: []grid{guardTable(found.Data.Guards)}}, nil
		}),
	}
	parent.AddCommand(
		c.switchCommand("on", "Let a guard refuse again", true, false),
		c.switchCommand("off", "Let a guard check nothing", false, false),
		c.switchCommand("shadow", "Let a guard count what it would refuse, and refuse nothing", true, true),
	)
	return parent
}

func (c *console) switchCommand(name, short string, enabled, shadow bool) *cobra.Command {
	var remark *string
	cmd := &cobra.Command{
		Use:               name + " GUARD",
		Short:             short,
		Long:              short + ", for all services at once. homenode guards lists them.",
		Example:           "  homenode guards " + name + " rate-limit",
		Args:              ids("GUARD"),
		ValidArgsFunction: first(c.completeGuards),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			return setPolicy(ctx, gateway, api.KindGuards, args[0], nil, api.GuardSwitch{Enabled: &enabled, Shadow: &shadow, Remark: remark})
		}),
	}
	optionalText(cmd.Flags(), &remark, "remark", "text", "text for the next administrator")
	return cmd
}

// defaultMaintenance is the policy of maintenance on and off where none is named.
const defaultMaintenance = "main"

func (c *console) maintenanceCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:   "maintenance",
		Short: "Turn users away while something is repaired, and let them in again",
		Long: "While a maintenance is on, requests are answered with its message and its expected end, but\nfor those of testers. It takes effect on all instances at once, and also while the database\n" +
			"is down, as long as Redis is there. Without a subcommand the maintenances are listed.",
		Example: "  homenode maintenance on --service ai --until 2h --message-zh 系统升级中 --tester-user 7\n  homenode maintenance off",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			return listPolicies(ctx, gateway, api.KindMaintenance, nil)
		}),
	}
	parent.AddCommand(c.maintenanceOnCommand(), c.maintenanceOffCommand())
	return parent
}

func (c *console) maintenanceOnCommand() *cobra.Command {
	id := defaultMaintenance
	var services, paths, addresses, users []string
	var message api.Text
	var until *time.Time
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "on",
		Short: "Turn users away from now on",
		Long:  "Turn users away from now on, until maintenance off. --until tells them when to come back; it\nends nothing by itself. A maintenance of the same id is replaced.",
		Example: "  homenode maintenance on --until 2026-01-31T10:00:00+08:00 --message-zh 系统升级中 --message-en 'We are upgrading.'\n" +
			"  homenode maintenance on --id reports --service ai --path '/js/a/reports/**' --until 30m --tester-address 10.0.0.0/8",
		Args: cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			policy := api.MaintenancePolicy{Services: list(services), Paths: list(paths), End: until}
			if message != (api.Text{}) {
				policy.Message = &message
			}
			if len(addresses)+len(users) > 0 {
				policy.Testers = &api.Testers{Addresses: list(addresses), Users: list(users)}
			}
			return setPolicy(ctx, gateway, api.KindMaintenance, id, &api.SetPolicyParams{DryRun: ifTrue(dryRun)}, policy)
		}),
	}
	flags := cmd.Flags()
	c.servicesFlag(cmd, &services, "only this service; may be given several times")
	texts(flags, &paths, "path", "pattern", "only this path, like '/js/a/reports/**'; may be given several times")
	optionalText(flags, &message.Zh, "message-zh", "text", "message in Chinese")
	optionalText(flags, &message.En, "message-en", "text", "message in English")
	value(flags, "until", "time", "expected end (2026-01-31T10:00:00+08:00), or in how long: 30m, 2h", func(text string) error {
		at, err := parseUntil(text, time.Now())
		until = &at
		return err
	})
	texts(flags, &addresses, "tester-address", "address", "let requests from this address or CIDR prefix through; may be given several times")
	texts(flags, &users, "tester-user", "id", "let this user through; may be given several times")
	idFlag(flags, &id, "id", "ID", "id of the maintenance (default "+defaultMaintenance+")")
	dryRunFlag(cmd, &dryRun)
	return cmd
}

func (c *console) maintenanceOffCommand() *cobra.Command {
	id := defaultMaintenance
	cmd := &cobra.Command{
		Use:     "off",
		Short:   "Let users in again",
		Long:    "Let users in again: delete the maintenance. Its history stays (homenode policies history\nmaintenance).",
		Example: "  homenode maintenance off\n  homenode maintenance off --id reports",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			done, err := deletePolicy(ctx, gateway, api.KindMaintenance, id, nil)
			var missing *refusal
			if errors.As(err, &missing) && missing.status == http.StatusNotFound && missing.message != "" {
				return answer{}, fmt.Errorf("there is no maintenance %s; homenode maintenance lists those that are on", id)
			}
			return done, err
		}),
	}
	idFlag(cmd.Flags(), &id, "id", "ID", "id of the maintenance (default "+defaultMaintenance+")")
	must(cmd.RegisterFlagCompletionFunc("id", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return c.completePoliciesOf(cmd, api.KindMaintenance)
	}))
	return cmd
}

// list is nil for an empty list, which the service takes for one that is not given.
func list(texts []string) *[]string {
	if len(texts) == 0 {
		return nil
	}
	return &texts
}
