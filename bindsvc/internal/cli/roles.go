package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) rolesCommand() *cobra.Command {
	parent := c.listRolesCommand()
	parent.Use = "roles"
	parent.Short = "List and set the roles of users"
	parent.Long = "Access policies of type rbac ask for roles. Without a subcommand the roles are listed."
	parent.Example = "  homenode roles --service ai --role operator\n  homenode roles set --service ai --user 7 operator auditor"
	parent.AddCommand(c.listRolesCommand(), c.setRolesCommand())
	return parent
}

func (c *console) listRolesCommand() *cobra.Command {
	var service string
	var user, role *string
	var page pageFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the roles of users",
		Example: "  homenode roles list --service ai --user 7",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			found, err := answered(gateway.ListRolesWithResponse(ctx, &api.ListRolesParams{
				ServiceID: optional(service), UserID: user, Role: role, Page: page.page, Size: page.size,
			}))
			if err != nil {
				return answer{}, err
			}
			d := found.Data
			g := grid{header: []string{"service", "user", "role"}}
			for _, r := range d.Records {
				g.rows = append(g.rows, []string{r.ServiceID, r.UserID, r.Role})
			}
			return answer{data: d, tables: []grid{g}, note: pageNote(d.Total, d.Page, d.Size, "role")}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "only roles in this service")
	optionalText(cmd.Flags(), &user, "user", "id", "only roles of this user")
	optionalText(cmd.Flags(), &role, "role", "role", "only this role")
	page.register(cmd)
	return cmd
}

// userFlag is the flag that names a user by id.
func userFlag(cmd *cobra.Command, to *string) {
	value(cmd.Flags(), "user", "id", "id of the user", func(text string) error {
		if text == "" {
			return errors.New("want a text")
		}
		*to = text
		return nil
	})
	must(cmd.MarkFlagRequired("user"))
}

func (c *console) setRolesCommand() *cobra.Command {
	var service, user string
	var noRole bool
	cmd := &cobra.Command{
		Use:     "set [ROLE ...]",
		Short:   "Give a user exactly these roles",
		Long:    "Give a user exactly these roles, 100 at most; those that are not named are taken away. To\ntake all away, say --none.",
		Example: "  homenode roles set --service ai --user 7 operator auditor\n  homenode roles set --service ai --user 7 --none",
		Args: func(_ *cobra.Command, args []string) error {
			if noRole != (len(args) == 0) {
				return errors.New("name the ROLEs, or say --none")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			set, err := answered(gateway.SetRolesWithResponse(ctx, service, user, api.RolesChange{Roles: append([]string{}, args...)}))
			if err != nil {
				return answer{}, err
			}
			roles := none
			if len(set.Data.Roles) > 0 {
				roles = strings.Join(set.Data.Roles, ", ")
			}
			return answer{data: set.Data, tables: []grid{{header: []string{"service", "user", "roles"}, rows: [][]string{{set.Data.ServiceID, set.Data.UserID, roles}}}}}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "the service")
	must(cmd.MarkFlagRequired("service"))
	userFlag(cmd, &user)
	cmd.Flags().BoolVar(&noRole, "none", false, "take all roles away")
	return cmd
}

func (c *console) kickOutCommand() *cobra.Command {
	var service, user string
	cmd := &cobra.Command{
		Use:     "kick-out",
		Short:   "Refuse all tokens that a user has now",
		Long:    "Refuse all tokens that a user has now, for 30 days, on every instance, where the identity\npolicy of the service uses the blacklist. A token of a later login is good; the binding stays.",
		Example: "  homenode kick-out --service ai --user 7",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			out, err := answered(gateway.KickOutWithResponse(ctx, api.KickOutRequest{ServiceID: service, UserID: api.UserID(user)}))
			if err != nil {
				return answer{}, err
			}
			a := answer{data: out.Data, lines: []string{fmt.Sprintf("user %s of %s is kicked out", user, service)}}
			if !out.Data.Enforced {
				a.note = "but the tokens still pass: no identity policy of the service uses the blacklist, or the guard is switched off"
			}
			return a, nil
		}),
	}
	c.serviceFlag(cmd, &service, "the service")
	must(cmd.MarkFlagRequired("service"))
	userFlag(cmd, &user)
	return cmd
}
