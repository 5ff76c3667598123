// Package replay reads saved logs in all common formats, and reports which rules they match.
package replay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// maxLine bounds a line of a saved log; a longer line is cut and counted.
const maxLine = 64 << 10

// maxQuoted is how much is shown of a line in another format.
const maxQuoted = 100

// Replay configures how a saved log is read. The zero value reads any format and trusts the kernel only.
type Replay struct {
	Format   Format             // empty: Auto
	Programs bool               // lines of programs in the kernel's log count as the kernel's; for tests
	Daemons  *kernellog.Matcher // for lines of daemons; nil: they are ignored
}

// Found is a match in a saved log.
type Found struct {
	kernellog.Match
	Number int    // of the line, from 1
	Line   string // the line in the log, printable; at most 8 KiB
	Text   string // the text of the kernel or the daemon in it
}

// Summary is how much of a log could be read, and its contents.
type Summary struct {
	Lines   int // read
	Kernel  int // of the kernel itself
	Daemon  int // of a daemon
	Foreign int // of other programs
	Bad     int // in another format
	Cut     int // longer than 64 KiB
	Bare    int // with neither a time nor a name: like the kernel's lines in dmesg -t, and like any text
	Known   int // of those, the ones that start like the kernel's lines

	Programs []string // whose lines are no evidence, if the lines name them; the first few
	Doubt    *Doubt   // words of a fault in a line that may not be of a log; nil: none

	FirstBad     int    // the first line in another format; 0: none
	FirstBadLine string // its start, printable
	Strange      string // the form that the log seems to have, if it is known but not supported; empty: none

	Matches int            // lines that matched a rule
	Counts  finding.Counts // findings: raised matches that are not further lines of a report
}

// Understood reports whether any line looks like a line of a log. An empty log is understood.
func (s Summary) Understood() bool { return s.Bad == 0 || s.Kernel+s.Daemon+s.Foreign > 0 }

// Judged reports whether any line is of a writer that the rules know.
func (s Summary) Judged() bool { return s.Kernel+s.Daemon > 0 }

// Problems reports whether a finding above information was raised.
func (s Summary) Problems() bool { return s.Counts[finding.Warning]+s.Counts[finding.Fatal] > 0 }

// Read reads a log to its end and passes every match to emit, in the order of the lines, including recoveries. Its
// memory is bounded for any log. It returns errors of reading and of emit.
func (o Replay) Read(m *kernellog.Matcher, r io.Reader, emit func(Found) error) (Summary, error) {
	if o.Format == "" {
		o.Format = Auto
	}
	s := replaying{Replay: o, matcher: m, parser: parser{format: o.Format}, tally: kernellog.NewTally(m), emit: emit}
	if o.Daemons != nil {
		s.daemons = kernellog.NewTally(o.Daemons)
	}
	s.sum.Counts = finding.Counts{}
	lines, err := unpacked(bufio.NewReaderSize(r, maxLine))
	if err != nil {
		return s.sum, err
	}
	for {
		line, err := lines.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		if len(line) > 0 {
			if s.sum.Lines == 0 {
				line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // byte order mark
			}
			if emitErr := s.line(line, cut); emitErr != nil {
				return s.sum, emitErr
			}
		}
		for cut && errors.Is(err, bufio.ErrBufferFull) { // the rest of the line
			_, err = lines.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			s.sum.Strange = s.parser.strange
			s.settleBare()
			return s.sum, nil
		}
		if err != nil {
			return s.sum, fmt.Errorf("read line %d: %w", s.sum.Lines+1, err)
		}
	}
}

// replaying is the state of reading a log.
type replaying struct {
	Replay
	matcher *kernellog.Matcher
	parser  parser
	tally   *kernellog.Tally
	daemons *kernellog.Tally // nil: they are ignored
	emit    func(Found) error
	sum     Summary

	at     time.Duration // of the newest line with a time
	boot   string
	bootAt time.Duration // the start of the boot, on the log's clock
	booted bool          // bootAt is known

	firstOdd     int // the first bare line that does not start like the kernel's; 0: none
	firstOddLine string
}

func (s *replaying) line(line []byte, cut bool) error {
	s.sum.Lines++
	if cut {
		s.sum.Cut++
	}
	e := s.parser.parse(line)
	if entries := s.parser.records(e.document); len(entries) > 0 {
		for _, inner := range entries {
			if err := s.entry(inner, line); err != nil {
				return err
			}
		}
		return nil
	}
	return s.entry(e, line)
}

// entry counts what a line has, and observes it.
func (s *replaying) entry(e entry, line []byte) error {
	switch e.what {
	case badLine:
		s.sum.Bad++
		if s.sum.FirstBad == 0 {
			s.sum.FirstBad, s.sum.FirstBadLine = s.sum.Lines, quoted(line)
		}
		return nil
	case bootBoundary:
		s.newBoot()
		return nil
	case foreignLine:
		if e.emitter != rules.TheKernel && s.daemons != nil {
			s.sum.Daemon++
			r := s.record(e)
			r.Text, r.Emitter = e.message, e.emitter
			return s.observe(s.daemons, r, e, line)
		}
		s.sum.Foreign++
		s.noteForeign(e.program)
		if !s.Programs || e.text == nil {
			return nil
		}
	case kernelLine:
		s.sum.Kernel++
		if e.loose {
			_, matched := s.matcher.Match(e.text)
			s.judgeBare(e.text, line, matched)
		}
	default:
		return nil
	}
	return s.observe(s.tally, s.record(e), e, line)
}

// observe counts a record and passes on its match.
func (s *replaying) observe(tally *kernellog.Tally, r kernellog.Record, e entry, line []byte) error {
	m, ok := tally.Observe(r)
	if !ok {
		return nil
	}
	if !m.Recovered {
		s.sum.Matches++
		if m.Raised && !m.Again {
			s.sum.Counts[m.Severity]++
		}
	}
	number := s.sum.Lines
	if e.number > 0 {
		number, line = e.number, e.line
	}
	return s.emit(Found{Match: m, Number: number, Line: kernellog.PrintableUpTo(bytes.TrimRight(line, "\r\n"),
		kernellog.MaxText), Text: kernellog.Printable(r.Text)})
}

// record puts a line into its time and boot.
func (s *replaying) record(e entry) kernellog.Record {
	begins := bytes.HasPrefix(e.text, []byte("Linux version "))
	if !begins && !s.booted && e.timed && !e.upKnown && startsUp(e.text) {
		s.bootAt, s.booted = e.at, true
	}
	if begins || e.boot != "" && s.boot != "" && e.boot != s.boot {
		s.newBoot()
	}
	if e.boot != "" {
		s.boot = e.boot
	}
	if e.timed {
		s.at = e.at
	}
	if begins && e.timed && !e.upKnown {
		s.bootAt, s.booted = e.at, true
	}
	r := kernellog.Record{Text: e.text, Level: e.level, At: s.at, Up: e.up, UpKnown: e.upKnown}
	if !r.UpKnown && s.booted && e.timed {
		r.Up, r.UpKnown = s.at-s.bootAt, true
	}
	return r
}

// startsUp recognises lines that the kernel writes only in its first seconds, for a boot whose first line is not in the
// log.
func startsUp(text []byte) bool {
	for _, start := range []string{"Command line: ", "ACPI: PCI Root Bridge ", "pci_bus 0000:00: root bus resource ",
		"Run /init as init process", "Freeing initrd memory: "} {
		if bytes.HasPrefix(text, []byte(start)) {
			return true
		}
	}
	return false
}

func (s *replaying) newBoot() {
	s.tally.Reset()
	if s.daemons != nil {
		s.daemons.Reset()
	}
	s.booted, s.boot = false, ""
}
