// Package e2e holds the scenarios that only whole processes can show: a real
// Traefik that loads the plugin as users load it, real homenode processes, real
// PostgreSQL and Redis. There is no code here but tests.
package e2e
