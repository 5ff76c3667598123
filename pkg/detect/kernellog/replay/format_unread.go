package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"

	"golang.org/x/text/encoding/unicode"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// packed are the magic bytes of compressed and binary files.
var packed = []struct{ magic, name string }{
	{"\xfd7zXZ\x00", "compressed with xz"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd"},
	{"BZh", "compressed with bzip2"},
	{"PK\x03\x04", "a zip archive"},
	{"LPKSHHRH", "a file of journald itself: journalctl --file FILE -o json reads it"},
}

// unpacked returns the text in r, which may be compressed with gzip, for example by log rotation.
func unpacked(r *bufio.Reader) (*bufio.Reader, error) {
	head, _ := r.Peek(8)
	for _, p := range packed {
		if bytes.HasPrefix(head, []byte(p.magic)) {
			return nil, fmt.Errorf("the input is no text: %s", p.name)
		}
	}
	if bytes.HasPrefix(head, []byte("\x1f\x8b\x08")) {
		text, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("the input is compressed with gzip: %w", err)
		}
		r = bufio.NewReaderSize(text, maxLine)
		head, _ = r.Peek(8)
	}
	if bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff")) { // of PowerShell
		decoder := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewDecoder()
		r = bufio.NewReaderSize(decoder.Reader(r), maxLine)
	}
	return withFields(r), nil
}

// Forms of the journal that are read only if the log begins with them: within another log, a line break in a message
// could pass for a field.
var (
	exportField   = kernellog.WhenNeeded(`^_{0,2}[A-Z][A-Z0-9_]{0,63}=`)
	verboseRecord = kernellog.WhenNeeded(`^\pL{1,8}\.? \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{6})? \S+ \[[a-z]=`)
)

// unread reports whether a line has a known but unsupported form, and notes which.
func (p *parser) unread(line []byte) bool {
	switch {
	case bytes.HasPrefix(line, []byte("__CURSOR=")), bytes.HasPrefix(line, []byte("__REALTIME_TIMESTAMP=")):
		p.strange = "journalctl -o export"
	case verboseRecord.Regexp().Match(line):
		p.strange = "journalctl -o verbose"
	case p.strange == "":
		return false
	default:
		return exportField.Regexp().Match(bytes.TrimLeft(line, " "))
	}
	return true
}

// syslogTime is a time before the kernel's name, in any form.
var syslogTime = kernellog.WhenNeeded(`^.{0,40}\d\d:\d\d:\d\d\S* .{0,80}kernel:`)

// afterTime is a time, up to four words that cannot be a program's name, and the kernel's name.
var afterTime = kernellog.WhenNeeded(`^[^:\[\]]{0,40}?\d\d:\d\d:\d\d[^\s:\[\]]*(?: +[^\s:\[\]]{1,80}){0,4} kernel: ?`)

// facility is a priority as syslog daemons write it: "kern.err".
var facility = kernellog.WhenNeeded(` ([a-z0-9]{3,8})\.(?:emerg|alert|crit|err|warn|notice|info|debug) `)

// kernelAfterTime reads a line of the kernel in a form of syslog with more words before its name than any known form.
func kernelAfterTime(line []byte) (entry, bool) {
	if !bytes.Contains(line[:min(len(line), 160)], []byte(" kernel:")) {
		return entry{}, false
	}
	at := afterTime.Regexp().FindIndex(line)
	if at == nil {
		return entry{}, false
	}
	head := line[:at[1]]
	if p := facility.Regexp().FindSubmatch(head); p != nil && string(p[1]) != "kern" {
		return entry{what: foreignLine}, true
	}
	e := entry{}.fromKernel(line[at[1]:])
	e.level = max(e.level, levelIn(head))
	return e, true
}

// oddSyslog reports whether a line is the kernel's in an unknown form of syslog. Taken as a line of the kernel it would
// match no rule, and a log full of faults would pass as healthy.
func oddSyslog(line []byte) bool {
	return bytes.Contains(line[:min(len(line), 160)], []byte("kernel:")) && syslogTime.Regexp().Match(line)
}
