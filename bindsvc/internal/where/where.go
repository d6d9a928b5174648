// Package where writes the condition of a query for the stores. It asks for the fields
// of a filter that are set only, so that each can use its index.
package where

import (
	"strconv"
	"strings"
)

// Clause collects conditions that all have to hold. Its zero value has none.
type Clause struct {
	conditions []string
	args       []any
}

// Add adds a condition if the field isSet. Every ? in it stands for the value.
func (c *Clause) Add(isSet bool, condition string, value any) {
	if isSet {
		c.args = append(c.args, value)
		c.conditions = append(c.conditions, strings.ReplaceAll(condition, "?", "$"+strconv.Itoa(len(c.args))))
	}
}

// SQL returns the clause, with a space before it, and its arguments; nothing if no
// condition was added.
func (c *Clause) SQL() (clause string, args []any) {
	if len(c.conditions) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(c.conditions, " AND "), c.args
}
