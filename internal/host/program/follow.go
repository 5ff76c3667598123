package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// MaxLine bounds a line of a program's output: a journal entry with a message of 64 KiB fits, whatever its bytes.
const MaxLine = 512 << 10

// Lines receives a program's output.
type Lines struct {
	Each    func(line []byte) // without the newline; valid until it returns
	Skipped func()            // a line was longer than MaxLine and is lost; may be nil
}

// Follow runs a program with endless output until ctx ends: then it kills the program and returns nil. It is an error
// if the program ends by itself.
func Follow(ctx context.Context, c Command, lines Lines) error {
	if err := read(ctx, c, lines); ctx.Err() == nil {
		return err
	}
	return nil
}

// Read runs a program and reads all lines of its output until it ends. An exit code other than 0 is an error.
func Read(ctx context.Context, c Command, lines Lines) error {
	err := read(ctx, c, lines)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", c.Path, ctx.Err())
	}
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// errDone means that a program ended with exit code 0.
var errDone = errors.New("it ended")

func read(ctx context.Context, c Command, lines Lines) error {
	if !filepath.IsAbs(c.Path) {
		return fmt.Errorf("run %q: not an absolute path", c.Path)
	}
	from, to, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("run %s: %w", c.Path, err)
	}
	defer from.Close()
	p, errs := newChild(c), &head{limit: MaxOutput}
	p.Cmd.Stdout, p.Cmd.Stderr = to, errs
	spare := p.Started
	p.Started = func() { spare(); _ = to.Close() } // the program has its own
	// A process that left its process group may hold the pipe forever.
	p.Reaped = func() { _ = from.SetReadDeadline(time.Now().Add(pipeGrace)) }
	p.Start()
	stop := context.AfterFunc(ctx, func() {
		p.Kill(killGrace)
		_ = from.Close() // ends the read, even if the program hangs
	})
	defer stop()
	scanErr := split(bufio.NewReaderSize(from, 32<<10), lines)
	if errors.Is(scanErr, os.ErrDeadlineExceeded) {
		scanErr = nil
	}
	select {
	case <-p.done:
	case <-time.After(pipeGrace): // it has closed its output but continues
		if !p.Kill(killGrace) {
			return fmt.Errorf("run %s: %w", c.Path, ErrAbandoned)
		}
	}
	switch {
	case p.Cmd.ProcessState != nil && p.Cmd.ProcessState.Success() && scanErr == nil:
		return fmt.Errorf("%s: %w", c.Path, errDone)
	case scanErr != nil:
		return fmt.Errorf("read from %s: %w", c.Path, scanErr)
	}
	return ending(p, errs)
}

// split passes the lines of r to lines until r ends.
func split(r *bufio.Reader, lines Lines) error {
	var long []byte // start of a line too long for the buffer of r
	skipping := false
	for {
		piece, err := r.ReadSlice('\n')
		whole := err == nil
		if len(long)+len(piece) > MaxLine {
			skipping = true
		}
		switch {
		case skipping && whole:
			if lines.Skipped != nil {
				lines.Skipped()
			}
		case skipping:
		case whole && long == nil:
			lines.Each(piece[:len(piece)-1])
		case whole:
			lines.Each(append(long, piece[:len(piece)-1]...))
		default:
			long = append(long, piece...)
		}
		if whole || skipping {
			long = nil
		}
		if whole {
			skipping = false
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}
