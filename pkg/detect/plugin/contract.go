// Package plugin runs checks that users write as programs, by the contract of node-problem-detector: exit code 0 says
// that all is well, 1 that there is a problem, anything else that the program could not tell; the beginning of what
// it prints is the message. A plugin that hangs, or leaves children behind, costs only itself.
package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/program"
)

// Status is what a plugin says.
type Status int

// The statuses.
const (
	Unknown Status = iota
	OK
	Problem
)

// Result is one answer of a plugin.
type Result struct {
	Status  Status
	Message string // what it printed, bounded; of one that was killed or could not be started, why
	Stderr  string // bounded
}

// Plugin is a program with what it is run by.
type Plugin struct {
	Name      string // as messages call it
	Command   program.Command
	Timeout   time.Duration
	MaxOutput int // of the message, in bytes; not above program.MaxOutput

	runner program.Runner
}

// Run runs the plugin once.
func (p *Plugin) Run(ctx context.Context) Result {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	o, err := p.runner.Run(ctx, p.Command)
	if err != nil {
		return Result{Message: err.Error()}
	}
	r := Result{Message: strings.TrimSpace(string(o.Stdout)), Stderr: text(strings.TrimSpace(string(o.Stderr)),
		program.MaxOutput)}
	if o.TimedOut {
		r.Message = fmt.Sprintf("Timeout when running plugin %q: state - %s. output - %q", p.Name, o.State, r.Message)
	}
	r.Message = text(r.Message, p.MaxOutput)
	switch o.Exit {
	case 0:
		r.Status = OK
	case 1:
		r.Status = Problem
	}
	return r
}

// text cuts what a program has written, and makes it valid UTF-8 on one line.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(s[:min(len(s), max(limit, 0))], "\uFFFD")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
