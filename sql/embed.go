// Package sql embeds the migrations of both durable stores. They are goose
// files; the stores apply them by themselves.
package sql

import "embed"

// FS holds postgres/*.sql and sqlite/*.sql.
//
//go:embed postgres/*.sql sqlite/*.sql
var FS embed.FS
