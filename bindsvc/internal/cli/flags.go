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

// choice is a flag that takes one of some words.
type choice struct {
	to    *string
	words []string
}

func (c *choice) String() string { return *c.to }
func (c *choice) Type() string   { return "word" }

func (c *choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
	}
	*c.to = word
	return nil
}

// idFlag is a flag that takes an id.
type idFlag string

func (f *idFlag) String() string { return string(*f) }
func (f *idFlag) Type() string   { return "id" }

func (f *idFlag) Set(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("want 1 to 64 of A-Z a-z 0-9 . _ -, beginning with a letter or digit")
	}
	*f = idFlag(id)
	return nil
}

// optionalText is a flag that leaves *to nil unless it is given.
func optionalText(flags *pflag.FlagSet, to **string, name, usage string) {
	flags.Func(name, usage, func(text string) error {
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
func optionalTime(flags *pflag.FlagSet, to **time.Time, name, usage string) {
	flags.Func(name, usage, func(text string) error {
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
	cmd.Flags().Var((*idFlag)(to), "service", usage)
	must(cmd.RegisterFlagCompletionFunc("service", c.completeServices))
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
	cmd.Flags().Func("user", "`id` of the user", given(&u.id))
	cmd.Flags().Func("username", "`name` of the user", given(&u.name))
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
	cmd.Flags().Func("page", "`number` of the page, from 1", between(&p.page, 1_000_000))
	cmd.Flags().Func("size", "`records` of a page, at most 200 (default 20)", between(&p.size, largestPage))
}

const largestPage = 200

// optional is nil for an empty text.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
