// Package postgres is the durable store of a production installation: bindings,
// services, nodes, policies and roles in PostgreSQL 13 or later, shared by any number
// of processes.
//
// Unique indexes decide every race; a transaction that loses one is run again.
// Triggers tell of every change on the channel "homenode", so that a change made
// by hand counts like one of ours. Every change is audited in its own transaction:
// ours by us, and what a connection of another name does to bindings, policies and roles
// by triggers (see ParseURL). A connection pooler in front of the server must pool sessions:
// LISTEN and the lock of the migration belong to one.
package postgres
