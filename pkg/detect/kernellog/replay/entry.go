package replay

import (
	"bytes"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// entry is one line of a saved log, read.
type entry struct {
	what  kindOfLine
	text  []byte        // the kernel's own words; only of kernelLine
	at    time.Duration // of the clock that the log was written with; only where timed
	timed bool
	up    time.Duration // since boot; only where upKnown
	// upKnown is false where the log has wall-clock times or none.
	upKnown bool
	boot    string // identity of the boot, where the log contains it

	emitter rules.Emitter   // the daemon that wrote a foreignLine, where it is known
	level   kernellog.Level // of a line of the kernel
	said    []byte          // what it said, without the header of its own log; only with a emitter

	bare    bool   // neither a time nor anybody's name: it is the kernel's because dmesg -t prints nothing else
	loose   bool   // bare, or with a time that does not show whose line it is
	program string // who wrote a foreignLine whose emitter is not known, where the line names it
	number  int    // of the line with the text, where that is not the last that was read; 0 otherwise
	line    []byte // that line; only with a number
}

// kindOfLine says whose word a line is.
type kindOfLine int

const (
	badLine      kindOfLine = iota // not of the format
	kernelLine                     // the kernel's own word
	foreignLine                    // a program's word
	silentLine                     // no message: headings, dictionaries, the second half of a record
	bootBoundary                   // a heading which says that another boot begins
)

// timed returns e with a time since boot.
func (e entry) withUp(up time.Duration) entry {
	e.at, e.timed, e.up, e.upKnown = up, true, up, true
	return e
}

// withWall returns e with a wall-clock time.
func (e entry) withWall(t time.Time) entry {
	e.at, e.timed = time.Duration(t.UnixNano()), true
	return e
}

// seconds parses "12.345678", as the kernel prints times; blanks before it are padding.
func seconds(text []byte) (time.Duration, bool) {
	text = bytes.Trim(text, " ")
	whole, fraction, ok := bytes.Cut(text, []byte("."))
	if !ok || len(whole) > 10 || len(fraction) > 9 || !digits(whole) || !digits(fraction) {
		return 0, false
	}
	d, err := time.ParseDuration(string(text) + "s")
	return d, err == nil
}

// firstLine cuts a message of several lines to the words of its first, and writes the break as /dev/kmsg does:
// whoever can put a line break into a message cannot begin a sentence of the kernel with it.
func firstLine(message []byte) []byte {
	if bytes.IndexByte(message, '\n') < 0 {
		return message
	}
	return bytes.ReplaceAll(bytes.TrimRight(message, "\n"), []byte("\n"), []byte(`\x0a`))
}

// stripColour removes the escape sequences with which dmesg and journalctl colour their output.
func stripColour(line []byte) []byte {
	if bytes.IndexByte(line, 0x1b) < 0 {
		return line
	}
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); i++ {
		if line[i] != 0x1b || i+1 >= len(line) || line[i+1] != '[' {
			out = append(out, line[i])
			continue
		}
		for i += 2; i < len(line) && (line[i] < '@' || line[i] > '~'); i++ {
		}
	}
	return out
}
