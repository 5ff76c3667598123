package replay

import (
	"bytes"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// decoded is the start of a line of dmesg -x: "kern  :err   : ".
var decoded = kernellog.WhenNeeded(`^([a-z0-9]{3,8}) *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: ?`)

// parseDmesg reads a line of dmesg, with any of its kinds of time, with levels or without:
//
//	[   12.345678] text             [   12.345678][  T123] text       [Tue Nov 21 01:02:03 2023] text
//	<6>[   12.345678] text          kern  :info  : [   12.345678] text
//	2023-11-21T01:02:03,123456+00:00 text                             text
func parseDmesg(line []byte) entry {
	if bytes.IndexByte(line, 0) >= 0 {
		return entry{what: badLine}
	}
	e := entry{what: kernelLine}
	whole := len(line)
	line, foreign, level := cutPriority(line)
	if foreign {
		e.what = foreignLine
	}
	e.level = level
	e.text = cutKernelTag(cutLogin(line))
	line = e.text
	if trimmed := bytes.TrimLeft(line, " \t"); len(trimmed) > 0 && trimmed[0] == '[' {
		e = e.bracketed(trimmed)
	} else if t, rest, ok := cutISO(line); ok {
		e = e.withWall(t)
		e.loose = line[19] != ',' // dmesg writes a comma, collectors a point
		e.text = rest
	}
	if e.timed {
		rest := cutCaller(e.text)
		e.text = cutKernelTag(rest)
		e.loose = e.loose && len(e.text) == len(rest)
	}
	e.text = bytes.TrimPrefix(e.text, []byte(": ")) // of rsyslogd before 5.8
	e.bare = !e.timed && len(e.text) == whole
	e.loose = e.bare || e.loose
	return e
}

// login is the prompt that a serial console shows before the kernel's line, or the host name that pdsh puts before a
// line.
var login = kernellog.WhenNeeded(`^[\w.-]{1,64}(?: login)?: (\[ *\d{1,10}\.\d{6}\])`)

func cutLogin(line []byte) []byte {
	if !bytes.Contains(line[:min(len(line), 80)], []byte(": [")) {
		return line
	}
	if at := login.Regexp().FindSubmatchIndex(line); at != nil {
		return line[at[2]:]
	}
	return line
}

// talos is the form in which Talos prints the kernel's records, for several nodes after their names: "10.0.0.2: kern:
// warning: [2024-10-29T13:44:17.6Z]: ".
var talos = kernellog.WhenNeeded(
	`^(?:[\w.:-]{1,64}: )?([a-z0-9]{3,8}): +(?:emerg|alert|crit|err|warning|notice|info|debug): \[([0-9T:.-]{19,29}Z)\]: ?`)

// talosDictionary is the end of a Talos line whose record has a dictionary.
var talosDictionary = kernellog.WhenNeeded(` SUBSYSTEM=\S+(?: DEVICE=\S+)?$`)

func parseTalos(line []byte) (e entry, ok bool) {
	if !bytes.Contains(line[:min(len(line), 160)], []byte("Z]: ")) {
		return entry{}, false
	}
	at := talos.Regexp().FindSubmatchIndex(line)
	if at == nil {
		return entry{}, false
	}
	t, err := time.Parse(time.RFC3339, string(line[at[4]:at[5]]))
	if err != nil {
		return entry{}, false
	}
	e = entry{what: kernelLine, text: talosDictionary.Regexp().ReplaceAll(line[at[1]:], nil)}.withWall(t)
	if string(line[at[2]:at[3]]) != "kern" {
		e.what = foreignLine
	}
	return e, true
}

// talosNode is the prefix of talosctl logs before a line of kubelet's log.
var talosNode = kernellog.WhenNeeded(`^(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f:]{3,39}): (\{"ts":)`)

func cutNode(line []byte) []byte {
	if !bytes.Contains(line[:min(len(line), 60)], []byte(`: {"ts":`)) {
		return line
	}
	if at := talosNode.Regexp().FindSubmatchIndex(line); at != nil {
		return line[at[2]:]
	}
	return line
}

// console recognises the failures that systemd prints to the console beside the kernel's lines: "[FAILED] Failed to
// start …".
func console(line []byte) (text []byte, ok bool) {
	for _, state := range []string{"[FAILED] ", "[DEPEND] ", "[ TIME ] "} {
		if text, ok = bytes.CutPrefix(line, []byte(state)); ok {
			return text, true
		}
	}
	return nil, false
}

// cutKernelTag removes "kernel: ", and its form in syslogd's broadcast to terminals, " kernel:[".
func cutKernelTag(line []byte) []byte {
	rest := bytes.TrimLeft(line, " ")
	rest, ok := bytes.CutPrefix(rest, []byte("kernel:"))
	if !ok {
		return line
	}
	return bytes.TrimPrefix(rest, []byte(" "))
}

// levelled is the start of a line of some log shippers, with the level alone: "err [   12.345678] ".
var levelled = kernellog.WhenNeeded(`^(?:emerg|alert|crit|err|warn|warning|notice|info|debug) (\[ *\d{1,10}\.\d{6}\])`)

// lowLevel is a level below error.
var lowLevel = kernellog.WhenNeeded(`(?i)\b(?:(warn|warning)|notice|info|debug)\b`)

// levelIn returns the level in the head of a line.
func levelIn(head []byte) kernellog.Level {
	switch at := lowLevel.Regexp().FindSubmatchIndex(head); {
	case at == nil:
		return kernellog.LevelError
	case at[2] >= 0:
		return kernellog.LevelWarning
	}
	return kernellog.LevelInfo
}

// cutPriority removes <N> or the decoded facility and level, and reports whether a program wrote the line, and its
// level.
func cutPriority(line []byte) (rest []byte, foreign bool, level kernellog.Level) {
	if len(line) > 2 && line[0] == '<' {
		number, _, ok := bytes.Cut(line[1:min(len(line), 8)], []byte(">"))
		if n, err := strconv.ParseUint(string(number), 10, 16); ok && err == nil {
			return line[len(number)+2:], n>>3 != 0, kernellog.LevelOf(int(n & 7))
		}
	}
	if len(line) > 0 && line[0] >= 'a' && line[0] <= 'z' {
		if at := decoded.Regexp().FindSubmatchIndex(line); at != nil {
			return line[at[1]:], string(line[at[2]:at[3]]) != "kern", levelIn(line[at[3]:at[1]])
		}
		if at := levelled.Regexp().FindSubmatchIndex(line); at != nil {
			return line[at[2]:], false, levelIn(line[:at[2]])
		}
	}
	return line, false, kernellog.LevelError
}

// maxStamp bounds a time in brackets; in some languages a letter has three bytes.
const maxStamp = 80

// bracketed reads "[time] text".
func (e entry) bracketed(line []byte) entry {
	inner, rest, ok := bytes.Cut(line[1:], []byte("]"))
	if !ok || len(inner) > maxStamp {
		return e
	}
	if up, ok := seconds(inner); ok {
		e = e.withUp(up)
	} else if t, ok := wallTime(inner); ok {
		e = e.withWall(t)
		if again := bytes.TrimLeft(rest, " "); stamped(again) { // with several kinds of time
			return e.bracketed(again)
		}
	} else if before, _, ok := bytes.Cut(inner, []byte("<")); ok { // dmesg -d: [   12.345678 <    0.000012>]
		up, ok := seconds(bytes.TrimRight(before, " "))
		if !ok {
			return e
		}
		e = e.withUp(up)
	} else if !relativeTime(inner) {
		return e // the kernel's own text starts with a bracket
	} else {
		rest = bytes.TrimPrefix(cutCaller(rest), []byte(" "))
		e.timed, e.text = false, rest
		if bytes.HasPrefix(rest, []byte("[")) { // with several kinds of time
			return e.bracketed(rest)
		}
		return e
	}
	e.text = bytes.TrimPrefix(rest, []byte(" "))
	return e
}

// localTime is the time of dmesg -T in any language: the words of a day and a month, which may be in Latin-1, and the rest
// as in English.
var localTime = kernellog.WhenNeeded(`^[\pL\pM\x{FFFD}\d.,' -]{2,60}? (?: \d|\d\d)\.? (\d\d:\d\d:\d\d) (\d{4})$`)

// wallTime reads a time of dmesg -T. The month of another language is unknown: the result is in January, and
// differences are right within a month.
func wallTime(inner []byte) (time.Time, bool) {
	if t, err := time.Parse(time.ANSIC, string(inner)); err == nil {
		return t, true
	}
	if bytes.Count(inner, []byte(":")) != 2 {
		return time.Time{}, false
	}
	at := localTime.Regexp().FindSubmatchIndex(inner)
	if at == nil {
		return time.Time{}, false
	}
	day := bytes.Trim(inner[at[2]-4:at[2]], " .")
	t, err := time.Parse("2 15:04:05 2006", string(day)+" "+string(inner[at[2]:]))
	return t, err == nil
}

// stamped reports whether a text starts with the kernel's own time.
func stamped(text []byte) bool {
	if len(text) == 0 || text[0] != '[' {
		return false
	}
	inner, _, ok := bytes.Cut(text[1:], []byte("]"))
	_, time := seconds(inner)
	return ok && time
}

// relativeTime recognises the times of dmesg --reltime: "Nov21 01:02" and "  +0.000012".
func relativeTime(inner []byte) bool {
	trimmed := bytes.TrimLeft(inner, " ")
	if difference, ok := bytes.CutPrefix(trimmed, []byte("+")); ok {
		_, ok := seconds(difference)
		return ok
	}
	_, err := time.Parse("Jan_2 15:04", string(inner))
	return err == nil
}

// cutCaller removes the task or processor that CONFIG_PRINTK_CALLER puts after the time: "[  T123] ", "[    C0] ".
func cutCaller(text []byte) []byte {
	if len(text) == 0 || text[0] != '[' {
		return text
	}
	inner, rest, ok := bytes.Cut(text[1:], []byte("]"))
	inner = bytes.TrimLeft(inner, " ")
	if !ok || len(inner) < 2 || len(inner) > 12 || (inner[0] != 'T' && inner[0] != 'C') || !digits(inner[1:]) {
		return text
	}
	return bytes.TrimPrefix(rest, []byte(" "))
}

// isoForms are the ISO 8601 forms of dmesg, journalctl and syslog daemons.
var isoForms = []string{"2006-01-02T15:04:05,999999Z07:00", "2006-01-02T15:04:05.999999Z07:00",
	"2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05.999999Z0700", "2006-01-02T15:04:05"}

// cutISO removes an ISO 8601 time and the blank after it.
func cutISO(line []byte) (t time.Time, rest []byte, ok bool) {
	if len(line) < 20 || line[4] != '-' || line[7] != '-' || line[10] != 'T' {
		return time.Time{}, line, false
	}
	word, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(word) > 40 {
		return time.Time{}, line, false
	}
	for _, form := range isoForms {
		if t, err := time.Parse(form, string(word)); err == nil {
			return t, rest, true
		}
	}
	return time.Time{}, line, false
}
