// Command eventcenter measures the event center with a fleet of simulated nodes that use the agent's own code, and prints
// a table. It has no pass or fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	b := &bench{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&b.dir, "dir", "/var/lib/natest-bench", "folder of the center; it is removed at the end")
	flags.IntVar(&b.nodes, "nodes", 10_000, "simulated nodes")
	flags.IntVar(&b.perDay, "history", 8, "events of each node and day in the history of 30 days")
	flags.DurationVar(&b.span, "for", time.Minute, "how long each load lasts")
	flags.StringVar(&b.binary, "binary", "", "binary of the center to measure, instead of the one that is built")
	short := flags.Bool("short", false, "a tenth of the history and less time: less exact")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *short {
		b.perDay, b.span = 1, 15*time.Second
	}
	return b.run(ctx)
}
