package api

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Line is an event as a line for people.
type Line struct {
	Offset   uint64
	Received time.Time
	Type     string // without the common prefix
	Inferred bool   // inferred by the center
	Severity string
	Cluster  string // empty for foreign events
	Node     string // or the source of a foreign event
	Subject  string
	Message  string
	Detector string // empty: the node's agent
}

const typePrefix = "io.github.nodeagent."

// LineOf returns the readable parts of an event: the data of a foreign one may have any form.
func LineOf(i Item) Line {
	var e struct {
		Type, Source, Subject, Severity, Partitionkey string
		Inferred                                      bool
		Data                                          struct {
			Message, Text, Check, Reason, Severity, Detector string

			Subject finding.Subject
		}
	}
	_ = json.Unmarshal(i.Event, &e)
	l := Line{Offset: i.Offset, Received: i.Received, Type: strings.TrimPrefix(e.Type, typePrefix),
		Inferred: e.Inferred, Severity: e.Severity, Node: e.Partitionkey, Subject: subject(e.Subject),
		Message: Clip(e.Data.Message+e.Data.Text, 1000)}
	if rest, ok := strings.CutPrefix(e.Source, "/clusters/"); ok && e.Partitionkey != "" {
		cluster, _, _ := strings.Cut(rest, "/")
		if name, err := url.PathUnescape(cluster); err == nil {
			l.Cluster = name
		}
	}
	if cluster, node, detector, ok := event.ReadSource(e.Source); ok && detector != "" {
		if l.Detector = detector; node != "" {
			l.Cluster, l.Node = cluster, node
		}
	}
	if l.Detector == "" {
		l.Detector = e.Data.Detector // for events inferred by the center
	}
	if l.Node == "" {
		l.Node = e.Source
	}
	if l.Subject == "" && e.Data.Subject.Kind != "" { // not every detector repeats it in the attributes
		l.Subject = Clip(strings.Join([]string{e.Data.Check, e.Data.Reason, e.Data.Subject.String()}, " "), 80)
	}
	if l.Severity == "" {
		l.Severity = e.Data.Severity
	}
	return l
}

// wholeID matches the ID of a container or sandbox: its first 13 digits are enough for people.
var wholeID = regexp.MustCompile(`\b([0-9a-f]{13})[0-9a-f]{51}\b`)

// subject returns the subject of an agent's event (check/reason/kind/name, each percent-encoded) for people: without a
// reason that repeats the type. Other events' subjects are returned unchanged.
func subject(text string) string {
	parts := strings.Split(text, "/")
	if len(parts) != 4 {
		return Clip(text, 80)
	}
	name, err := url.PathUnescape(parts[3])
	if err != nil {
		name = parts[3]
	}
	words := []string{parts[0], parts[1], parts[2], wholeID.ReplaceAllString(name, "$1")}
	if strings.HasPrefix(parts[1], "Leftover") || strings.HasPrefix(parts[1], "Action") {
		words = append(words[:1], words[2:]...)
	}
	return Clip(strings.Join(words, " "), 80)
}

// Clip shortens a text in the middle to most characters and an ellipsis: the end of a name is more specific.
func Clip(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most/2]) + "…" + string(runes[len(runes)-most/2:])
}

// Folded is a run of events of one type, check and reason (or kind of leftover) on one node, with its first event.
type Folded struct {
	Line
	More int // similar events directly after it
}

// Fold returns the lines of events, of which repeated ones are one line.
func Fold(items []Item) (folded []Folded) {
	run := ""
	for _, item := range items {
		l := LineOf(item)
		words := strings.Fields(l.Subject)
		key := strings.Join(append([]string{l.Type, l.Severity, l.Node}, words[:min(2, len(words))]...), "|")
		if key == run && len(words) > 0 {
			folded[len(folded)-1].More++
			continue
		}
		folded, run = append(folded, Folded{Line: l}), key
	}
	return folded
}
