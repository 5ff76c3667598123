package replay

import (
	"bytes"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// entry is one parsed line of a saved log.
type entry struct {
	what  kindOfLine
	text  []byte        // the kernel's own text; only of kernelLine
	at    time.Duration // by the clock of the log; only if timed
	timed bool
	up    time.Duration // since boot; only if upKnown
	// upKnown is false if the log has wall-clock times or none.
	upKnown bool
	boot    string // identity of the boot, if the log contains it

	emitter rules.Emitter   // the daemon that wrote a foreignLine, if known
	level   kernellog.Level // of a line of the kernel
	message []byte          // its text, without the header of its own log; only with an emitter

	bare    bool   // neither a time nor a name: counted as the kernel's because dmesg -t prints only its text
	loose   bool   // bare, or with a time that does not show the writer
	program string // the writer of a foreignLine with unknown emitter, if the line names it
	number  int    // of the line with the text, if it is not the last line read; 0 otherwise
	line    []byte // that line; only with a number

	document []byte // JSON in which no line of a log was found where a record has it
}

// kindOfLine classifies the writer of a line.
type kindOfLine int

const (
	badLine      kindOfLine = iota // not of the format
	kernelLine                     // the kernel's own text
	foreignLine                    // a program's text
	silentLine                     // no message: headings, dictionaries, the second half of a record
	bootBoundary                   // a heading of another boot
)

// withUp returns e with a time since boot.
func (e entry) withUp(up time.Duration) entry {
	e.at, e.timed, e.up, e.upKnown = up, true, up, true
	return e
}

// withWall returns e with a wall-clock time.
func (e entry) withWall(t time.Time) entry {
	e.at, e.timed = time.Duration(t.UnixNano()), true
	return e
}

// seconds parses "12.345678", the time format of the kernel; it skips leading blanks.
func seconds(text []byte) (time.Duration, bool) {
	text = bytes.Trim(text, " ")
	whole, fraction, ok := bytes.Cut(text, []byte("."))
	if !ok || len(whole) > 10 || len(fraction) > 9 || !digits(whole) || !digits(fraction) {
		return 0, false
	}
	d, err := time.ParseDuration(string(text) + "s")
	return d, err == nil
}

// firstLine joins a message of several lines, with the breaks written as \x0a like in /dev/kmsg: text after a line break
// in a message must not be taken for the start of a kernel line.
func firstLine(message []byte) []byte {
	if bytes.IndexByte(message, '\n') < 0 {
		return message
	}
	return bytes.ReplaceAll(bytes.TrimRight(message, "\n"), []byte("\n"), []byte(`\x0a`))
}

// stripColour removes the colour escape sequences of dmesg and journalctl.
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
