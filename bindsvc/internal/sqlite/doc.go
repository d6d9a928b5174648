// Package sqlite is the durable store of the embedded mode: bindings, services,
// nodes, policies, roles and tokens in one file.
//
// Writes go through one connection, one transaction at a time; reads have their
// own connections and never wait for a write. Several processes may use the file.
//
// Nothing that was acknowledged is lost, by kill -9 or by a power cut: the
// write-ahead log is synced at every commit (synchronous=FULL; NORMAL, the usual
// companion of WAL, may lose the last commits when the power fails).
package sqlite
