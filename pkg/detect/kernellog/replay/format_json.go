package replay

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// wrappers are the fields in which log collectors keep the original line, and texts the fields that may have the line's
// own text. Both are tried in this order.
var (
	wrappers = []string{"_source", "jsonPayload", "json", "fields", "journald", "event", "record"}
	texts    = []string{"MESSAGE", "message", "@message", "textPayload", "log", "msg", "line", "body", "short_message"}
)

// maxWrapped is how many collectors may have wrapped one line.
const maxWrapped = 4

// parseJSON reads a line with one JSON object: a record of journald, a line of containerd's or kubelet's own log, or
// either of them in the form of a collector. ok is false if no field has a line of a log.
func (p *parser) parseJSON(line []byte) (entry, bool) {
	if !bytes.HasSuffix(bytes.TrimRight(line, " \t\"'`,"), []byte("}")) {
		return entry{what: badLine}, false
	}
	e, ok := p.unwrapped(line, 0)
	if !ok {
		e.document = line
	}
	return e, ok
}

// records reads the lines in the texts of a document with many records in one line: the answer of Loki, of
// CloudWatch, of a search, or an array of records.
func (p *parser) records(document []byte) (entries []entry) {
	var items []json.RawMessage
	if json.Unmarshal(document, &items) == nil {
		for _, item := range items {
			if e, ok := p.unwrapped(item, 0); ok {
				entries = append(entries, e)
			}
		}
	}
	var v any
	if len(entries) > 0 || json.Unmarshal(document, &v) != nil {
		return entries
	}
	for _, text := range textsIn(nil, "", v) {
		for line := range bytes.Lines([]byte(text)) {
			line = stripColour(bytes.TrimRight(line, "\r\n"))
			if len(line) == 0 {
				continue
			}
			if e, ok := p.headed(cutContainer(line)); ok {
				entries = append(entries, e)
			}
		}
	}
	return entries
}

// textsIn appends the texts below v that may have lines of a log; key leads to v.
func textsIn(all []string, key string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = textsIn(all, key, v[key])
		}
	case []any:
		for _, item := range v {
			all = textsIn(all, key, item)
		}
	case string:
		if slices.Contains(texts, key) || key == "values" || key == "stdout" || key == "stdout_lines" { // Loki's and Ansible's fields
			all = append(all, v)
		}
	}
	return all
}

func (p *parser) unwrapped(line []byte, depth int) (entry, bool) {
	var fields map[string]json.RawMessage
	if depth > maxWrapped || json.NewDecoder(bytes.NewReader(line)).Decode(&fields) != nil {
		return entry{what: badLine}, false
	}
	if fromJournal(fields) {
		e := parseJournalJSON(line)
		return e, e.what != badLine
	}
	if rest, s, ok := cutHeader(line); ok {
		return entry{what: foreignLine, emitter: s, message: rest}, true
	}
	if name, ok := sender(fields); ok {
		if message, ok := messageOf(fields); ok {
			e := entry{}.named(name, "", message)
			if name == "kernel" {
				e = entry{}.fromKernel(message)
			}
			return e, true
		}
	}
	for _, name := range wrappers {
		if inner := fields[name]; len(inner) > 0 && inner[0] == '{' {
			if e, ok := p.unwrapped(inner, depth+1); ok {
				return e, true
			}
		}
	}
	inner, _ := messageOf(fields)
	if bytes.HasPrefix(inner, []byte(`{"`)) {
		return p.unwrapped(inner, depth+1)
	}
	if len(inner) > 0 {
		if e, ok := p.headed(cutContainer(inner)); ok {
			return e, true
		}
	}
	return entry{what: foreignLine}, false
}

// messageOf returns the text of a record.
func messageOf(fields map[string]json.RawMessage) ([]byte, bool) {
	for _, name := range texts {
		var text string
		if json.Unmarshal(fields[name], &text) == nil && text != "" {
			return stripColour(firstLine(bytes.TrimRight([]byte(text), "\r\n"))), true
		}
	}
	return nil, false
}

// messageIn returns the message of a record to which a collector added its own head.
func messageIn(text []byte) ([]byte, bool) {
	var fields map[string]json.RawMessage
	if !bytes.HasPrefix(text, []byte(`{"`)) || json.Unmarshal(text, &fields) != nil {
		return nil, false
	}
	return messageOf(fields)
}

// senders are the fields in which collectors keep the writer of a line, and the objects that may contain one of these.
var senders = []string{"SYSLOG_IDENTIFIER", "syslog_identifier", "identifier", "ident", "programname", "program", "PROGRAM", "appname",
	"app_name", "app-name", "_SYSTEMD_UNIT", "systemd_unit", "unit", "transport", "_TRANSPORT", "name"}

// sender returns the writer of a record's line, according to the collector.
func sender(fields map[string]json.RawMessage) (string, bool) {
	for _, name := range senders {
		var value string
		if json.Unmarshal(fields[name], &value) != nil {
			continue
		}
		value = strings.Trim(value, ": ")
		if _, ok := emitterOf(value); ok || value == "kernel" {
			return value, true
		}
	}
	for _, object := range []string{"syslog", "systemd", "process", "labels"} {
		var inner map[string]json.RawMessage
		if json.Unmarshal(fields[object], &inner) == nil && inner != nil {
			if name, ok := sender(inner); ok {
				return name, true
			}
		}
	}
	return "", false
}

// fromJournal reports whether an object names the writer in journald's fields.
func fromJournal(fields map[string]json.RawMessage) bool {
	for _, name := range []string{"_TRANSPORT", "SYSLOG_IDENTIFIER", "_SYSTEMD_UNIT", "_COMM", "_PID"} {
		if fields[name] != nil {
			return fields["MESSAGE"] != nil
		}
	}
	return false
}

// flattenLogrus converts a line of containerd's JSON log to its text form.
//
//	{"error":"…","level":"error","msg":"RunPodSandbox for … failed, error","time":"2024-07-04T16:24:03.119492729Z"}
func flattenLogrus(text []byte) ([]byte, bool) {
	if !bytes.HasPrefix(text, []byte(`{"`)) {
		return nil, false
	}
	var line struct {
		Level, Msg, Error, Time string
	}
	if json.NewDecoder(bytes.NewReader(text)).Decode(&line) != nil || line.Msg == "" || line.Time == "" {
		return nil, false
	}
	switch line.Level {
	case "warning", "error", "fatal", "panic", "info", "debug", "trace":
	default:
		return nil, false
	}
	out := append([]byte("level="+line.Level+" msg="), strconv.Quote(string(firstLine([]byte(line.Msg))))...)
	if line.Error != "" {
		out = append(out, " error="+strconv.Quote(line.Error)...)
	}
	return out, true
}

// component is a product's name of the component whose line it contains.
var component = kernellog.WhenNeeded(` component="?([\w.-]{1,64})`)

// unwrapComponent returns a component's line that a product's own log contains, and its emitter; k0s writes the lines
// of all components in this way. ok is false if the line is the product's own.
//
//	time="2023-10-17 09:15:02" level=info msg="E1017 09:15:02.123456    2397 kubelet.go:2412] …" component=kubelet stream=stderr
func unwrapComponent(body []byte) (text []byte, s rules.Emitter, ok bool) {
	at := bytes.Index(body[:min(len(body), 40)], []byte(` msg="`))
	if at < 0 {
		return nil, rules.TheKernel, false
	}
	literal, err := strconv.QuotedPrefix(string(body[at+len(" msg="):]))
	if err != nil {
		return nil, rules.TheKernel, false
	}
	message, err := strconv.Unquote(literal)
	if err != nil {
		return nil, rules.TheKernel, false
	}
	rest, s, headed := cutHeader([]byte(message))
	component := component.Regexp().FindSubmatch(body[at+len(" msg=")+len(literal):])
	switch {
	case component == nil:
		return rest, s, headed
	case string(component[1]) == "kubelet":
		return rest, rules.Kubelet, true
	case string(component[1]) == "containerd" || string(component[1]) == "crio":
		return rest, rules.Runtime, true
	}
	return nil, rules.TheKernel, headed // etcd, kube-apiserver and the like
}
