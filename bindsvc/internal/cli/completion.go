package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

// completionLimit is how long a shell waits for the service; after it, nothing is offered.
const completionLimit = 2 * time.Second

// completeServices offers the services.
func (c *console) completeServices(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd, func(ctx context.Context, gateway *api.ClientWithResponses) (found []cobra.Completion, err error) {
		services, err := answered(gateway.ListServicesWithResponse(ctx))
		if err != nil {
			return nil, err
		}
		for _, s := range services.Data {
			found = append(found, cobra.CompletionWithDesc(s.ID, escape(s.Name)))
		}
		return found, nil
	})
}

// completeNodes offers the nodes, those of --service if it is given.
func (c *console) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var service *string
	if flag := cmd.Flags().Lookup("service"); flag != nil {
		service = optional(flag.Value.String())
	}
	return c.complete(cmd, func(ctx context.Context, gateway *api.ClientWithResponses) (found []cobra.Completion, err error) {
		nodes, err := answered(gateway.ListNodesWithResponse(ctx, &api.ListNodesParams{ServiceID: service}))
		if err != nil {
			return nil, err
		}
		for _, n := range nodes.Data {
			found = append(found, cobra.CompletionWithDesc(n.ID, escape(n.Name)))
		}
		return found, nil
	})
}

// first offers completions for the first argument only.
func first(offer cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, args, begun)
	}
}

// complete asks the service what to offer. A shell has no place for errors: they offer nothing.
func (c *console) complete(cmd *cobra.Command, offer func(context.Context, *api.ClientWithResponses) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	conn, err := c.connect(completionLimit)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.close()
	found, err := offer(cmd.Context(), conn.api)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeGuards offers the guards.
func (c *console) completeGuards(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd, func(ctx context.Context, gateway *api.ClientWithResponses) (found []cobra.Completion, err error) {
		policies, err := answered(gateway.GetPoliciesWithResponse(ctx))
		if err != nil {
			return nil, err
		}
		for _, g := range policies.Data.Guards {
			found = append(found, g.Name)
		}
		return found, nil
	})
}

// completeKinds offers the kinds of policy for the first argument.
func (c *console) completeKinds(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return first(cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp))(cmd, args, begun)
}

// completePolicies offers the kinds, then the policies of the kind.
func (c *console) completePolicies(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return c.completeKinds(cmd, args, begun)
	case len(args) == 1 && args[0] == string(api.KindGuards):
		return c.completeGuards(cmd, args, begun)
	case len(args) == 1 && verifyKind(args[0]) == nil:
		return c.completePoliciesOf(cmd, api.PolicyKind(args[0]))
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeApps offers the apps.
func (c *console) completeApps(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.completePoliciesOf(cmd, api.KindApps)
}

func (c *console) completePoliciesOf(cmd *cobra.Command, kind api.PolicyKind) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd, func(ctx context.Context, gateway *api.ClientWithResponses) (found []cobra.Completion, err error) {
		size := largestPage
		policies, err := answered(gateway.ListPoliciesWithResponse(ctx, kind, &api.ListPoliciesParams{Size: &size}))
		if err != nil {
			return nil, err
		}
		for _, p := range policies.Data.Records {
			found = append(found, p.ID)
		}
		return found, nil
	})
}

// completeImports offers the newest imports.
func (c *console) completeImports(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd, func(ctx context.Context, gateway *api.ClientWithResponses) (found []cobra.Completion, err error) {
		imports, err := answered(gateway.ListImportsWithResponse(ctx, &api.ListImportsParams{}))
		if err != nil {
			return nil, err
		}
		for _, i := range imports.Data.Records {
			found = append(found, cobra.CompletionWithDesc(number(i.ID), string(i.State)+" "+i.ServiceID))
		}
		return found, nil
	})
}
