// Package httpapi is the binding service's HTTP: the only package that knows
// echo. routes.go lists every path; errors.go turns every error into the
// envelope, once.
package httpapi
