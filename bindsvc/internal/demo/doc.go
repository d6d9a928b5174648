// Package demo shows Homenode whole on one machine: three small nodes that keep
// each user's notes on their own disk, a real Traefik, and the story of users who
// stay where their notes are.
package demo
