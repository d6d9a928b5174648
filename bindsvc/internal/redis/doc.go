// Package redis is what the instances of a production installation share:
// tokens, cached bindings, and a reading eye on sa-token's sessions. Redis is
// never the source of truth.
package redis
