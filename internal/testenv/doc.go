// Package testenv starts the real servers that tests talk to, on free loopback
// ports, and breaks them on purpose: stopped, killed, frozen, slow, cut off.
//
// A package starts its servers once, in TestMain, and fails with the line to
// type when one cannot be had. Every server dies with the test process, however
// that ends.
package testenv
