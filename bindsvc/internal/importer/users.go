package importer

import (
	"context"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// Users is the nodes' own user table as a source. A line is the number of the user.
func Users(table gateway.Users) Source { return users{table} }

type users struct{ table gateway.Users }

func (u users) Kind() gateway.ImportSource { return gateway.ImportUsers }

func (u users) Total(ctx context.Context) (int64, error) { return u.table.CountUsers(ctx) }

func (u users) Each(ctx context.Context, fn func(Record) error) error {
	line := int64(0)
	return u.table.EachUser(ctx, func(user gateway.User) error {
		line++
		return fn(Record{Line: line, UserID: user.ID, Username: user.Username, Skip: !user.Active})
	})
}
