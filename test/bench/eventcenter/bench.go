package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// bench is one run.
type bench struct {
	out                       io.Writer
	dir, memory, only, binary string
	given, against            string
	nodes, perDay             int
	steady, storm, each       time.Duration
	delay                     time.Duration
	withTLS                   bool
	tls                       *certificate // nil: none

	rows []row
}

// row is a line of the center's table.
type row struct{ what, goal, got string }

func (b *bench) row(what, goal, format string, args ...any) {
	got := fmt.Sprintf(format, args...)
	say("%s: %s", what, got)
	b.rows = append(b.rows, row{what, goal, got})
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *bench) run(ctx context.Context) (err error) {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	outboxes, err := os.MkdirTemp(b.memory, "natest-outboxes-")
	if err != nil {
		return err
	}
	b.memory = outboxes
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir), os.RemoveAll(outboxes)) }()
	if b.withTLS {
		if b.tls, err = newCertificate(b.dir); err != nil {
			return err
		}
	}
	if b.binary = b.given; b.binary == "" {
		b.binary = filepath.Join(b.dir, "eventcenter")
		say("building the center")
		build := exec.CommandContext(ctx, "go", "build", "-o", b.binary, "./cmd/eventcenter")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return err
		}
	}
	parts := []struct {
		letter string
		do     func(context.Context) error
	}{
		{"s", b.stores}, {"i", b.intake}, {"c", b.center}, {"d", b.slowCenter}, {"1", b.hundredOnDisk}, {"r", b.replicas}, {"a", b.agent},
	}
	for _, p := range parts {
		if b.only != "" && !strings.Contains(b.only, p.letter) {
			continue
		}
		if err = p.do(ctx); err != nil {
			break // the measurements so far are still printed
		}
	}
	b.print()
	return err
}

func (b *bench) print() {
	if len(b.rows) == 0 {
		return
	}
	with := ""
	if b.tls != nil {
		with = "with TLS; "
	}
	fmt.Fprintf(b.out, "\n%s, %d cores, which the nodes share with the center; %s%s\n\n| | goal | measured |\n|---|---|---|\n",
		runtime.GOARCH, runtime.NumCPU(), with, time.Now().Format(time.DateOnly))
	for _, r := range b.rows {
		fmt.Fprintf(b.out, "| %s | %s | %s |\n", r.what, r.goal, r.got)
	}
}

// stores measures the journals and the stores below them.
func (b *bench) stores(ctx context.Context) error {
	fmt.Fprintf(b.out, "\n| journal | disk | events/s, batches of 50 | events/s, one by one | 5,000/s one by one, p50 / p99 |\n"+
		"|---|---|---|---|---|\n")
	for _, delay := range []time.Duration{0, b.delay} {
		for _, kind := range stores() {
			f, err := b.store(ctx, kind, delay)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			latency := figure{p50: f.P50, p99: f.P99}.String()
			if f.Unfinished > 1000 {
				latency = "cannot"
			}
			fmt.Fprintf(b.out, "| %s | %s | %.0f | %.0f | %s |\n", kind, disk(delay), f.PerSecond, f.OnePerOne, latency)
		}
	}
	return nil
}

func disk(delay time.Duration) string {
	if delay == 0 {
		return "as it is"
	}
	return fmt.Sprintf("fsync + %s", delay)
}

func (b *bench) store(ctx context.Context, kind string, delay time.Duration) (f storeFigures, err error) {
	dir, err := os.MkdirTemp(b.dir, "store-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	var answer bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", storeVerb, "-kind", kind, "-dir", dir, "-for", b.each.String())
	cmd.Stdout, cmd.Stderr = &answer, os.Stderr
	if cmd.Path, err = os.Executable(); err != nil {
		return f, err
	}
	started, err := slowly(cmd, delay)
	if err != nil {
		return f, err
	}
	if err := cmd.Start(); err != nil {
		return f, err
	}
	if err := errors.Join(started(), cmd.Wait()); err != nil {
		return f, err
	}
	return f, json.Unmarshal(answer.Bytes(), &f)
}
