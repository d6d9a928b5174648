package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) servicesCommand() *cobra.Command {
	list := c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
		found, err := answered(gateway.ListServicesWithResponse(ctx))
		if err != nil {
			return answer{}, err
		}
		return answer{data: found.Data, tables: []grid{serviceTable(found.Data...)}}, nil
	})
	parent := &cobra.Command{
		Use:     "services",
		Short:   "List, add, change and delete services",
		Long:    "A service is a backend application behind one path prefix. Without a subcommand\nthe services are listed.",
		Example: "  homenode services\n  homenode services add ai --path-prefix /js/a --login-path /sys/login\n  homenode services set ai --default-node node-1",
		Args:    cobra.NoArgs,
		RunE:    list,
	}
	parent.AddCommand(
		&cobra.Command{Use: "list", Short: "List the services", Example: "  homenode services list -o json", Args: cobra.NoArgs, RunE: list},
		c.addServiceCommand(), c.setServiceCommand(), c.deleteServiceCommand(),
	)
	return parent
}

// serviceFlags are those of add and set.
func (c *console) serviceFlags(cmd *cobra.Command, change *api.ServiceChange) {
	flags := cmd.Flags()
	optionalText(flags, &change.PathPrefix, "path-prefix", "path", "path that every request of the service begins with, like /js/a")
	optionalText(flags, &change.Name, "name", "name", "name for people")
	optionalText(flags, &change.LoginPath, "login-path", "path", "path of the login, below the prefix")
	optionalText(flags, &change.LogoutPath, "logout-path", "path", "path of the logout, below the prefix")
	optionalText(flags, &change.HealthPath, "health-path", "path", "path at a node that is probed (a new service: /actuator/health)")
	value(flags, "default-node", "node", "node that users without a binding are bound to; \"\" for none", func(id string) error {
		change.DefaultNodeID = api.NullableText{Given: true, Value: id}
		return nil
	})
	placements := []string{string(api.RoundRobin), string(api.Weighted), string(api.FewestBindings)}
	value(flags, "placement", "how", "how a user without a node gets one: "+strings.Join(placements, ", ")+" (a new service: the first)", oneOf(placements, func(word string) {
		change.Placement = (*api.Placement)(&word)
	}))
	optionalFlag(flags, &change.Enabled, "enabled", "give the service its route, as a new service has it; =false takes it away")
	optionalNoFlag(flags, &change.Enabled, "disabled", "the same as --enabled=false")
	cmd.MarkFlagsMutuallyExclusive("enabled", "disabled")
	must(cmd.RegisterFlagCompletionFunc("placement", cobra.FixedCompletions(placements, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("default-node", c.completeNodes))
}

func (c *console) addServiceCommand() *cobra.Command {
	var fields api.ServiceChange
	cmd := &cobra.Command{
		Use:     "add ID",
		Short:   "Add a service",
		Long:    "Add a service. Its default node can be set once it has nodes.",
		Example: "  homenode services add ai --path-prefix /js/a --login-path /sys/login --name 'AI server'",
		Args:    ids("ID"),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			added, err := answered(gateway.CreateServiceWithResponse(ctx, api.NewService{
				ID: args[0], Name: fields.Name, PathPrefix: *fields.PathPrefix, LoginPath: fields.LoginPath, LogoutPath: fields.LogoutPath,
				HealthPath: fields.HealthPath, DefaultNodeID: fields.DefaultNodeID, Enabled: fields.Enabled, Placement: fields.Placement,
			}))
			if err != nil {
				return answer{}, err
			}
			return answer{data: added.Data, tables: []grid{serviceTable(added.Data)}}, nil
		}),
	}
	c.serviceFlags(cmd, &fields)
	must(cmd.MarkFlagRequired("path-prefix"))
	return cmd
}

func (c *console) setServiceCommand() *cobra.Command {
	var change api.ServiceChange
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: "Change a service",
		Long:  "Change the fields that are given. The change is refused if somebody else changes\nthe service at the same moment.",
		Example: "  homenode services set ai --default-node node-1 --placement fewest-bindings\n" +
			"  homenode services set ai --default-node ''     no default node any more\n  homenode services set ai --enabled=false",
		Args:              ids("ID"),
		ValidArgsFunction: first(c.completeServices),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			if change == (api.ServiceChange{}) {
				return answer{}, usagef("nothing to change: give at least one flag; see homenode services set --help")
			}
			before, err := answered(gateway.GetServiceWithResponse(ctx, args[0]))
			if err != nil {
				return answer{}, err
			}
			after, err := answered(gateway.UpdateServiceWithResponse(ctx, args[0], &api.UpdateServiceParams{IfMatch: &before.Data.Etag}, change))
			if err != nil {
				return answer{}, err
			}
			return answer{data: after.Data, tables: []grid{serviceTable(after.Data)}}, nil
		}),
	}
	c.serviceFlags(cmd, &change)
	return cmd
}

func (c *console) deleteServiceCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "delete ID",
		Short:             "Delete a service that has neither nodes nor bindings",
		Example:           "  homenode services delete ai",
		Args:              ids("ID"),
		ValidArgsFunction: first(c.completeServices),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			deleted, err := answered(gateway.DeleteServiceWithResponse(ctx, args[0]))
			if err != nil {
				return answer{}, err
			}
			return answer{data: deleted.Data, lines: []string{"service " + args[0] + " is deleted"}}, nil
		}),
	}
}

func (c *console) reloadCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "reload",
		Short:   "Have the service read services and nodes now",
		Long:    "Have the service read services and nodes from its database now. It hears of every\nchange by itself; this is for one that no instance could hear of.",
		Example: "  homenode reload",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			read, err := answered(gateway.ReloadWithResponse(ctx))
			if err != nil {
				return answer{}, err
			}
			return answer{data: read.Data, lines: []string{"services and nodes are read"}}, nil
		}),
	}
}

func serviceTable(services ...api.Service) grid {
	g := grid{header: []string{"service", "name", "path prefix", "login", "logout", "health", "default node", "placement", "enabled", "nodes"}}
	for _, s := range services {
		nodes := none
		if s.Nodes != nil {
			nodes = number(int64(len(*s.Nodes)))
		}
		g.rows = append(g.rows, []string{
			s.ID, s.Name, s.PathPrefix, s.LoginPath, s.LogoutPath, s.HealthPath, orNone(s.DefaultNodeID), string(s.Placement), yesNo(s.Enabled), nodes,
		})
	}
	return g
}
