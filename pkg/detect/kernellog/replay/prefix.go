package replay

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// maxPrefix bounds the text before the head of a line: a path and a number of grep, a collector's stamp.
const maxPrefix = 200

// behindPrefix finds the head of a log's line behind a prefix: a quote, `grep -n`, the stamp of a collector. The first
// head counts, so that a program that quotes the kernel keeps its own name.
func (p *parser) behindPrefix(line []byte) (entry, bool) {
	if at := daemonAfterTime.Regexp().FindSubmatchIndex(line); at != nil {
		return entry{}.named(string(line[at[2]:at[3]]), string(line[at[4]:at[5]]), line[at[1]:]), true
	}
	for i := 1; i < len(line) && i <= maxPrefix; i++ {
		if !mayBegin(line[i-1], line[i]) {
			continue
		}
		e, ok := p.headed(cutQuote(line[i-1], line[i:]))
		if !ok {
			continue
		}
		if at := taggedPrefix.Regexp().FindSubmatchIndex(line[:i]); at != nil { // a program chose these words
			return entry{}.named(string(line[at[2]:at[3]]), string(line[at[4]:at[5]]), line[at[1]:]), true
		}
		if looksLikeKernel(line) {
			return entry{}, false // a device chose them
		}
		return e, true
	}
	return entry{}, false
}

var (
	// daemonAfterTime is kernelAfterTime for programs: a time in any form, up to four words, and a program's name.
	daemonAfterTime = kernellog.WhenNeeded(
		`^[^:\[\]]{0,40}?\d\d:\d\d:\d\d[^\s:\[\]]*(?: +[^\s:\[\]]{1,80}){0,4}? +([\w.@()-]{1,64})\[(\d{1,10})\]: `)
	// taggedPrefix is the name of a program before its text.
	taggedPrefix = kernellog.WhenNeeded(`([\w.@()-]{1,64})\[(\d{1,10})\]: `)
)

// named returns e as the text of a program with this name.
func (e entry) named(name, pid string, text []byte) entry {
	if s, ok := taggedEmitter(name, pid); ok {
		return e.spoken(s, text)
	}
	return e.unknown(name, text)
}

// cutQuote removes the end of a quotation that starts before the line.
func cutQuote(before byte, line []byte) []byte {
	if before != '"' && before != '\'' && before != '`' {
		return line
	}
	return bytes.TrimSuffix(bytes.TrimRight(line, ", "), []byte{before})
}

// mayBegin reports whether a head may start with b after before: each head starts with a bracket, a number or a word.
func mayBegin(before, b byte) bool {
	switch {
	case b == '[', b == '<', b == '{':
		return true
	case before >= utf8.RuneSelf || wordByte(before):
		return false
	}
	return b >= utf8.RuneSelf || wordByte(b)
}

func wordByte(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// headed reads a line with an unambiguous head: the kernel's stamp, or a time and the name of the sender.
func (p *parser) headed(line []byte) (entry, bool) {
	switch {
	case looksLikeRecord(line):
		e := p.parseKmsg(line)
		return e, e.what != badLine
	case bytes.HasPrefix(line, []byte(`{"`)):
		return p.parseJSON(line)
	}
	if e, ok := parseTalos(line); ok {
		return e, true
	}
	if e, ok := parseSyslog(line); ok {
		return e, true
	}
	if e, ok := ownLog(line); ok {
		return e, true
	}
	e := parseDmesg(line)
	if e.loose || !e.timed && !levelledLine(line) {
		return entry{}, false
	}
	if t, ok := e.tagged(e.text); ok {
		e = t
	}
	return e, true
}

// levelledLine reports whether a line without a time has a level, or a time of dmesg -H, before the kernel's words.
func levelledLine(line []byte) bool {
	if line[0] == '[' {
		inner, _, ok := bytes.Cut(line[1:], []byte("]"))
		return ok && len(inner) < 40 && relativeTime(inner)
	}
	return decoded.Regexp().Match(line)
}

// judgeBare decides about a line that may be the kernel's and has neither its stamp nor its name: it is if it starts
// like the kernel's lines. Otherwise it may be any text, and words of a fault in it are noted: they are no proof, but a
// log with them is not healthy.
func (s *replaying) judgeBare(text, line []byte, matched bool) {
	s.sum.Bare++
	if matched || looksLikeKernel(text) {
		s.sum.Known++
		return
	}
	if s.firstOdd == 0 {
		s.firstOdd, s.firstOddLine = s.sum.Lines, quoted(line)
	}
	if s.sum.Doubt != nil {
		return
	}
	for i := 1; i < len(text) && i <= maxPrefix; i++ {
		if wordByte(text[i-1]) || !wordByte(text[i]) {
			continue
		}
		if hit, ok := s.matcher.Match(text[i:]); ok && !hit.Recovered {
			s.sum.Doubt = &Doubt{Number: s.sum.Lines, Line: quoted(line), Rule: hit.Rule}
			return
		}
	}
}

func quoted(line []byte) string {
	return kernellog.PrintableUpTo(bytes.TrimRight(line, "\r\n"), maxQuoted)
}

// settleBare decides about the bare lines of the whole log: dmesg -t prints only the kernel's lines, and at least one
// in ten starts like those of a known part of the kernel. In any other text only those lines count.
func (s *replaying) settleBare() {
	odd := s.sum.Bare - s.sum.Known
	if odd == 0 || 10*s.sum.Known >= s.sum.Bare {
		return
	}
	s.sum.Kernel -= odd
	s.sum.Bad += odd
	if s.sum.FirstBad == 0 || s.firstOdd < s.sum.FirstBad {
		s.sum.FirstBad, s.sum.FirstBadLine = s.firstOdd, s.firstOddLine
	}
}

// Doubt is a line with the words of a fault that may not be a line of a log.
type Doubt struct {
	Number int
	Line   string // its start, printable
	Rule   *rules.Rule
}

// noteForeign keeps the names of programs whose lines are no evidence, to show the reader which ones replay skipped.
func (s *replaying) noteForeign(name string) {
	const most = 5
	if name != "" && len(s.sum.Programs) < most && !slices.Contains(s.sum.Programs, name) {
		s.sum.Programs = append(s.sum.Programs, name)
	}
}
