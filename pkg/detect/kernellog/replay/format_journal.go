package replay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// journalRecord has the used fields of a line of journalctl -o json. Fields that start with an underscore are set by
// journald; the others by the writer.
type journalRecord struct {
	Transport  kernellog.JournalField `json:"_TRANSPORT"`
	Identifier kernellog.JournalField `json:"SYSLOG_IDENTIFIER"`
	Facility   kernellog.JournalField `json:"SYSLOG_FACILITY"`
	Message    kernellog.JournalField `json:"MESSAGE"`
	Priority   kernellog.JournalField `json:"PRIORITY"` // of syslog(2)
	Unit       kernellog.JournalField `json:"_SYSTEMD_UNIT"`
	Cgroup     kernellog.JournalField `json:"_SYSTEMD_CGROUP"`
	Command    kernellog.JournalField `json:"_COMM"`
	PID        kernellog.JournalField `json:"_PID"`
	SyslogPID  kernellog.JournalField `json:"SYSLOG_PID"`
	Container  kernellog.JournalField `json:"CONTAINER_ID"` // the output of a container, from dockerd or podman
	Boot       kernellog.JournalField `json:"_BOOT_ID"`
	Realtime   kernellog.JournalField `json:"__REALTIME_TIMESTAMP"`        // µs since 1970
	Monotonic  kernellog.JournalField `json:"__MONOTONIC_TIMESTAMP"`       // µs since boot, when journald received it
	Source     kernellog.JournalField `json:"_SOURCE_MONOTONIC_TIMESTAMP"` // µs since boot, the kernel's own
}

// parseJournalJSON reads a line of journalctl -o json, json-sse or json-seq.
func parseJournalJSON(line []byte) entry {
	var r journalRecord
	if err := json.Unmarshal(trimJSON(line), &r); err != nil {
		return entry{what: badLine}
	}
	e := entry{what: kernelLine, text: firstLine(r.Message), boot: string(r.Boot)}
	if us, err := strconv.ParseInt(string(r.Realtime), 10, 53); err == nil {
		e.at, e.timed = time.Duration(us)*time.Microsecond, true
	}
	if severity, err := strconv.Atoi(string(r.Priority)); err == nil {
		e.level = kernellog.LevelOf(severity)
	}
	up := r.Source
	if up == nil {
		up = r.Monotonic
	}
	if us, err := strconv.ParseInt(string(up), 10, 53); err == nil && us >= 0 {
		e.up, e.upKnown = time.Duration(us)*time.Microsecond, true
	}
	// Lines that programs write to /dev/kmsg come over the kernel's transport too, but with another facility.
	transport := string(r.Transport)
	fromKernel := transport == "kernel" || transport == "" && string(r.Identifier) == "kernel"
	if facility := string(r.Facility); !fromKernel || facility != "" && facility != "0" {
		e.what = foreignLine
		s, ok := r.emitter()
		switch {
		case ok:
			e = e.spoken(s, e.text)
		case r.outsidePods():
			e = e.unknown(r.name(), e.text)
		}
	}
	return e
}

// outsidePods reports whether journald itself names a unit of the host as the writer.
func (r *journalRecord) outsidePods() bool {
	return r.Unit != nil && bytes.HasPrefix(r.Cgroup, []byte("/system.slice/")) && r.Container == nil
}

// name is the name of the record's writer.
func (r *journalRecord) name() string {
	return cmp.Or(string(r.Unit), string(r.Identifier), string(r.Command))
}

// emitter returns the writer of the record. journald sets the unit; the process chooses its name, which counts only
// outside pods; the writer's own field counts only if there is no other, as in records of early boot, and in stripped
// records.
func (r *journalRecord) emitter() (rules.Emitter, bool) {
	pid := string(r.PID)
	switch {
	case r.Container != nil || bytes.Contains(r.Cgroup, []byte("kubepods")):
		return rules.TheKernel, false
	case string(r.Unit) == "init.scope" || pid == "1":
		return rules.Systemd, pid == "1" || r.PID == nil
	case r.Unit != nil:
		s, ok := emitterOf(string(r.Unit))
		return s, ok && s != rules.Systemd
	case r.Command != nil:
		s, ok := emitterOf(string(r.Command))
		return s, ok && s != rules.Systemd
	case r.PID != nil:
		return rules.TheKernel, false
	}
	if pid = string(r.SyslogPID); pid == "" {
		pid = "1"
	}
	return taggedEmitter(string(r.Identifier), pid)
}

// trimJSON removes the prefix of a record in json-sse and json-seq.
func trimJSON(line []byte) []byte {
	return bytes.TrimPrefix(bytes.TrimPrefix(line, []byte("\x1e")), []byte("data: "))
}

var (
	// shortTime is the start of a line of syslog daemons, OpenWrt's logread and journalctl -o short, short-precise,
	// short-full and short-unix; in SONiC's form it has the year, and the severity follows the host.
	shortTime = kernellog.WhenNeeded(
		`^(?:(?:\d{4} )?([\pL\x{FFFD}\d]{2,9}\.? [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)|(?:\pL{1,8}\.? )?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: [A-Z0-9+:-]{2,6})?|(\d{9,11}\.\d{6})|\[ *(\d{1,10}\.\d{6})(?: <[ \d.]{1,20}>)?\]|([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})) +`)
	// logreadPriority is the priority that logread has in place of the host: "daemon.err ".
	logreadPriority = kernellog.WhenNeeded(`^([a-z0-9]{3,8})\.(?:emerg|alert|crit|err|warn|notice|info|debug) `)
	// shortSource is the host and the program that follow, sourceAlone the program alone, with journalctl
	// --no-hostname.
	shortSource  = kernellog.WhenNeeded(`^\S{0,254}[^\s:] +(?:(?:EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG) )?([^\s:\[\]]{1,128})(\[\d+\])?: ?`)
	severityWord = kernellog.WhenNeeded(` (?:EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG) $|kern\.[a-z]{3,6} `)
	// recordOfHost is a syslog daemon's line of netconsole's extended format: the host, and a record of /dev/kmsg.
	recordOfHost = kernellog.WhenNeeded(`^\S{1,255} (\d{1,5},\d{1,20},\d{1,20},[^;\s]{1,64};)`)
	sourceAlone  = kernellog.WhenNeeded(`^([^\s:\[\]]{1,128})(\[\d+\])?: `)
)

// parseJournalShort reads a line of journalctl -o short and its kin, or of a syslog file. ok is false for other lines.
// Some syslog daemons leave the kernel's own time before the text.
//
//	Nov 21 01:02:03 host kernel: text                 2023-11-21T01:02:03+0000 host kernel: [   12.345678] text
//	Tue 2023-11-21 01:02:03 UTC host kernel: text     1700528523.123456 host kernel: text
func parseJournalShort(line []byte, monotonic bool) (e entry, ok bool) {
	t, rest, ok := cutISO(line)
	if ok && line[19] == ',' { // dmesg --time-format iso
		return entry{}, false
	}
	if ok {
		e = e.withWall(t)
	} else if e, rest, ok = cutShortTime(line, monotonic); !ok {
		return entry{}, false
	}
	if record := recordOfHost.Regexp().FindSubmatchIndex(rest); record != nil {
		return e.fromRecord(rest[record[2]:])
	}
	at := shortSource.Regexp().FindSubmatchIndex(rest)
	if alone := sourceAlone.Regexp().FindSubmatchIndex(rest); alone != nil {
		at = alone
	}
	if at == nil {
		return entry{}, false
	}
	e.what = foreignLine
	name := string(rest[at[2]:at[3]])
	if p := logreadPriority.Regexp().FindSubmatch(rest); p != nil && name == "kernel" && string(p[1]) != "kern" {
		return e, true
	}
	if name == "kernel" && at[4] < 0 {
		e = e.fromKernel(rest[at[1]:])
		if head := rest[:at[2]]; severityWord.Regexp().Match(head) {
			e.level = max(e.level, levelIn(head))
		}
		return e, true
	}
	var pid string
	if at[4] >= 0 {
		pid = string(rest[at[4]+1 : at[5]-1])
	}
	return e.named(name, pid, rest[at[1]:]), true
}

// fromRecord returns e as the record of /dev/kmsg that netconsole sent.
func (e entry) fromRecord(record []byte) (entry, bool) {
	r, err := kmsg.ParseKernelRecord(record)
	if err != nil {
		return entry{}, false
	}
	e.what = foreignLine
	if r.FromKernel() && !isFragment(record) {
		e.what, e.text, e.up, e.upKnown = kernelLine, []byte(r.Text), r.Time, true
		e.level = kernellog.LevelOf(r.Level)
	}
	return e, true
}

// fromKernel returns e as a line of the kernel; the text may start with the kernel's own time, or be a line that root
// wrote into its log.
func (e entry) fromKernel(text []byte) entry {
	text = bytes.TrimPrefix(text, []byte(": ")) // of rsyslogd before 5.8
	e.what, e.text = kernelLine, text
	if message, ok := messageIn(text); ok { // of fluentd
		text, e.text = message, message
	}
	if inner := parseDmesg(text); inner.upKnown {
		e.text, e.up, e.upKnown, e.level = inner.text, inner.up, true, inner.level
	}
	if t, ok := e.tagged(e.text); ok {
		return t
	}
	return e
}

func cutShortTime(line []byte, monotonic bool) (e entry, rest []byte, ok bool) {
	at := shortTime.Regexp().FindSubmatchIndex(line)
	if at == nil {
		return entry{}, nil, false
	}
	group := func(i int) string {
		if at[2*i] < 0 {
			return ""
		}
		return string(line[at[2*i]:at[2*i+1]])
	}
	switch {
	case group(1) != "": // no year: differences are right except around New Year
		// otherwise the month is in another language
		if t, err := time.Parse("2006 Jan _2 15:04:05", "2000 "+group(1)); err == nil {
			e = e.withWall(t)
		}
	case group(2) != "":
		t, err := time.Parse("2006-01-02 15:04:05", group(2))
		if err != nil {
			return entry{}, nil, false
		}
		e = e.withWall(t)
	case group(5) != "":
		t, err := time.Parse(time.ANSIC, group(5))
		if err != nil {
			return entry{}, nil, false
		}
		e = e.withWall(t)
	case group(3) != "":
		since, _ := seconds([]byte(group(3)))
		e.at, e.timed = since, true
	default: // dmesg has this form, too: only if the format is known
		if !monotonic {
			return entry{}, nil, false
		}
		up, _ := seconds([]byte(group(4)))
		e = e.withUp(up)
	}
	return e, line[at[1]:], true
}
