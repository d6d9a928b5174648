// Package guardbench measures what the guards' rules add to a decision. The command is
// bench/guards; this much of it is here since only what is below bindsvc may import
// its internal packages.
package guardbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// decisions in one measurement: so few that most measurements end before the scheduler
// gives the processor to somebody else.
const decisions = 1000

// run is one line of the first table: a world, and what it is asked.
type run struct {
	name     string
	world    *world
	requests []gateway.Request
	handler  http.Handler // nil: the decision alone
	asked    []*http.Request
	next     int             // of the requests
	took     []time.Duration // for all decisions, by round
}

// Run measures and writes the tables to out. The first line is what the ratios are of.
func Run(ctx context.Context, out io.Writer, rounds int) (err error) {
	dir, err := os.MkdirTemp("", "homenode-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var runs []*run
	for i, of := range []struct {
		name string
		size size
	}{
		{"10 rules, 10 roles", size{rules: 10, roles: 10}},
		{"10 rules, 1,000 roles", size{rules: 10, roles: 1000}},
		{"10,000 rules, 10 roles", size{rules: 10_000, roles: 10}},
		{"10,000 rules, 1,000 roles", size{rules: 10_000, roles: 1000}},
		{"10,000 rules, 1,000 roles, each user has all", size{rules: 10_000, roles: 1000, allRoles: true}},
	} {
		at := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		w, err := newWorld(ctx, at, of.size)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		defer func() { err = errors.Join(err, w.close()) }()
		runs = append(runs, &run{name: of.name + ": paths of every rule", world: w, requests: w.requests})
	}
	// The paths of the small world have their rules in the large one too.
	runs = slices.Insert(runs, 4, &run{name: "10,000 rules, 1,000 roles: paths of 10 rules", world: runs[3].world, requests: runs[0].requests})
	served, stop := context.WithCancel(ctx)
	defer stop()
	alone := len(runs)
	for _, r := range []*run{runs[0], runs[3]} {
		handler, err := r.world.handler(served)
		if err != nil {
			return err
		}
		asked, err := questions(r.requests)
		if err != nil {
			return err
		}
		runs = append(runs, &run{name: r.name, world: r.world, requests: r.requests, handler: handler, asked: asked})
	}
	for round := range rounds {
		for i := range runs {
			if err := runs[(i+round)%len(runs)].measure(ctx); err != nil {
				return err
			}
		}
	}
	if err := printDecisions(ctx, out, "a decision alone", runs[:alone]); err != nil {
		return err
	}
	if err := printDecisions(ctx, out, "GET /v1/decide, without the network", runs[alone:]); err != nil {
		return err
	}
	return printSnapshots(out, []*run{runs[0], runs[3]}, rounds)
}

// measure makes the next decisions.
func (r *run) measure(ctx context.Context) error {
	start := time.Now()
	if err := r.decide(ctx); err != nil {
		return err
	}
	r.took = append(r.took, time.Since(start))
	return nil
}

func (r *run) decideNext(ctx context.Context) error {
	if r.handler != nil {
		return asked(r.handler, r.asked[r.next])
	}
	_, err := r.world.decider.Decide(ctx, r.requests[r.next])
	return err
}

func (r *run) decide(ctx context.Context) error {
	for range decisions {
		if err := r.decideNext(ctx); err != nil {
			return err
		}
		r.next = (r.next + 1) % len(r.requests)
	}
	return nil
}

// allocations of one decision.
func (r *run) allocations(ctx context.Context) (float64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := r.decide(ctx)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / decisions, err
}

func printDecisions(ctx context.Context, out io.Writer, what string, runs []*run) error {
	_, _ = fmt.Fprintf(out, "\n%s, median of %d rounds of %d\n\n", what, len(runs[0].took), decisions)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "rules\tns\tratio\tallocations\t")
	for _, r := range runs {
		allocations, err := r.allocations(ctx)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%.2f\t%.1f\t\n", r.name, median(r.took).Nanoseconds()/decisions, float64(median(r.took))/float64(median(runs[0].took)), allocations)
	}
	return table.Flush()
}

func median(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// printSnapshots tells what it takes to make a snapshot of the rules, which every change does.
func printSnapshots(out io.Writer, runs []*run, rounds int) error {
	rounds = min(rounds, 20)
	_, _ = fmt.Fprintf(out, "\na snapshot, median of %d rounds\n\n", rounds)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "rules\tms to compile\tKiB in memory\t")
	for _, r := range runs {
		var took []time.Duration
		for range rounds {
			start := time.Now()
			r.world.policies.Would(nil)
			took = append(took, time.Since(start))
		}
		_, _ = fmt.Fprintf(table, "%d\t%.1f\t%d\t\n", r.world.size.rules, median(took).Seconds()*1e3, sizeOf(func() *policy.Snapshot { return r.world.policies.Would(nil) })>>10)
	}
	return table.Flush()
}

// sizeOf is what the snapshot keeps in memory, beside the stored policies.
func sizeOf(compile func() *policy.Snapshot) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	snapshot := compile()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(snapshot)
	if after.HeapAlloc < before.HeapAlloc { // something else has gone
		return 0
	}
	return after.HeapAlloc - before.HeapAlloc
}
