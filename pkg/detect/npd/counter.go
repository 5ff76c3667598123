package npd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
)

// counter replaces node-problem-detector's program log-counter: it counts the journal entries of one syslog identifier
// that match a pattern, within a time.
type counter struct {
	identifier, folder string
	times              times
	threshold          int
	patterns           []*pattern // the pattern to count, and the one that reverts it
	revert             bool
	limit              int // of the message, in bytes

	read func(ctx context.Context, c program.Command, lines program.Lines) error
}

const (
	// counterBuffer is how many entries patterns are matched against: as in log-counter.
	counterBuffer = 1000
	// maxEntries bounds how much one run reads.
	maxEntries = 200_000
)

func newCounter(args []string) (*counter, error) {
	c := &counter{
		identifier: flagOf(args, "journald-source", ""), folder: flagOf(args, "log-path", ""), read: program.Read,
		revert: flagOf(args, "revert-pattern", "") != "",
	}
	var err error
	if c.identifier == "" {
		return nil, errors.New("log-counter needs --journald-source")
	}
	if c.threshold, err = strconv.Atoi(flagOf(args, "count", "1")); err != nil {
		return nil, errors.New("log-counter: --count is no number")
	}
	if c.times.lookback, err = duration(flagOf(args, "lookback", ""), 0, nil); err != nil {
		return nil, fmt.Errorf("log-counter: --lookback: %w", err)
	}
	if c.times.delay, err = duration(flagOf(args, "delay", ""), 0, nil); err != nil {
		return nil, fmt.Errorf("log-counter: --delay: %w", err)
	}
	for _, name := range []string{"pattern", "revert-pattern"} {
		p, err := newPattern(flagOf(args, name, ""))
		if err != nil {
			return nil, fmt.Errorf("log-counter: --%s: %w", name, err)
		}
		c.patterns = append(c.patterns, p)
	}
	return c, nil
}

// count returns the same result as log-counter (cmd/logcounter).
func (c *counter) count(ctx context.Context, h *host.Host) plugin.Result {
	now := h.Clock()
	from := now.Wall.Add(c.times.start(now.SinceBoot) - now.SinceBoot)
	if from.After(now.Wall) {
		return plugin.Result{Status: plugin.OK} // the delay after boot is not over
	}
	args := []string{sinceArg(from), "--until=@" + strconv.FormatInt(now.Wall.Unix()+1, 10)}
	command := journalCommand(h, c.folder, args, c.identifier)
	b, entries, found, malformed := newBuffer(counterBuffer, c.patterns), 0, 0, 0
	err := c.read(ctx, command, program.Lines{Each: func(text []byte) {
		if entries++; entries > maxEntries {
			return
		}
		e, at, err := parseEntry(text)
		if err != nil {
			malformed++
			return
		}
		if !at.Before(from) && !at.After(now.Wall) {
			found += c.counts(b, e)
		}
	}})
	switch {
	case err != nil:
		return plugin.Result{Message: err.Error()}
	case entries > maxEntries:
		return plugin.Result{Message: fmt.Sprintf("%s wrote more than %d entries within %s", c.identifier, maxEntries,
			now.Wall.Sub(from).Round(time.Second))}
	case malformed > 0:
		return plugin.Result{Message: fmt.Sprintf("%d entries of the journal could not be read", malformed)}
	case found < c.threshold:
		return plugin.Result{Status: plugin.OK}
	}
	message := fmt.Sprintf("Found %d matching logs, which meets the threshold of %d", found, c.threshold)
	return plugin.Result{Status: plugin.Problem, Message: message[:min(len(message), c.limit)]}
}

// counts adds an entry and returns by how much it changes the count.
func (c *counter) counts(b *Buffer, e entry) (change int) {
	b.Push(string(e.Message))
	if _, ok := b.Match(0); ok {
		change++
	}
	if c.revert {
		if _, ok := b.Match(1); ok {
			change--
		}
	}
	return change
}
