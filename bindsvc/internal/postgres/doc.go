// Package postgres is the durable store of a production installation: bindings,
// services and nodes in PostgreSQL 13 or later, shared by any number of processes.
//
// Unique indexes decide every race; a transaction that loses one is run again.
// Triggers tell of every change on the channel "homenode", so that a change made
// by hand counts like one of ours. A connection pooler in front of the server
// must pool sessions: LISTEN and the lock of the migration belong to one.
package postgres
