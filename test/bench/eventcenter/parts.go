package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
)

const probes = 50 // fatal faults whose latency to the subscriber is measured

// center measures a center with SQLite and a history.
func (b *bench) center(ctx context.Context) (err error) {
	dir := filepath.Join(b.dir, "center")
	begun := time.Now()
	logf("making a history of %d days", historyDays)
	events, err := makeHistory(ctx, dir, b.nodes, b.perDay)
	if err != nil {
		return err
	}
	history := fmt.Sprintf("history: %d nodes, %d days, %d events, %d MB", b.nodes, historyDays, events,
		directorySize(dir)>>20)
	logf("%s, in %s", history, time.Since(begun).Round(time.Second))
	hook, err := startWebhook()
	if err != nil {
		return err
	}
	defer hook.server.Close()
	subscriptions, err := hook.settings(b.dir)
	if err != nil {
		return err
	}
	c, err := b.startCenter(dir, "--subscriptions", subscriptions, "--keep", "2160h")
	if err != nil {
		return err
	}
	defer func() { _ = c.stop(syscall.SIGKILL) }()
	took, err := c.ready(ctx)
	if err != nil {
		return err
	}
	b.row("start without a checkpoint ("+history+")", "", "%s", short(took))
	if err := errors.Join(b.counted(ctx, c), sealed(ctx, dir)); err != nil {
		return err
	}
	if err := c.stop(syscall.SIGTERM); err != nil {
		return err
	}
	if err := c.again(); err != nil {
		return err
	}
	if took, err = c.ready(ctx); err != nil {
		return err
	}
	b.row("start with that history", "2 s", "%s", short(took))
	if err := b.atRest(ctx, c); err != nil {
		return err
	}
	return b.fleet(ctx, c, hook)
}

// counted waits until the reports have counted the history.
func (b *bench) counted(ctx context.Context, c *center) error {
	for begun := time.Now(); ; time.Sleep(time.Second) {
		if _, err := c.timed(ctx, 1, func(int) string { return "/v1/reports/daily?date=today" }); err == nil {
			return nil
		} else if time.Since(begun) > 10*time.Minute {
			return err
		}
	}
}

// sealed waits until the files of past days are sealed. A center does that ten seconds after each day; a history
// created at once takes longer.
func sealed(ctx context.Context, dir string) error {
	for begun := time.Now(); ; time.Sleep(time.Second) {
		logs, err := filepath.Glob(filepath.Join(dir, "journal", "*-wal"))
		if err != nil || len(logs) < 2 {
			return err
		}
		if time.Since(begun) > 10*time.Minute || ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%d files of the journal are not sealed, as %s", len(logs), logs[0]))
		}
	}
}

// atRest measures requests to a center without connected agents.
func (b *bench) atRest(ctx context.Context, c *center) error {
	time.Sleep(20 * time.Second) // the check of all files begins at the start, and takes over a minute
	u, err := c.usage()
	if err != nil {
		return err
	}
	b.row("resident memory at rest, with that history", "150 MiB", "%.0f MiB (peak %.0f)", u.resident, u.peak)
	for _, q := range []struct {
		what, goal string
		times      int
		path       func(i int) string
	}{
		{"one node, newest 100, p50 / p99", "5 ms", 200, func(i int) string {
			return fmt.Sprintf("/v1/nodes/%s/%s?limit=100", clusterName, nodeName(i*37%b.nodes))
		}},
		{"current faults (/v1/faults), p50 / p99", "20 ms", 50, func(int) string { return "/v1/faults" }},
		{"all nodes (/v1/nodes), p50 / p99", "", 20, func(int) string { return "/v1/nodes" }},
		{"daily report of yesterday, p50 / p99", "1 s", 10, func(int) string { return "/v1/reports/daily?date=yesterday" }},
		{"daily report of today, p50 / p99", "1 s", 10, func(int) string { return "/v1/reports/daily?date=today" }},
		{"weekly report, p50 / p99", "", 3, func(int) string { return "/v1/reports/weekly?date=yesterday" }},
	} {
		f, err := c.timed(ctx, q.times, q.path)
		if err != nil {
			return err
		}
		b.row(q.what, q.goal, "%s", f)
	}
	if u, err = c.usage(); err == nil {
		b.row("resident memory after these questions", "150 MiB", "%.0f MiB (peak %.0f)", u.resident, u.peak)
	}
	return err
}

func (c *center) settings(endpoints ...string) eventcenter.Settings {
	return eventcenter.Settings{Endpoints: endpoints, Cluster: clusterName, TokenFile: c.token()}
}

// fleet measures a center with all nodes; their outboxes are in memory.
func (b *bench) fleet(ctx context.Context, c *center, hook *webhook) error {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // no real node has the memory of 10,000 nodes
	before, err := c.usage()
	if err != nil {
		return err
	}
	begun := time.Now()
	f := startFleet(ctx, b.nodes, func(int) eventcenter.Settings { return c.settings(c.url + "/v1/events") })
	defer f.end()
	time.Sleep(time.Second)
	if _, err := f.drained(ctx, 5*time.Minute); err != nil {
		return err
	}
	took := time.Since(begun)
	first := f.delivered()
	f.know()
	time.Sleep(knownAfter)
	u, err := c.usage()
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("%d agents come at once: all are heard after", b.nodes), "", "%s (p50 / p99 %s; %s)",
		short(took), first, f.why())
	b.row("resident memory with their connections", "150 MiB + 40 KiB each", "%.0f MiB (peak %.0f): %.0f KiB each", u.resident,
		u.peak, (u.resident-before.resident)*1024/float64(b.nodes))
	quiet, err := hook.latency(ctx, f, probes)
	if err != nil {
		return err
	}
	b.row("fault on a node to subscriber, nothing else happens, p50 / p99", "200 ms", "%s", quiet)
	if err := b.loads(ctx, c, f, hook); err != nil {
		return err
	}
	return b.returns(ctx, c, f)
}

// loads generates 1,000 events a second, then 5,000.
func (b *bench) loads(ctx context.Context, c *center, f *fleet, hook *webhook) error {
	for _, rate := range []int{1000, 5000} {
		what := fmt.Sprintf("%d events/s, one at a time", rate)
		before, err := c.usage()
		if err != nil {
			return err
		}
		own, err := processUsage(os.Getpid())
		if err != nil {
			return err
		}
		var got load
		var failed error
		var running sync.WaitGroup
		running.Go(func() { got, failed = f.load(ctx, rate, b.span) })
		time.Sleep(time.Second)
		late, err := hook.latency(ctx, f, min(probes, int(b.span.Seconds()*8)))
		running.Wait()
		if err := errors.Join(failed, err); err != nil {
			return err
		}
		after, err := c.usage()
		if err != nil {
			return err
		}
		ownAfter, err := processUsage(os.Getpid())
		if err != nil {
			return err
		}
		b.row(what+", ingest p50 / p99", "p99 100 ms", "%s; %.0f/s for %s, %d waited at the end, for %s; %s; "+
			"%d lost; CPU an event: center %.0f µs, nodes %.0f µs", got.figure, got.perSecond, b.span, got.left, short(got.drain),
			f.why(), f.dropped.Load(), float64((after.cpu-before.cpu).Microseconds())/float64(got.sent),
			float64((ownAfter.cpu-own.cpu).Microseconds())/float64(got.sent))
		b.row(what+", fault to subscriber p50 / p99", "200 ms median", "%s", late)
		b.row(what+", resident memory", "", "%.0f MiB (peak %.0f)", after.resident, after.peak)
	}
	return nil
}

// returns kills the center and restarts it while all nodes have pending events.
func (b *bench) returns(ctx context.Context, c *center, f *fleet) error {
	if err := c.stop(syscall.SIGKILL); err != nil {
		return err
	}
	for _, n := range f.nodes {
		n.change(time.Now(), 2, "sdb", finding.Warning)
	}
	time.Sleep(5 * time.Second)
	if err := c.again(); err != nil {
		return err
	}
	started, err := c.ready(ctx)
	if err != nil {
		return err
	}
	took, err := f.drained(ctx, 10*time.Minute)
	if err != nil {
		return err
	}
	u, err := c.usage()
	b.row("killed, and back after 5 s", "", "ready after %s; after another %s all %d agents had sent what waited; "+
		"peak %.0f MiB; %s", short(started), short(took), b.nodes, u.peak, f.why())
	return err
}
