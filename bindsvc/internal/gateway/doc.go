// Package gateway is the domain: services, nodes, bindings, decisions, reasons,
// and the interfaces that stores implement. It imports no adapter, so that the
// rules can be read, and tested, without a database in sight.
package gateway
