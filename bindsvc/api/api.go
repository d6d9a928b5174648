// Package api is the admin API as its document, openapi.yaml, describes it: the
// types and the client generated from it, and the document itself. It is what a Go
// program imports to administer a gateway.
package api

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
)

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen -config models.cfg.yaml openapi.yaml
//go:generate go tool -modfile=../../tools/go.mod oapi-codegen -config client.cfg.yaml openapi.yaml
//go:generate go tool -modfile=../../tools/go.mod oapi-codegen -config server.cfg.yaml openapi.yaml

// Document is openapi.yaml.
//
//go:embed openapi.yaml
var Document []byte

// Prefix is the path that every path of the document is below.
const Prefix = "/gateway/admin"

// Flag is a boolean that 0 and 1 are understood for, as older clients send them.
type Flag bool

// UnmarshalJSON reads true, false, 1 and 0.
func (f *Flag) UnmarshalJSON(raw []byte) error {
	switch string(raw) {
	case "true", "1":
		*f = true
	case "false", "0":
		*f = false
	default:
		return errors.New("want true or false")
	}
	return nil
}

// Policy is the body of a policy: JSON whose fields the schema of its kind has, such as
// MaintenancePolicy.
type Policy = json.RawMessage

// UserID is a user id given as JSON text or number, without loss.
type UserID string

// UnmarshalJSON reads "7", 7 and null.
func (u *UserID) UnmarshalJSON(raw []byte) error {
	var text *string
	if json.Unmarshal(raw, &text) == nil {
		if text != nil {
			*u = UserID(*text)
		}
		return nil
	}
	var number json.Number
	if err := json.Unmarshal(raw, &number); err != nil {
		return errors.New("want text or a number")
	}
	*u = UserID(number)
	return nil
}

// NullableText tells a field that is null from one that is not given.
type NullableText struct {
	Given bool
	Value string // empty: null
}

// UnmarshalJSON reads text and null.
func (n *NullableText) UnmarshalJSON(raw []byte) error {
	n.Given = true
	if bytes.Equal(raw, []byte("null")) {
		n.Value = ""
		return nil
	}
	return json.Unmarshal(raw, &n.Value)
}

// MarshalJSON writes null for an empty text.
func (n NullableText) MarshalJSON() ([]byte, error) {
	if n.Value == "" {
		return []byte("null"), nil
	}
	return json.Marshal(n.Value)
}
