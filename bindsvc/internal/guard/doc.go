// Package guard checks requests before a node is chosen for them (spec section 5).
//
// Each guard is one type in one file behind the interface Guard; the chain runs them
// in the order of their cost. To add one, write it and name it in guards.go.
package guard
