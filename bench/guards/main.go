// Command guards measures what a decision costs with 10,000 rules and 1,000 roles, and
// with 10 of each. The worlds take turns in one run; what counts is the ratio of their times.
//
//	go run ./bench/guards -rounds 500
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/homenode/homenode/bindsvc/guardbench"
)

func main() {
	rounds := flag.Int("rounds", 500, "how often each world is measured")
	flag.Parse()
	if err := guardbench.Run(context.Background(), os.Stdout, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "guards:", err)
		os.Exit(1)
	}
}
