package replay

import (
	"bytes"
	"encoding/json"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
)

// maxObject bounds a record spread over several lines.
const maxObject = 256 << 10

// object is a record with one line per field: journalctl -o json-pretty, dmesg --json.
//
//	{                                       {
//	        "_TRANSPORT" : "kernel",           "dmesg": [
//	        "MESSAGE" : "text"                    {
//	}                                                "pri": 6,
//	{                                                "time":     0.000000,
//	        …                                        "msg": "text"
//	                                              },{
type object struct {
	text   []byte // so far; nil while none is open
	seen   bool   // of this log
	number int    // of the line with the message, and that line
	line   []byte
}

// pretty takes a line of such a record; ok is false for other lines. It returns the record at its last line, with the
// number of its message's line.
func (p *parser) pretty(line []byte) (e entry, ok bool) {
	trimmed, o := bytes.TrimSpace(line), &p.object
	if o.text == nil {
		switch string(trimmed) {
		case "{":
			*o = object{text: []byte("{"), seen: o.seen}
			return entry{what: silentLine}, true
		case "}", "]", "[":
			return entry{what: silentLine}, o.seen
		}
		return entry{}, false
	}
	switch string(trimmed) {
	case `"dmesg": [`:
		*o = object{seen: true}
		return entry{what: silentLine}, true
	case "}", "},", "},{":
		e = prettyRecord(append(o.text, '}'))
		e.number, e.line = o.number, o.line
		*o = object{seen: true}
		if string(trimmed) == "},{" {
			o.text = []byte("{")
		}
		return e, true
	}
	if !prettyMember(trimmed) || len(o.text)+len(line) > maxObject {
		*o = object{seen: o.seen}
		return entry{}, false
	}
	if bytes.HasPrefix(trimmed, []byte(`"MESSAGE"`)) || bytes.HasPrefix(trimmed, []byte(`"msg"`)) {
		o.number, o.line = p.number, bytes.Clone(line[:min(len(line), kernellog.MaxText)])
	}
	o.text = append(append(o.text, trimmed...), '\n')
	return entry{what: silentLine}, true
}

// prettyMember reports whether a line can be a field, or an element or the end of an array of bytes.
func prettyMember(trimmed []byte) bool {
	return trimmed[0] == '"' || trimmed[0] == ']' || digits(bytes.TrimSuffix(trimmed, []byte(",")))
}

func prettyRecord(text []byte) entry {
	var r struct {
		Facility string          `json:"fac"` // with --decode
		Priority json.RawMessage `json:"pri"` // a number, or a word with --decode
		Time     json.RawMessage `json:"time"`
		Message  *string         `json:"msg"`
	}
	if json.Unmarshal(text, &r) != nil || r.Message == nil {
		return parseJournalJSON(text)
	}
	e := entry{what: kernelLine, text: firstLine([]byte(*r.Message))}
	if up, ok := seconds(r.Time); ok {
		e = e.withUp(up)
	}
	var number int
	if r.Facility != "" && r.Facility != "kern" || json.Unmarshal(r.Priority, &number) == nil && number>>3 != 0 {
		e.what = foreignLine
	}
	if t, ok := e.tagged(e.text); ok {
		return t
	}
	return e
}

// cutDocker returns the output of a container from a line of Docker's log files.
//
//	{"log":"text\n","stream":"stdout","time":"2023-11-21T01:02:03.123456789Z"}
func cutDocker(line []byte) (text []byte, ok bool) {
	if !bytes.HasPrefix(line, []byte(`{"log":"`)) {
		return nil, false
	}
	var r struct {
		Log string `json:"log"`
	}
	if json.Unmarshal(line, &r) != nil {
		return nil, false
	}
	return bytes.TrimRight([]byte(r.Log), "\r\n"), true
}
