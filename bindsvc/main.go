// Command homenode keeps every user on the one machine that holds their data.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/homenode/homenode/bindsvc/internal/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := app.Run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
