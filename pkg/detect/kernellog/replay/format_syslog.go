package replay

import (
	"bytes"
	"strconv"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// rfc5424 is the start of a line of syslog daemons in their newer form, after the priority: "1 TIME HOST APP PID MSGID
// DATA ".
var rfc5424 = kernellog.WhenNeeded(
	`^1 (\S{1,40} )\S{1,255} (\S{1,128}) (\S{1,128}) \S{1,32} (?:-|(?:\[(?:[^\]"\\]|"(?:[^"\\]|\\.)*")*\])+)(?: |$)(?:\x{FEFF})?`)

// containerLine is the start of a line of container runtimes and kubectl logs --timestamps. Its time has nanoseconds,
// and always "Z" or a zone, unlike any other log.
var containerLine = kernellog.WhenNeeded(
	`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7,9}(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?`)

// cutContainer removes the time that a container runtime put before the output of a container, if the output is itself
// a line of a log.
func cutContainer(line []byte) []byte {
	if len(line) < 30 || line[4] != '-' || line[10] != 'T' {
		return line
	}
	return line[len(containerLine.Regexp().Find(line)):]
}

// parseSyslog reads a line of a journal or of a syslog daemon, with or without its priority. ok is false for other
// lines.
//
//	Nov 21 01:02:03 host kernel: text             <3>Nov 21 01:02:03 host kernel: [   12.345678] text
//	<30>1 2023-11-21T01:02:03.123Z host kubelet 812 - - text
func parseSyslog(line []byte) (entry, bool) {
	rest, facility, ok := cutSyslogPriority(line)
	if ok || bytes.HasPrefix(line, []byte("1 ")) {
		if e, ok := parseRFC5424(rfc5424.Regexp().FindSubmatchIndex(rest), rest, facility); ok {
			return e, true
		}
	}
	e, known := parseJournalShort(rest, false)
	if !known {
		e, known = parseShortMonotonic(rest)
	}
	if known && ok && e.what == kernelLine && facility != 0 {
		e.what = foreignLine
	}
	return e, known
}

// cutSyslogPriority removes <N> if a time follows.
func cutSyslogPriority(line []byte) (rest []byte, facility int, ok bool) {
	if len(line) < 8 || line[0] != '<' {
		return line, 0, false
	}
	number, rest, ok := bytes.Cut(line[1:], []byte(">"))
	if !ok || len(number) > 3 {
		return line, 0, false
	}
	n, err := strconv.ParseUint(string(number), 10, 8)
	if err != nil {
		return line, 0, false
	}
	return rest, int(n >> 3), true
}

// parseRFC5424 reads a line; at has the positions of time, program and number in it.
func parseRFC5424(at []int, line []byte, facility int) (e entry, ok bool) {
	if at == nil {
		return entry{}, false
	}
	if t, _, ok := cutISO(line[at[2]:]); ok {
		e = e.withWall(t)
	}
	text, app, pid := line[at[1]:], string(line[at[4]:at[5]]), string(line[at[6]:at[7]])
	e.what = foreignLine
	if app == "kernel" && facility == 0 {
		return e.fromKernel(text), true
	}
	return e.named(app, pid, text), true
}

// monotonic is the start of a line of journalctl -o short-monotonic or short-delta. A line of dmesg is similar, but the kernel starts
// no line with a word and its own name, or with a daemon's name and PID.
var monotonic = kernellog.WhenNeeded(
	`^\[ *\d{1,10}\.\d{6}(?: <[ \d.]{1,20}>)?\] [\w.-]{1,255} (?:kernel: |([\w.@()-]{1,64})\[(\d{1,10})\]: )`)

func parseShortMonotonic(line []byte) (entry, bool) {
	if len(line) == 0 || line[0] != '[' {
		return entry{}, false
	}
	at := monotonic.Regexp().FindSubmatchIndex(line)
	if at == nil {
		return entry{}, false
	}
	if at[2] >= 0 {
		if _, ok := emitterOf(string(line[at[2]:at[3]])); !ok {
			return entry{}, false
		}
	}
	return parseJournalShort(line, true)
}
