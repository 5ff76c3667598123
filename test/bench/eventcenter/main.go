// Command eventcenter measures the event center with the connections of a fleet and a history of 30 days, and prints a
// table. It has no pass or fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
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

// bench is one run.
type bench struct {
	dir, binary   string
	nodes, perDay int
	span          time.Duration
}

// row prints a line of the table.
func row(what, goal, format string, args ...any) {
	fmt.Printf("| %s | %s | %s |\n", what, goal, fmt.Sprintf(format, args...))
}

func run(ctx context.Context, args []string) (err error) {
	b := &bench{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&b.dir, "dir", "/var/lib/natest-bench", "folder of the center; it is removed at the end")
	flags.IntVar(&b.nodes, "nodes", 10_000, "simulated nodes")
	flags.IntVar(&b.perDay, "history", 3, "events of each node and day in the history of 30 days")
	flags.DurationVar(&b.span, "for", time.Minute, "how long each load lasts")
	flags.StringVar(&b.binary, "binary", "", "binary of the center to measure, instead of the one that is built")
	short := flags.Bool("short", false, "a third of the history and less time: less exact")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *short {
		b.perDay, b.span = 1, 15*time.Second
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.binary == "" {
		b.binary = filepath.Join(b.dir, "eventcenter")
		build := exec.CommandContext(ctx, "go", "build", "-o", b.binary, "./cmd/eventcenter")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return err
		}
	}
	fmt.Printf("%s, %d cores, which the nodes share with the center; %s\n\n| | goal | measured |\n|---|---|---|\n",
		runtime.GOARCH, runtime.NumCPU(), time.Now().Format(time.DateOnly))
	return b.measure(ctx)
}

// measure measures SQLite alone, and then the center: its start, answers, connections and loads.
func (b *bench) measure(ctx context.Context) error {
	alone, err := sqliteAlone(ctx, filepath.Join(b.dir, "alone.db"))
	if err != nil {
		return err
	}
	row("SQLite alone: a commit of one row, p50 / p99", "", "%s", alone)
	dir := filepath.Join(b.dir, "center")
	events, err := makeHistory(ctx, dir, b.nodes, b.perDay)
	if err != nil {
		return err
	}
	c, err := b.startCenter(dir, "--keep", "2160h")
	if err != nil {
		return err
	}
	defer func() { _ = c.stop(syscall.SIGKILL) }()
	took, err := c.ready(ctx)
	if err != nil {
		return err
	}
	row(fmt.Sprintf("start without a checkpoint (%d nodes, 30 days, %d events)", b.nodes, events), "", "%s", took.Round(time.Millisecond))
	if err := errors.Join(c.settled(ctx), c.stop(syscall.SIGTERM), c.start(b.binary, c.cmd.Args[1:])); err != nil {
		return err
	}
	if took, err = c.ready(ctx); err != nil {
		return err
	}
	row("start", "2 s", "%s", took.Round(time.Millisecond))
	if err := b.atRest(ctx, c); err != nil {
		return err
	}
	return b.loads(ctx, c)
}

// atRest measures requests to a center without connected agents.
func (b *bench) atRest(ctx context.Context, c *center) error {
	for _, q := range []struct {
		what, goal string
		times      int
		path       func(i int) string
	}{
		{"one node, newest 100", "10 ms", 200, func(i int) string {
			return fmt.Sprintf("/v1/nodes/%s/%s?limit=100", clusterName, nodeName(i*37%b.nodes))
		}},
		{"current faults", "20 ms", 50, func(int) string { return "/v1/faults" }},
		{"all nodes", "", 20, func(int) string { return "/v1/nodes" }},
		{"report of yesterday", "1 s", 10, func(int) string { return "/v1/reports/daily?date=yesterday" }},
		{"report of today", "1 s", 10, func(int) string { return "/v1/reports/daily?date=today" }},
		{"report of a week", "", 3, func(int) string { return "/v1/reports/weekly?date=yesterday" }},
	} {
		f, err := c.timed(ctx, q.times, q.path)
		if err != nil {
			return err
		}
		row(q.what+", p50 / p99", q.goal, "%s", f)
	}
	u, err := c.usage()
	row("resident memory after these questions", "200 MiB", "%.0f MiB", u.resident)
	return err
}
