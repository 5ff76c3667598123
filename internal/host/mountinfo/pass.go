package mountinfo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// pass is one reading of a table, from its first line on.
type pass struct {
	same  int   // lines from the beginning that are as they were in the last table
	fresh lines // once one is not
}

// advance reads on while more permits it. It reports whether the table is at its end.
func (p *pass) advance(r *Reader, input *bufio.Reader, more func() bool) (done bool, err error) {
	for more() {
		line, err := r.line(input)
		switch {
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("mount table: %w", err)
		case len(line) > 0:
			if err := p.add(r, line); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

func (p *pass) add(r *Reader, line []byte) error {
	n, known := r.last.at[string(line)]
	if known && n == p.same && p.fresh.at == nil {
		p.same++
		return nil
	}
	if p.fresh.at == nil {
		p.fresh = r.last.first(p.same)
	}
	var m Mount
	text := string(line)
	if known {
		m = r.last.table[n]
	} else {
		var err error
		if m, err = r.parse(text); err != nil {
			return fmt.Errorf("mount table line %q: %w", hosterr.Clip(text), err)
		}
	}
	p.fresh.at[text] = len(p.fresh.table)
	p.fresh.table = append(p.fresh.table, m)
	return nil
}

// withBeside returns the known mounts, and the number of unknown ones if all of these are in the stack.
func (g *going) withBeside(r *Reader, name string) (known []Mount, hidden int) {
	if g.beside != nil && g.beside.file.changed() {
		_ = g.beside.close()
		g.beside = nil
	}
	read := g.fresh.table
	if g.fresh.at == nil {
		read = r.last.table[:g.same]
	}
	if g.beside == nil && !g.failed && g.file.counts() {
		var err error
		g.beside, err = r.readBeside(name, read)
		g.failed = err != nil
	}
	if g.beside == nil {
		return g.known(r), 0
	}
	known = withMissing(read, g.beside.mounts)
	return known, max(0, g.beside.total-len(known))
}

// end makes the table the last one of the reader, and returns it.
func (p *pass) end(r *Reader) []Mount {
	if p.fresh.at == nil && p.same < len(r.last.table) {
		p.fresh = r.last.first(p.same)
	}
	if p.fresh.at != nil {
		r.last = p.fresh
	}
	return slices.Clip(r.last.table) // who appends gets a copy
}

// known returns the lines that the pass has read, and those that the last table has behind them.
func (p *pass) known(r *Reader) []Mount {
	if p.fresh.at == nil {
		return slices.Clip(r.last.table)
	}
	return withMissing(p.fresh.table, r.last.table)
}

// withMissing returns the mounts that were read, and behind them the others that it lacks.
func withMissing(read, others []Mount) []Mount {
	seen := make(map[int]bool, len(read))
	for _, m := range read {
		seen[m.ID] = true
	}
	known := slices.Clone(read)
	for _, m := range others {
		if !seen[m.ID] {
			known = append(known, m)
		}
	}
	return known
}

// CutError means that reading the whole table would cost too much.
type CutError struct {
	Lines  int  // were read
	First  bool // no table was read to its end before: there may be unknown mounts
	Hidden int  // unknown mounts, if all are in the stack; 0: others may be unknown too
	Stack  Stack
}

func (e *CutError) Error() string {
	text := "the mount table costs too much to be read at once"
	if e.Lines > 0 {
		text += fmt.Sprintf(": %d lines were read", e.Lines)
	}
	if e.Stack.Mounts > 1 {
		text += fmt.Sprintf("; %d mounts lie on %s, each over the one before", e.Stack.Mounts, hosterr.Sanitize(e.Stack.Point, 256))
	}
	return text
}

// Stack is a directory with mounts one over the other.
type Stack struct {
	Point  string
	Mounts int
}

// HighestStack returns the mount point that has most mounts.
func HighestStack(table []Mount) (most Stack) {
	on := make(map[string]int)
	for _, m := range table {
		if on[m.Point]++; on[m.Point] > most.Mounts {
			most = Stack{m.Point, on[m.Point]}
		}
	}
	return most
}

// going is a reading that many calls of Known share.
type going struct {
	pass
	file  *File
	input *bufio.Reader
	size  *io.LimitedReader
	from  *metered
	at    time.Time // when it began

	beside *beside // nil: it is not known
	failed bool    // it cannot be known
}

// Known reads a table that may cost too much to be read at once. It returns all of it, or what is known of it and a
// CutError; each call goes on where the last one ended. What is known is what this reading has read, and behind that all
// mounts beside the stack (see beside) or, if the kernel cannot list these, the lines of the last whole reading, which
// may be gone. The table is shared: it must not be modified.
func (r *Reader) Known(name string, limit int64) ([]Mount, error) {
	if r == nil {
		r = &Reader{}
		defer func() { _ = r.Close() }()
	}
	asked := time.Now()
	r.mu.Lock() // who waits here would hang in the kernel, too
	defer r.mu.Unlock()
	if r.kept.file != nil && r.kept.file.name == name && r.kept.at.After(asked) {
		return r.kept.table, nil // another one has read it meanwhile
	}
	if r.going == nil {
		if err := r.start(name, limit); err != nil {
			return nil, err
		}
	}
	g := r.going
	done, err := g.advance(r, g.input, g.from.more)
	if _, err = withinLimit(nil, err, g.file, g.size, limit); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	if !done {
		r.budget.found(g.from)
		g.from.free = 0
		known, hidden := g.withBeside(r, name)
		return known, &CutError{max(g.same, len(g.fresh.table)), r.last.at == nil, hidden, HighestStack(known)}
	}
	r.budget.found(g.from)
	r.going = nil
	table, closed := g.end(r), g.beside.close()
	if !g.file.counts() {
		return table, errors.Join(closed, g.file.Close())
	}
	closed = errors.Join(closed, r.forget())
	r.kept = kept{g.file, table, r.last, g.at, g.from.cost}
	return table, closed
}

// start opens the table for a reading that may take many calls.
func (r *Reader) start(name string, limit int64) error {
	file, err := Open(name)
	if err != nil {
		return err
	}
	from := r.metered(file, free)
	if r.budget.slow() {
		from.free = 0
	}
	size := &io.LimitedReader{R: from, N: limit + 1}
	r.going = &going{file: file, input: bufio.NewReader(size), size: size, from: from, at: time.Now()}
	return nil
}

// drop ends the reading that goes on.
func (r *Reader) drop() error {
	if r.going == nil {
		return nil
	}
	file, beside := r.going.file, r.going.beside
	r.going = nil
	return errors.Join(file.Close(), beside.close())
}
