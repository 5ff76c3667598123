package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
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
	say("making a history of %d days", historyDays)
	events, err := makeHistory(ctx, dir, b.nodes, b.perDay)
	if err != nil {
		return err
	}
	history := fmt.Sprintf("history: %d nodes, %d days, %d events, %d MB", b.nodes, historyDays, events,
		directorySize(dir)>>20)
	say("%s, in %s", history, time.Since(begun).Round(time.Second))
	hook, err := startWebhook()
	if err != nil {
		return err
	}
	defer hook.server.Close()
	subscriptions, err := hook.settings(b.dir)
	if err != nil {
		return err
	}
	c, err := b.startCenter(b.binary, dir, 0, "--subscriptions", subscriptions, "--keep", "2160h")
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
	if err := c.again(b.binary, 0); err != nil {
		return err
	}
	if took, err = c.ready(ctx); err != nil {
		return err
	}
	b.row("start with that history", "2 s", "%s", short(took))
	if err := b.atRest(ctx, c); err != nil {
		return err
	}
	return b.fleetOn(ctx, c, hook, 0)
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
	return eventcenter.Settings{Endpoints: endpoints, Cluster: clusterName, TokenFile: c.token(), CAFile: c.ca}
}

// fleetOn measures a center with all nodes; their outboxes are on a tmpfs.
func (b *bench) fleetOn(ctx context.Context, c *center, hook *webhook, delay time.Duration) error {
	on := ", " + disk(delay)
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
	b.row(fmt.Sprintf("%d agents come at once%s: all are heard after", b.nodes, on), "", "%s (p50 / p99 %s; %s)",
		short(took), first, f.why())
	b.row("resident memory with their connections"+on, "150 MiB + 40 KiB each", "%.0f MiB (peak %.0f): %.0f KiB each", u.resident,
		u.peak, (u.resident-before.resident)*1024/float64(b.nodes))
	quiet, err := hook.latency(ctx, f, probes)
	if err != nil {
		return err
	}
	b.row("fault on a node to subscriber, nothing else happens"+on+", p50 / p99", "200 ms", "%s", quiet)
	if err := b.loads(ctx, c, f, hook, on); err != nil {
		return err
	}
	return b.returns(ctx, c, f, delay)
}

// loads generates 5,000 events a second, then 15,000.
func (b *bench) loads(ctx context.Context, c *center, f *fleet, hook *webhook, on string) error {
	for _, l := range []struct {
		what       string
		rate, many int
		span       time.Duration
	}{{"5,000 events/s, one at a time", 5000, 1, b.steady}, {"storm of 15,000/s, ten at a time", 15_000, 10, b.storm}} {
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
		running.Go(func() { got, failed = f.load(ctx, l.rate, l.many, l.span) })
		time.Sleep(time.Second)
		late, err := hook.latency(ctx, f, min(probes, int(l.span.Seconds()*8)))
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
		b.row(l.what+on+", ingest p50 / p99", "p99 100 ms", "%s; %.0f/s for %s, %d waited at the end, for %s; %s; "+
			"%d lost; CPU an event: center %.0f µs, nodes %.0f µs", got.figure, got.perSecond, l.span, got.left, short(got.drain),
			f.why(), f.dropped.Load(), float64((after.cpu-before.cpu).Microseconds())/float64(got.sent),
			float64((ownAfter.cpu-own.cpu).Microseconds())/float64(got.sent))
		b.row(l.what+on+", fault to subscriber p50 / p99", "200 ms median", "%s", late)
		b.row(l.what+on+", resident memory", "", "%.0f MiB (peak %.0f)", after.resident, after.peak)
	}
	return nil
}

// returns kills the center and restarts it while all nodes have pending events.
func (b *bench) returns(ctx context.Context, c *center, f *fleet, delay time.Duration) error {
	if err := c.stop(syscall.SIGKILL); err != nil {
		return err
	}
	for _, n := range f.nodes {
		n.change(time.Now(), 2, "sdb", finding.Warning)
	}
	time.Sleep(5 * time.Second)
	if err := c.again(b.binary, delay); err != nil {
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
	b.row("killed, and back after 5 s, "+disk(delay), "", "ready after %s; after another %s all %d agents had sent what waited; "+
		"peak %.0f MiB; %s", short(started), short(took), b.nodes, u.peak, f.why())
	return err
}

// slowCenter measures an empty center with delayed flushes.
func (b *bench) slowCenter(ctx context.Context) error {
	hook, err := startWebhook()
	if err != nil {
		return err
	}
	defer hook.server.Close()
	subscriptions, err := hook.settings(b.dir)
	if err != nil {
		return err
	}
	c, end, err := b.readyCenter(ctx, "slow", b.delay, "--subscriptions", subscriptions)
	if err != nil {
		return err
	}
	defer end()
	return b.fleetOn(ctx, c, hook, b.delay)
}

// readyCenter starts a center with an empty directory, and waits until it is ready.
func (b *bench) readyCenter(ctx context.Context, name string, delay time.Duration, flags ...string) (c *center,
	end func(), err error) {
	if c, err = b.startCenter(b.binary, filepath.Join(b.dir, name), delay, flags...); err != nil {
		return nil, nil, err
	}
	end = func() { _ = c.stop(syscall.SIGKILL) }
	if _, err := c.ready(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// hundredOnDisk puts the outboxes on the center's disk.
func (b *bench) hundredOnDisk(ctx context.Context) error {
	c, end, err := b.readyCenter(ctx, "hundred", 0)
	if err != nil {
		return err
	}
	defer end()
	f := startFleet(ctx, 100, func(int) eventcenter.Settings {
		return c.settings(c.url + "/v1/events")
	})
	defer f.end()
	if _, err := f.drained(ctx, time.Minute); err != nil {
		return err
	}
	l, err := f.load(ctx, 1000, 1, b.steady)
	b.row("100 nodes with outboxes on disk, 1,000 events/s, ingest p50 / p99", "p99 100 ms", "%s; %s", l.figure,
		f.why())
	return err
}

// agent measures the cost of sending for one agent.
func (b *bench) agent(ctx context.Context) error {
	c, end, err := b.readyCenter(ctx, "one", 0)
	if err != nil {
		return err
	}
	defer end()
	f := startFleet(ctx, 1, func(int) eventcenter.Settings {
		return c.settings(c.url + "/v1/events")
	})
	if _, err := f.drained(ctx, time.Minute); err != nil {
		return err
	}
	before, err := processUsage(os.Getpid())
	if err != nil {
		return err
	}
	for range 10 { // the maximum in a request
		f.nodes[0].change(time.Now(), 100, "sda", finding.Warning)
		if _, err := f.drained(ctx, time.Minute); err != nil {
			return err
		}
	}
	after, err := processUsage(os.Getpid())
	if err != nil {
		return err
	}
	f.end()
	b.row("agent: CPU for 1,000 events in batches of 100", "100 ms", "%s", short(after.cpu-before.cpu))
	return b.dayAway(ctx)
}

// dayAway makes an agent produce a bad node's events of a day while there is no center.
func (b *bench) dayAway(ctx context.Context) error {
	const events = 6000
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	dir := filepath.Join(b.dir, "away")
	f := startFleet(ctx, 1, func(int) eventcenter.Settings {
		return eventcenter.Settings{Endpoints: []string{away.URL}, Cluster: clusterName}
	})
	defer f.end()
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	for i := range events {
		f.nodes[0].change(time.Now(), 1, "sda", finding.Warning)
		if i%20 == 0 {
			time.Sleep(50 * time.Millisecond) // let the outbox write its events to disk
		}
	}
	time.Sleep(3 * time.Second)
	b.row(fmt.Sprintf("agent: a day without the center, %d events", events), "20 MiB of disk, no memory",
		"%.1f MiB of disk, %.1f MiB of memory; %d dropped, oldest of the least severe first", float64(directorySize(dir))/(1<<20),
		heap()-before, f.dropped.Load())
	return nil
}
