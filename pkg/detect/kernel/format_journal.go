package kernel

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"time"
)

// journalRecord is what matters of a line of journalctl -o json. Fields that begin with an underscore are journald's own
// word; the others are what the writer claims.
// https://systemd.io/JOURNAL_EXPORT_FORMATS/#journal-json-format
type journalRecord struct {
	Transport  journalField `json:"_TRANSPORT"`
	Identifier journalField `json:"SYSLOG_IDENTIFIER"`
	Facility   journalField `json:"SYSLOG_FACILITY"`
	Message    journalField `json:"MESSAGE"`
	Boot       journalField `json:"_BOOT_ID"`
	Realtime   journalField `json:"__REALTIME_TIMESTAMP"`        // µs since 1970
	Source     journalField `json:"_SOURCE_MONOTONIC_TIMESTAMP"` // µs since boot, the kernel's own
}

// journalField is a string, or an array of bytes where it is not printable UTF-8; of a field that occurs several times, the
// first.
type journalField []byte

func (f *journalField) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*f = journalField(text)
		return nil
	}
	var octets []uint16
	if json.Unmarshal(data, &octets) == nil {
		for _, o := range octets {
			*f = append(*f, byte(o))
		}
		return nil
	}
	var several []json.RawMessage
	if err := json.Unmarshal(data, &several); err != nil || len(several) == 0 {
		return err
	}
	return f.UnmarshalJSON(several[0])
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
	if us, err := strconv.ParseInt(string(r.Source), 10, 53); err == nil && us >= 0 {
		e.up, e.upKnown = time.Duration(us)*time.Microsecond, true
	}
	// What programs write to /dev/kmsg comes over the kernel's transport too, but has a facility of its own.
	transport := string(r.Transport)
	fromKernel := transport == "kernel" || transport == "" && string(r.Identifier) == "kernel"
	if facility := string(r.Facility); !fromKernel || facility != "" && facility != "0" {
		e.what = foreignLine
	}
	return e
}

// trimJSON removes what json-sse and json-seq put before a record.
func trimJSON(line []byte) []byte {
	return bytes.TrimPrefix(bytes.TrimPrefix(line, []byte("\x1e")), []byte("data: "))
}

var (
	// shortTime is how syslog daemons and journalctl -o short, short-precise, short-full and short-unix begin a line.
	shortTime = regexp.MustCompile(`^(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)|[A-Z][a-z]{2} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) [A-Z0-9+:-]{2,6}|(\d{9,11}\.\d{6})|\[ *(\d{1,10}\.\d{6})\]) `)
	// shortSource is the host and the program that follow.
	shortSource = regexp.MustCompile(`^\S{0,254}[^\s:] ([^\s:\[\]]{1,128})(\[\d+\])?: ?`)
)

// parseJournalShort reads a line of journalctl -o short and its kin, or of a syslog file. ok is false when it is none. Some
// syslog daemons leave the kernel's own time before the text.
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
	at := shortSource.FindSubmatchIndex(rest)
	if at == nil {
		return entry{}, false
	}
	e.what = foreignLine
	if string(rest[at[2]:at[3]]) == "kernel" && at[4] < 0 {
		e.what = kernelLine
		e.text = rest[at[1]:]
		if inner := parseDmesg(e.text); inner.upKnown {
			e.text, e.up, e.upKnown = inner.text, inner.up, true
		}
	}
	return e, true
}

func cutShortTime(line []byte, monotonic bool) (e entry, rest []byte, ok bool) {
	at := shortTime.FindSubmatchIndex(line)
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
	case group(1) != "": // no year: differences are right but around the New Year
		t, err := time.Parse("2006 Jan _2 15:04:05", "2000 "+group(1))
		if err != nil {
			return entry{}, nil, false
		}
		e = e.withWall(t)
	case group(2) != "":
		t, err := time.Parse("2006-01-02 15:04:05", group(2))
		if err != nil {
			return entry{}, nil, false
		}
		e = e.withWall(t)
	case group(3) != "":
		since, _ := seconds([]byte(group(3)))
		e.at, e.timed = since, true
	default: // as dmesg writes it, too: only where the format is known
		if !monotonic {
			return entry{}, nil, false
		}
		up, _ := seconds([]byte(group(4)))
		e = e.withUp(up)
	}
	return e, line[at[1]:], true
}
