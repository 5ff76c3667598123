package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress shows on a terminal what a command is waiting for, after a second.
type progress struct {
	out   io.Writer // nil: no terminal
	timer *time.Timer

	mu    sync.Mutex // guards all below
	count int        // done so far
	all   int
	last  string
	begun bool
	ended bool
}

// patience is how long a command may stay silent.
const patience = time.Second

func showProgress(out io.Writer, all int) *progress {
	p := &progress{all: all}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.out = out
	}
	p.timer = time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.begun = true
		p.show()
	})
	return p
}

// done records that one more is done.
func (p *progress) done(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	p.last = what
	p.show()
}

func (p *progress) show() {
	if p.out == nil || !p.begun || p.ended {
		return
	}
	fmt.Fprintf(p.out, "\r\x1b[Kchecking: %d of %d, last %s", p.count, p.all, p.last)
}

// end clears the line.
func (p *progress) end() {
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.begun && !p.ended {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.ended = true
}
