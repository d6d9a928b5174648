// Package ext stands in for Traefik's private extension module, which its
// go.mod replaces by a local folder: replacements of a dependency are not
// inherited, so the host needs a counterpart of its own.
package ext

// HTTP extends dynamic.HTTPConfiguration. The open source Traefik adds nothing to it.
type HTTP struct{}

// Router extends dynamic.Router. The open source Traefik adds nothing to it.
type Router struct{}
