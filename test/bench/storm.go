package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// stormRate is how many mounts a second a storm has, and as many unmounts.
const stormRate = 50

// storm measures the daemon's use of the processor while mounts come and go, beside the same time at rest.
func (b *bench) storm(ctx context.Context) (err error) {
	if err := errors.Join(b.fillNode(ctx, slices.Max(b.pods)), b.settleNode(ctx)); err != nil {
		return err
	}
	g, err := newGroup(b.work, "bench-storm", b.binary, "run")
	if err != nil {
		return err
	}
	defer g.remove()
	b.agent.Binary = g.command
	defer func() { b.agent.Binary = b.binary }()
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop()) }()
	if err := pause(ctx, settling); err != nil {
		return err
	}
	rest, err := share(g, func() error { return pause(ctx, b.idle) })
	if err != nil {
		return err
	}
	logf("mounting and unmounting %d a second for %s", stormRate, b.idle)
	mounts := 0
	storm, err := share(g, func() (err error) { mounts, err = mountStorm(ctx, b.work, b.idle); return err })
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{fmt.Sprintf("%d pods: CPU at rest, of one core", b.running), rest, "–", ""},
		row{fmt.Sprintf("  while %d mounts and as many unmounts come a second", mounts/int(b.idle.Seconds())), storm, "–",
			"10 %"})
	return nil
}

// share returns the share of one core that the processes of a group use during a call.
func share(g *group, during func() error) (string, error) {
	began := time.Now()
	before, err := g.used()
	if err != nil {
		return "", err
	}
	if err := during(); err != nil {
		return "", err
	}
	after, err := g.used()
	return fmt.Sprintf("%.1f %%", 100*float64(after-before)/float64(time.Since(began))), err
}

// mountStorm mounts stormRate filesystems a second, each for a second, and returns how many.
func mountStorm(ctx context.Context, work string, howLong time.Duration) (mounted int, err error) {
	points := make([]string, stormRate)
	for i := range points {
		points[i] = filepath.Join(work, fmt.Sprintf("storm-%d", i))
		if err := os.Mkdir(points[i], 0o700); err != nil {
			return 0, err
		}
	}
	defer func() {
		for _, point := range points[:min(mounted, len(points))] {
			err = errors.Join(err, unix.Unmount(point, 0))
		}
	}()
	tick := time.NewTicker(time.Second / stormRate)
	defer tick.Stop()
	for end := time.Now().Add(howLong); time.Now().Before(end); mounted++ {
		select {
		case <-ctx.Done():
			return mounted, ctx.Err()
		case <-tick.C:
		}
		point := points[mounted%len(points)]
		if mounted >= len(points) {
			if err := unix.Unmount(point, 0); err != nil {
				return mounted, err
			}
		}
		if err := unix.Mount("tmpfs", point, "tmpfs", 0, "size=64k"); err != nil {
			return mounted, err
		}
	}
	return mounted, nil
}
