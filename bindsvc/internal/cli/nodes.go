package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) nodesCommand() *cobra.Command {
	parent := c.listNodesCommand()
	parent.Use = "nodes"
	parent.Short = "List, add, change, delete and probe nodes"
	parent.Long = "A node is one machine of a service. Without a subcommand the nodes are listed."
	parent.Example = "  homenode nodes --service ai\n  homenode nodes add ai node-2 --base-url http://10.0.0.8:8980\n" +
		"  homenode nodes set node-1 --accept-new=false     drain: keeps its users, gets no new ones"
	parent.AddCommand(c.listNodesCommand(), c.addNodeCommand(), c.setNodeCommand(), c.deleteNodeCommand(), c.checkNodeCommand())
	return parent
}

func (c *console) listNodesCommand() *cobra.Command {
	var service string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the nodes",
		Example: "  homenode nodes list --service ai -o json",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			found, err := answered(gateway.ListNodesWithResponse(ctx, &api.ListNodesParams{ServiceID: optional(service)}))
			if err != nil {
				return answer{}, err
			}
			return answer{data: found.Data, tables: []grid{nodeTable(found.Data...)}}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "only the nodes of this service")
	return cmd
}

// nodeFlags are those of add and set.
func nodeFlags(cmd *cobra.Command, change *api.NodeChange) {
	flags := cmd.Flags()
	optionalText(flags, &change.BaseURL, "base-url", "URL", "URL of the node: scheme://host:port, no path")
	optionalText(flags, &change.Name, "name", "name", "name for people")
	value(flags, "weight", "share", "share of new users, 1 to 1000 (a new node: 1), where the service's placement is weighted", func(text string) error {
		weight, err := strconv.Atoi(text)
		if err != nil || weight < 1 || weight > 1000 {
			return fmt.Errorf("want a number from 1 to 1000")
		}
		change.Weight = &weight
		return nil
	})
	optionalFlag(flags, &change.AcceptNew, "accept-new", "give the node new users, as a new node does; =false: it keeps those it has and gets no more")
	optionalText(flags, &change.TraefikService, "traefik-service", "service", "service of another Traefik provider that reaches the node, like node-1@docker")
	optionalText(flags, &change.Remark, "remark", "text", "text for the next administrator")
	optionalFlag(flags, &change.Enabled, "enabled", "let the node serve, as a new node does; =false: its users get 503, and no other node")
	optionalNoFlag(flags, &change.Enabled, "disabled", "the same as --enabled=false")
	cmd.MarkFlagsMutuallyExclusive("enabled", "disabled")
}

func (c *console) addNodeCommand() *cobra.Command {
	var fields api.NodeChange
	cmd := &cobra.Command{
		Use:               "add SERVICE NODE",
		Short:             "Add a node to a service",
		Example:           "  homenode nodes add ai node-2 --base-url http://10.0.0.8:8980 --weight 2",
		Args:              ids("SERVICE", "NODE"),
		ValidArgsFunction: first(c.completeServices),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			added, err := answered(gateway.CreateNodeWithResponse(ctx, args[0], api.NewNode{
				ID: args[1], Name: fields.Name, BaseURL: *fields.BaseURL, TraefikService: fields.TraefikService,
				Enabled: fields.Enabled, Weight: fields.Weight, AcceptNew: fields.AcceptNew, Remark: fields.Remark,
			}))
			if err != nil {
				return answer{}, err
			}
			return answer{data: added.Data, tables: []grid{nodeTable(added.Data)}}, nil
		}),
	}
	nodeFlags(cmd, &fields)
	must(cmd.MarkFlagRequired("base-url"))
	return cmd
}

func (c *console) setNodeCommand() *cobra.Command {
	var change api.NodeChange
	cmd := &cobra.Command{
		Use:               "set NODE",
		Short:             "Change a node",
		Long:              "Change the fields that are given. The change is refused if somebody else changes\nthe node at the same moment.",
		Example:           "  homenode nodes set node-1 --accept-new=false\n  homenode nodes set node-1 --base-url http://10.0.0.9:8980 --remark 'moved in May'",
		Args:              ids("NODE"),
		ValidArgsFunction: first(c.completeNodes),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			if change == (api.NodeChange{}) {
				return answer{}, usagef("nothing to change: give at least one flag; see homenode nodes set --help")
			}
			before, err := answered(gateway.GetNodeWithResponse(ctx, args[0]))
			if err != nil {
				return answer{}, err
			}
			after, err := answered(gateway.UpdateNodeWithResponse(ctx, args[0], &api.UpdateNodeParams{IfMatch: &before.Data.Etag}, change))
			if err != nil {
				return answer{}, err
			}
			return answer{data: after.Data, tables: []grid{nodeTable(after.Data)}}, nil
		}),
	}
	nodeFlags(cmd, &change)
	return cmd
}

func (c *console) deleteNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NODE",
		Short:             "Delete a node that nobody is bound to",
		Long:              "Delete a node. Refused while users are bound to it, or while it is the default node\nof its service.",
		Example:           "  homenode nodes delete node-2",
		Args:              ids("NODE"),
		ValidArgsFunction: first(c.completeNodes),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			deleted, err := answered(gateway.DeleteNodeWithResponse(ctx, args[0]))
			if err != nil {
				return answer{}, err
			}
			return answer{data: deleted.Data, lines: []string{"node " + args[0] + " is deleted"}}, nil
		}),
	}
}

func (c *console) checkNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "check NODE",
		Short:             "Probe a node now",
		Long:              "Have the service probe the node now, and show its health. Ends with 0 whether the\nnode is up or down.",
		Example:           "  homenode nodes check node-1",
		Args:              ids("NODE"),
		ValidArgsFunction: first(c.completeNodes),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			checked, err := answered(gateway.CheckNodeWithResponse(ctx, args[0]))
			if err != nil {
				return answer{}, err
			}
			h := checked.Data
			return answer{data: h, tables: []grid{{
				header: []string{"node", "state", "since", "checked", "failures", "last error"},
				rows:   [][]string{{args[0], string(h.State), clockOrNone(h.Since), clockOrNone(h.CheckedAt), number(int64(h.Failures)), h.LastError}},
			}}}, nil
		}),
	}
}

func nodeTable(nodes ...api.Node) grid {
	g := grid{header: []string{"node", "service", "name", "base url", "state", "enabled", "accepts new", "weight", "traefik service", "remark"}}
	for _, n := range nodes {
		g.rows = append(g.rows, []string{
			n.ID, n.ServiceID, n.Name, n.BaseURL, string(n.Health.State), yesNo(n.Enabled), yesNo(n.AcceptNew), number(int64(n.Weight)), n.TraefikService, n.Remark,
		})
	}
	return g
}
