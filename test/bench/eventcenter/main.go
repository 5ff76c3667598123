// Command eventcenter measures, in one run, the event center with a fleet of simulated nodes that use the agent's own
// code, and the stores below it, and prints tables. It has no pass or fail: compare the ratios.
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
	verbs := map[string]func(context.Context, []string) error{slowVerb: runSlow, diskVerb: runDisk, storeVerb: runStore}
	if len(args) > 0 && verbs[args[0]] != nil {
		return verbs[args[0]](ctx, args[1:])
	}
	b := &bench{out: os.Stdout}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&b.dir, "dir", "/var/lib/natest-bench", "folder for what is measured on the disk; it is removed at the end")
	flags.StringVar(&b.memory, "memory", "/dev/shm", "a tmpfs for the outboxes of 10,000 nodes")
	flags.IntVar(&b.nodes, "nodes", 10_000, "simulated nodes")
	flags.IntVar(&b.perDay, "history", 8, "events of each node and day in the history of 30 days")
	flags.DurationVar(&b.steady, "steady", time.Minute, "how long 5,000 events a second come")
	flags.DurationVar(&b.storm, "storm", 2*time.Minute, "how long 15,000 events a second come")
	flags.DurationVar(&b.each, "store", 5*time.Second, "how long each figure of a store is measured")
	flags.DurationVar(&b.delay, "fsync", 5*time.Millisecond, "by how much a flush of the slow disk is delayed")
	flags.StringVar(&b.only, "only", "", "parts to measure: any of the letters s(tores), i(ntake), c(enter), d(elayed), 1(00 nodes on "+
		"disk), r(eplicas), a(gent); empty: all")
	flags.StringVar(&b.given, "binary", "", "binary of the center to measure, instead of the one that is built")
	flags.StringVar(&b.against, "against", "", "another binary of the center, whose intake is measured beside")
	flags.BoolVar(&b.withTLS, "tls", false, "agents, and the replicas with one another, speak TLS")
	short := flags.Bool("short", false, "a tenth of the history and less time: less exact")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *short {
		b.perDay, b.steady, b.storm, b.each = 1, 15*time.Second, 15*time.Second, 2*time.Second
	}
	return b.run(ctx)
}
