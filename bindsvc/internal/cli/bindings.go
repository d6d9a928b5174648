package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func (c *console) routesCommand() *cobra.Command {
	var service string
	var page pageFlags
	var all bool
	cmd := &cobra.Command{
		Use:   "routes [KEYWORD]",
		Short: "List which user is bound to which node",
		Long:  "List bindings, a page at a time or all; with KEYWORD those with it in the user id or\nthe username, in upper or lower case.",
		Example: "  homenode routes ann --service ai\n  homenode routes --page 2 --size 100\n" +
			"  homenode routes --service ai --all -o json",
		Args: cobra.MaximumNArgs(1),
		RunE: c.ask(func(ctx context.Context, client *api.ClientWithResponses, args []string) (answer, error) {
			query := api.ListRoutesParams{ServiceID: optional(service), Page: page.page, Size: page.size}
			if len(args) == 1 {
				query.Keyword = &args[0]
			}
			if all {
				return allRoutes(ctx, client, query)
			}
			found, err := answered(client.ListRoutesWithResponse(ctx, &query))
			if err != nil {
				return answer{}, err
			}
			d := found.Data
			return answer{data: d, tables: []grid{bindingTable(d.Records...)}, note: pageNote(d.Total, d.Page, d.Size, "binding") + allHint(d.Total, d.Size)}, nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.serviceFlag(cmd, &service, "only the bindings of this `service`")
	page.register(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all pages")
	cmd.MarkFlagsMutuallyExclusive("all", "page")
	cmd.MarkFlagsMutuallyExclusive("all", "size")
	return cmd
}

// allRoutes lists every page as if it were one.
func allRoutes(ctx context.Context, client *api.ClientWithResponses, query api.ListRoutesParams) (answer, error) {
	records := []api.Binding{}
	err := eachBinding(ctx, client, query, func(b api.Binding) bool {
		records = append(records, b)
		return true
	})
	if err != nil {
		return answer{}, err
	}
	data := map[string]any{"total": len(records), "page": 1, "size": len(records), "records": records}
	return answer{data: data, tables: []grid{bindingTable(records...)}, note: plural(int64(len(records)), "binding")}, nil
}

// eachBinding calls fn for every binding that the query finds, page after page, until it returns false.
func eachBinding(ctx context.Context, client *api.ClientWithResponses, query api.ListRoutesParams, fn func(api.Binding) bool) error {
	size := largestPage
	query.Size = &size
	for page := 1; ; page++ {
		query.Page = &page
		found, err := answered(client.ListRoutesWithResponse(ctx, &query))
		if err != nil {
			return err
		}
		for _, b := range found.Data.Records {
			if !fn(b) {
				return nil
			}
		}
		if len(found.Data.Records) < size {
			return nil
		}
	}
}

func (c *console) bindCommand() *cobra.Command {
	var service string
	var user userFlags
	cmd := &cobra.Command{
		Use:   "bind NODE",
		Short: "Bind a user to a node, or to another one",
		Long: "Bind a user, who is named by id, username or both, to a node. A user who is bound\nelsewhere is bound anew; every instance routes by it within a second. Nothing moves\n" +
			"the user's data.",
		Example:           "  homenode bind --service ai --user 7 --username ann node-1\n  homenode bind --service ai --username ann node-2",
		Args:              ids("NODE"),
		ValidArgsFunction: first(c.completeNodes),
		RunE: c.ask(func(ctx context.Context, client *api.ClientWithResponses, args []string) (answer, error) {
			request := api.BindRequest{ServiceID: service, NodeID: args[0], Username: user.name}
			if user.id != nil {
				request.UserID = api.UserID(*user.id)
			}
			bound, err := answered(client.BindWithResponse(ctx, request))
			if err != nil {
				return answer{}, err
			}
			return answer{data: bound.Data, tables: []grid{bindingTable(bound.Data)}}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "the `service`")
	user.register(cmd)
	must(cmd.MarkFlagRequired("service"))
	cmd.MarkFlagsOneRequired("user", "username")
	return cmd
}

func (c *console) unbindCommand() *cobra.Command {
	var service string
	var user userFlags
	cmd := &cobra.Command{
		Use:   "unbind [ID]",
		Short: "Delete a binding",
		Long: "Delete the binding with this id (see homenode routes), or that of a user. The user's next\nlogin finds a node anew, which may be another one than holds the data: nothing moves it.\n" +
			"To move a user, use bind.",
		Example:           "  homenode unbind 4711\n  homenode unbind --service ai --username ann",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.ask(func(ctx context.Context, client *api.ClientWithResponses, args []string) (answer, error) {
			id, err := bindingID(ctx, client, args, service, user)
			if err != nil {
				return answer{}, err
			}
			was, err := answered(client.UnbindWithResponse(ctx, id))
			if err != nil {
				return answer{}, err
			}
			return answer{data: was.Data, tables: []grid{bindingTable(was.Data)}, note: "this binding is deleted"}, nil
		}),
	}
	c.serviceFlag(cmd, &service, "the `service`, with --user or --username")
	user.register(cmd)
	cmd.MarkFlagsMutuallyExclusive("user", "username")
	return cmd
}

// bindingID is the id that is given, or that of the binding of the user who is.
func bindingID(ctx context.Context, client *api.ClientWithResponses, args []string, service string, user userFlags) (int64, error) {
	named := user.id != nil || user.name != nil
	switch {
	case len(args) == 1 && (named || service != ""), len(args) == 0 && (!named || service == ""):
		return 0, usagef("give either the ID of a binding, or --service and one of --user and --username; see homenode unbind --help")
	case len(args) == 1:
		return positiveID(args[0])
	case user.id != nil:
		return findBinding(ctx, client, service, *user.id, func(b api.Binding) bool { return b.UserID != nil && *b.UserID == *user.id })
	}
	key := gateway.KeyOf(*user.name)
	return findBinding(ctx, client, service, *user.name, func(b api.Binding) bool { return b.Username != nil && gateway.KeyOf(*b.Username) == key })
}

// findBinding returns the one binding of the service that is the user's: the
// service finds by parts of ids and names, and 7 is also a part of 17.
func findBinding(ctx context.Context, client *api.ClientWithResponses, service, user string, is func(api.Binding) bool) (int64, error) {
	var id int64
	err := eachBinding(ctx, client, api.ListRoutesParams{ServiceID: &service, Keyword: &user}, func(b api.Binding) bool {
		if is(b) {
			id = b.ID
		}
		return id == 0
	})
	if err != nil {
		return 0, err
	}
	if id == 0 {
		return 0, fmt.Errorf("%s has no binding in service %s", escape(user), service)
	}
	return id, nil
}

func positiveID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usagef("%q is no id: want a number from 1", text)
	}
	return id, nil
}

func bindingTable(bindings ...api.Binding) grid {
	g := grid{header: []string{"id", "service", "user", "username", "node", "epoch", "import", "updated"}}
	for _, b := range bindings {
		imported := none
		if b.ImportID != nil {
			imported = number(*b.ImportID)
		}
		g.rows = append(g.rows, []string{
			number(b.ID), b.ServiceID, orNone(b.UserID), orNone(b.Username), b.NodeID, number(b.Epoch), imported, clock(b.UpdateTime),
		})
	}
	return g
}

// pageNote says where in a list a page is.
func pageNote(total int64, page, size int, what string) string {
	if total <= int64(size) && page == 1 {
		return plural(total, what)
	}
	pages := (total + int64(size) - 1) / int64(max(size, 1))
	return fmt.Sprintf("page %d of %d, %s", page, pages, plural(total, what))
}

func allHint(total int64, size int) string {
	if total <= int64(size) {
		return ""
	}
	return "; --all shows all"
}
