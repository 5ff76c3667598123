package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// Format is a form in which kernel logs are saved.
type Format string

// The formats. Auto detects the format of each line: no line of one is valid in another.
const (
	Auto    Format = "auto"
	Dmesg   Format = "dmesg"   // dmesg, with any kind of time or none; the console
	Kmsg    Format = "kmsg"    // records of /dev/kmsg
	Journal Format = "journal" // journalctl -o json or -o short and its kin; syslog files
)

// ParseFormat returns the format with the given name.
func ParseFormat(name string) (Format, error) {
	switch f := Format(name); f {
	case Auto, Dmesg, Kmsg, Journal:
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: there are auto, dmesg, kmsg and journal", name)
}

// parser reads the lines of one log, in order.
type parser struct {
	format Format
	timed  bool // the log's lines have times: an indented line without a time belongs to the line before it
	kmsg   bool // the previous line was a record of /dev/kmsg or of its dictionary

	number  int    // of the line being read, from 1
	object  object // a record of several lines
	strange string // a log format that was seen but is not supported; empty: none
}

func (p *parser) parse(line []byte) entry {
	p.number++
	line = stripColour(cutZeros(bytes.TrimRight(line, "\r\n")))
	if len(bytes.TrimSpace(line)) == 0 {
		return entry{what: silentLine}
	}
	if p.format != Kmsg {
		if e, ok := p.pretty(line); ok {
			return e
		}
		if p.unread(line) {
			return entry{what: badLine}
		}
	}
	switch p.format {
	case Kmsg:
		return p.parseKmsg(line)
	case Journal:
		return p.parseJournal(line, true)
	case Dmesg:
		return p.parseDmesg(line)
	}
	return p.guess(line)
}

// cutZeros removes the blocks of zeros that a syslog file has after a loss of power.
func cutZeros(line []byte) []byte {
	if text := bytes.Trim(line, "\x00"); len(text) > 0 && text[0] >= ' ' {
		return text
	}
	return line
}

func (p *parser) guess(line []byte) entry {
	line = cutContainer(line)
	if text, ok := cutDocker(line); ok {
		line = text
	}
	switch {
	case len(line) == 0:
		return entry{what: silentLine}
	case looksLikeRecord(line), p.kmsg && line[0] == ' ':
		return p.parseKmsg(line)
	case bytes.HasPrefix(trimJSON(line), []byte(`{"`)) && !bytes.HasPrefix(line, []byte(`{"ts":`)):
		e, _ := p.parseJSON(trimJSON(line))
		return e
	case bytes.HasPrefix(line, []byte(`[{"`)) && json.Valid(line):
		return entry{what: foreignLine, document: line}
	case bytes.HasPrefix(line, []byte("-- ")):
		return p.parseJournal(line, false)
	}
	p.kmsg = false
	if e, ok := parseTalos(line); ok {
		p.timed = true
		return e
	}
	if e, ok := parseSyslog(line); ok {
		p.timed = true
		return e
	}
	if e, ok := ownLog(line); ok {
		return e
	}
	e := p.parseDmesg(line)
	if e.loose || e.what == badLine {
		if behind, ok := p.behindPrefix(line); ok {
			p.timed, p.strange = true, ""
			return behind
		}
	}
	return e
}

// ownLog recognises the lines of a log that a daemon writes itself, without its name: kubelet.log, containerd.log.
func ownLog(line []byte) (entry, bool) {
	line = cutNode(line)
	_, s, ok := cutHeader(line)
	if !ok {
		return entry{}, false
	}
	return entry{}.spoken(s, line), true
}

// looksLikeRecord reports whether line starts like a record of /dev/kmsg: "6,339,5140900,-;".
func looksLikeRecord(line []byte) bool {
	head, _, ok := bytes.Cut(line[:min(len(line), 128)], []byte(";"))
	if !ok || bytes.Count(head, []byte(",")) < 3 {
		return false
	}
	return len(bytes.TrimLeft(head[:bytes.LastIndexByte(head, ',')], "0123456789,")) < len(head)/2 && head[0] >= '0' &&
		head[0] <= '9'
}

func (p *parser) parseKmsg(line []byte) entry {
	if line[0] == ' ' && p.kmsg {
		return entry{what: silentLine} // the dictionary of the previous record
	}
	r, err := kmsg.ParseKernelRecord(line)
	if err != nil {
		return entry{what: badLine}
	}
	p.kmsg = true
	e := entry{what: kernelLine, text: []byte(r.Text), level: kernellog.LevelOf(r.Level)}.withUp(r.Time)
	switch {
	case !r.FromKernel():
		e.what = foreignLine
		if t, ok := e.tagged(e.text); ok {
			return t
		}
	case isFragment(line):
		e.what = silentLine
	}
	return e
}

// isFragment reports whether a record is the rest of an earlier one: its flags are the fourth field. It is not the
// start of a kernel line.
func isFragment(line []byte) bool {
	head, _, _ := bytes.Cut(line, []byte(";"))
	fields := strings.SplitN(string(head), ",", 5)
	return len(fields) > 3 && strings.ContainsAny(fields[3], "c+")
}

func (p *parser) parseJournal(line []byte, monotonic bool) entry {
	if trimmed := trimJSON(line); bytes.HasPrefix(trimmed, []byte("{")) {
		return parseJournalJSON(trimmed)
	}
	// -- Boot 1234… --, -- Logs begin at …, -- No entries --
	if heading, ok := bytes.CutPrefix(line, []byte("-- ")); ok {
		if bytes.HasPrefix(heading, []byte("Boot ")) || bytes.HasPrefix(heading, []byte("Reboot ")) {
			return entry{what: bootBoundary}
		}
		return entry{what: silentLine}
	}
	if e, ok := parseJournalShort(line, monotonic); ok {
		p.timed = true
		return e
	}
	if e, ok := parseSyslog(line); ok {
		p.timed = true
		return e
	}
	if e, ok := ownLog(line); ok {
		return e
	}
	if p.timed && (line[0] == ' ' || line[0] == '\t') {
		return entry{what: silentLine} // the second line of a message
	}
	return entry{what: badLine}
}

func (p *parser) parseDmesg(line []byte) entry {
	if text, ok := console(line); ok {
		return entry{}.spoken(rules.Systemd, text)
	}
	if e, ok := parseTalos(line); ok {
		p.timed = true
		return e
	}
	e := parseDmesg(line)
	if e.bare {
		if known, ok := kernelAfterTime(line); ok {
			return known
		}
	}
	if e.bare && oddSyslog(line) {
		p.strange = "this form of syslog"
		return entry{what: badLine}
	}
	if t, ok := e.tagged(e.text); ok {
		e = t
	}
	if e.timed {
		p.timed = true
	} else if p.timed && e.what == kernelLine && (line[0] == ' ' || line[0] == '\t') {
		e.what = silentLine
	}
	return e
}
