// Command bench measures on the lab the cost and the speed of the agent, beside node-problem-detector in the same run,
// and prints a table. It does not pass or fail: compare the ratios, not the milliseconds of one machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	b := &bench{}
	dir := flag.String("dir", lab.DefaultDir, "folder of the lab")
	flag.IntVar(&b.trials, "trials", 20, "disk failures to time")
	flag.IntVar(&b.peerTrials, "peer-trials", 5,
		"disk failures to time with the peer, which must be restarted for each")
	b.pods = []int{0, 60, 100}
	flag.Func("pods", "numbers of pods of three containers to measure with, comma separated (0,60,100)", b.setPods)
	flag.DurationVar(&b.idle, "idle", 10*time.Minute, "how long processes at rest are measured")
	flag.BoolVar(&b.costOnly, "cost", false, "measure only what the agent costs at rest and an inspection")
	flag.BoolVar(&b.stormOnly, "storm", false, "measure only what a storm of mounts costs, for as long as --idle")
	flag.BoolVar(&b.actsOnly, "acts", false, "measure only how soon it taints and repairs; brings up labs of its own")
	flag.StringVar(&b.binary, "binary", "", "the agent, built already")
	flag.StringVar(&b.peer, "peer", "", "node-problem-detector, built already")
	short := flag.Bool("short", false, "3 minutes at rest with 60 pods, and fewer trials: less exact")
	flag.Parse()
	if *short {
		b.idle, b.trials, b.peerTrials, b.pods = 3*time.Minute, 5, 2, []int{60}
	}
	err := errors.Join(os.Unsetenv("GOGC"), b.run(ctx, *dir)) // both programs collect garbage as they were shipped to
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	trials, peerTrials int
	pods               []int
	idle               time.Duration
	costOnly           bool
	stormOnly          bool
	actsOnly           bool

	lab   *lab.Lab
	agent *harness.Agent
	work  string // folder
	// programs: the agent and node-problem-detector
	binary, peer string
	running      int // pods of the bench on the node
	rows         []row
	notes        []string // below the table
}

// row is one line of the table.
type row struct{ what, agent, peer, goal string }

func (b *bench) run(ctx context.Context, dir string) (err error) {
	if b.actsOnly {
		err := errors.Join(b.taint(ctx), b.repairs(ctx))
		b.print()
		return err
	}
	work, err := os.MkdirTemp("", "nodeagent-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b.work = work
	logf("building the agent and node-problem-detector v1.36.0")
	if b.binary == "" {
		if b.binary, err = harness.Build(ctx, work); err != nil {
			return err
		}
	}
	if b.peer == "" && !b.stormOnly {
		if b.peer, err = buildPeer(ctx, work); err != nil {
			return err
		}
	}
	if !b.stormOnly {
		if err := b.sizes(b.binary); err != nil {
			return err
		}
	}
	before, _ := lab.Open(dir)
	if b.lab, err = lab.Up(ctx, lab.Options{Dir: dir, Log: os.Stderr}); err != nil {
		return err
	}
	if before == nil {
		defer func() { err = errors.Join(err, b.lab.Down(context.WithoutCancel(ctx))) }()
	}
	defer b.emptyNode(ctx)
	// All as shipped, except for the paths of this lab.
	defaults := harness.Overrides{"inspect": nil}
	if b.agent, err = harness.Install(ctx, b.lab, filepath.Join(dir, "agent"), b.binary, defaults); err != nil {
		return err
	}
	defer b.print() // also the results before a failure or an interrupt
	for _, measure := range b.wanted() {
		if err := measure(ctx); err != nil {
			return errors.Join(err, b.agent.Stop())
		}
	}
	return nil
}

// wanted lists the measurements on the lab.
func (b *bench) wanted() []func(context.Context) error {
	if b.stormOnly {
		return []func(context.Context) error{b.storm}
	}
	var costs []func(context.Context) error
	if !b.costOnly {
		costs = append(costs, b.matchers, b.wholeCheck)
	}
	for _, n := range b.pods {
		costs = append(costs, func(ctx context.Context) error { return b.atRest(ctx, n) })
	}
	costs = append(costs, b.inspection, b.storm)
	if b.costOnly {
		return costs
	}
	return append(costs, b.latency, b.peerLatency, b.taint, b.repairs)
}

func (b *bench) setPods(text string) (err error) {
	b.pods = nil
	for number := range strings.SplitSeq(text, ",") {
		n, e := strconv.Atoi(number)
		b.pods, err = append(b.pods, n), errors.Join(err, e)
	}
	return err
}

func (b *bench) sizes(binary string) error {
	size := func(name string) (string, error) {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%.1f MB", float64(info.Size())/1e6), nil
	}
	own, err := size(binary)
	if err != nil {
		return err
	}
	peer, err := size(b.peer)
	b.rows = append(b.rows, row{"binary, stripped, static", own, peer, "40 MB"})
	return err
}

func (b *bench) print() {
	fmt.Printf("\n| %-60s | %-28s | %-28s | %-11s |\n|%s|%s|%s|%s|\n", "", "nodeagent", "node-problem-detector", "goal",
		dashes(62), dashes(30), dashes(30), dashes(13))
	for _, r := range b.rows {
		fmt.Printf("| %-60s | %-28s | %-28s | %-11s |\n", r.what, r.agent, r.peer, r.goal)
	}
	for _, note := range b.notes {
		fmt.Println("\n" + note)
	}
}

func dashes(n int) string { return string(slices.Repeat([]byte("-"), n)) }

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// spread formats durations as their median and the worst.
func spread(times []time.Duration) string {
	slices.Sort(times)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%s (worst of %d: %s)", round(times[len(times)/2]), len(times), round(times[len(times)-1]))
}
