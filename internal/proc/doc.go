// Package proc runs child processes that do not outlive whoever started them:
// for the demo and for tests with real programs.
package proc
