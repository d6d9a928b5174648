// Package policy is the runtime configuration of the guards: what a policy of each
// kind holds, how it is verified, sealed and compiled, and the snapshot that every
// request reads. The snapshot is refreshed in the background (Keeper): requests never
// ask a store for a policy.
package policy
