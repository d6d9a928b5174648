// Package redis is what the instances of a production installation share:
// tokens, cached bindings, what the guards count and remember, and a reading eye
// on sa-token's sessions. Redis is the source of truth of nothing that lasts:
// bindings and policies are in the database, and what the guards keep expires.
package redis
