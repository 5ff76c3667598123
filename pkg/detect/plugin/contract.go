// Package plugin runs checks that users write as programs, by the contract of node-problem-detector: exit code 0 means
// healthy, 1 a problem, any other an unknown state; the beginning of its output is the message. A plugin that hangs, or
// leaves children behind, affects only itself.
package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Status is the result of a plugin.
type Status int

// The statuses.
const (
	Unknown Status = iota
	OK
	Problem
)

// Result is the result of one run of a plugin.
type Result struct {
	Status  Status
	Message string // its output, bounded; the reason if it was killed or could not be started
	Stderr  string // bounded
}

// Plugin is a program with the way to run it.
type Plugin struct {
	Name      string // in messages
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

// text truncates the output of a program, and makes it valid UTF-8 on one line.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(finding.Clip(s, limit), "\uFFFD")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
