package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// bench is one run.
type bench struct {
	dir, binary   string
	nodes, perDay int
	span          time.Duration
	rows          []row
}

// row is a line of the table.
type row struct{ what, goal, got string }

func (b *bench) row(what, goal, format string, args ...any) {
	got := fmt.Sprintf(format, args...)
	logf("%s: %s", what, got)
	b.rows = append(b.rows, row{what, goal, got})
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *bench) run(ctx context.Context) (err error) {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.binary == "" {
		b.binary = filepath.Join(b.dir, "eventcenter")
		logf("building the center")
		build := exec.CommandContext(ctx, "go", "build", "-o", b.binary, "./cmd/eventcenter")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return err
		}
	}
	err = b.center(ctx) // the measurements so far are still printed
	fmt.Printf("\n%s, %d cores, which the nodes share with the center; %s\n\n| | goal | measured |\n|---|---|---|\n",
		runtime.GOARCH, runtime.NumCPU(), time.Now().Format(time.DateOnly))
	for _, r := range b.rows {
		fmt.Printf("| %s | %s | %s |\n", r.what, r.goal, r.got)
	}
	return err
}
