package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/homenode/homenode/bindsvc/api"
)

// valueFlag is a flag whose value is given to set, and shown as kind in the help.
type valueFlag struct {
	kind  string
	set   func(string) error
	given string
}

func (f *valueFlag) String() string { return f.given }
func (f *valueFlag) Type() string   { return f.kind }

func (f *valueFlag) Set(text string) error {
	f.given = text
	return f.set(text)
}

func value(flags *pflag.FlagSet, name, kind, usage string, set func(string) error) {
	flags.Var(&valueFlag{kind: kind, set: set}, name, usage)
}

// textFlag is a flag that takes any text.
func textFlag(flags *pflag.FlagSet, to *string, name, kind, usage string) {
	value(flags, name, kind, usage, func(text string) error {
		*to = text
		return nil
	})
}

// oneOf is what a flag does that takes one of some words.
func oneOf(words []string, take func(string)) func(string) error {
	return func(word string) error {
		if !slices.Contains(words, word) {
			return fmt.Errorf("want one of %s", strings.Join(words, ", "))
		}
		take(word)
		return nil
	}
}

// idFlag is a flag that takes an id.
func idFlag(flags *pflag.FlagSet, to *string, name, kind, usage string) {
	value(flags, name, kind, usage, func(id string) error {
		if !idPattern.MatchString(id) {
			return errNoID
		}
		*to = id
		return nil
	})
}

// optionalText is a flag that leaves *to nil unless it is given.
func optionalText(flags *pflag.FlagSet, to **string, name, kind, usage string) {
	value(flags, name, kind, usage, func(text string) error {
		*to = &text
		return nil
	})
}

// optionalFlag is a flag without a value, or with =true or =false.
func optionalFlag(flags *pflag.FlagSet, to **api.Flag, name, usage string) {
	flags.BoolFunc(name, usage, func(text string) error {
		return setFlag(to, text, false)
	})
}

// optionalNoFlag is the opposite of optionalFlag.
func optionalNoFlag(flags *pflag.FlagSet, to **api.Flag, name, usage string) {
	flags.BoolFunc(name, usage, func(text string) error {
		return setFlag(to, text, true)
	})
}

func setFlag(to **api.Flag, text string, negate bool) error {
	value, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("want true or false")
	}
	flag := api.Flag(value != negate)
	*to = &flag
	return nil
}

// optionalTime is a flag that takes a time, or how long ago it was.
func optionalTime(flags *pflag.FlagSet, to **time.Time, name, kind, usage string) {
	value(flags, name, kind, usage, func(text string) error {
		at, err := parseTime(text, time.Now())
		if err != nil {
			return err
		}
		*to = &at
		return nil
	})
}

// parseTime reads an RFC 3339 time, or a duration before now: 90m, 24h, 7d.
func parseTime(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)).UTC(), nil
		}
	}
	ago, err := time.ParseDuration(text)
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("want a time like 2026-01-31T08:00:00+08:00, or how long ago, like 90m, 24h or 7d")
	}
	return now.Add(-ago).UTC(), nil
}

// serviceFlag is the flag that names a service, with the services to complete it.
func (c *console) serviceFlag(cmd *cobra.Command, to *string, usage string) {
	idFlag(cmd.Flags(), to, "service", "service", usage)
	must(cmd.RegisterFlagCompletionFunc("service", c.completeServices))
}

// servicesFlag is the flag that names services, each time one.
func (c *console) servicesFlag(cmd *cobra.Command, to *[]string, usage string) {
	value(cmd.Flags(), "service", "service", usage, func(id string) error {
		if !idPattern.MatchString(id) {
			return errNoID
		}
		*to = append(*to, id)
		return nil
	})
	must(cmd.RegisterFlagCompletionFunc("service", c.completeServices))
}

// texts is a flag that may be given several times.
func texts(flags *pflag.FlagSet, to *[]string, name, kind, usage string) {
	value(flags, name, kind, usage, func(text string) error {
		*to = append(*to, text)
		return nil
	})
}

// parseUntil reads an RFC 3339 time, or a duration from now on: 90m, 24h.
func parseUntil(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	ahead, err := time.ParseDuration(text)
	if err != nil || ahead <= 0 {
		return time.Time{}, fmt.Errorf("want a time like 2026-01-31T10:00:00+08:00, or in how long, like 30m or 2h")
	}
	return now.Add(ahead).UTC().Truncate(time.Second), nil
}

// userFlags are the flags that name a user by id or name.
type userFlags struct{ id, name *string }

func (u *userFlags) register(cmd *cobra.Command) {
	given := func(to **string) func(string) error {
		return func(text string) error {
			if text == "" {
				return fmt.Errorf("want a text")
			}
			*to = &text
			return nil
		}
	}
	value(cmd.Flags(), "user", "id", "id of the user", given(&u.id))
	value(cmd.Flags(), "username", "name", "name of the user", given(&u.name))
}

// pageFlags choose a page of a list; nil leaves it to the service.
type pageFlags struct{ page, size *int }

func (p *pageFlags) register(cmd *cobra.Command) {
	between := func(to **int, most int) func(string) error {
		return func(text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > most {
				return fmt.Errorf("want a number from 1 to %d", most)
			}
			*to = &n
			return nil
		}
	}
	value(cmd.Flags(), "page", "number", "number of the page, from 1", between(&p.page, 1_000_000))
	value(cmd.Flags(), "size", "records", "records of a page, at most 200 (default 20)", between(&p.size, largestPage))
}

const largestPage = 200

// optional is nil for an empty text.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
