package model

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Note is a person's note on a fault. An acknowledgement ends with the fault, muting at its time.
type Note struct {
	AcknowledgedBy string    `json:"acknowledgedBy,omitempty"`
	MutedUntil     time.Time `json:"mutedUntil,omitzero"`
	MutedBy        string    `json:"mutedBy,omitempty"`
	Text           string    `json:"text,omitempty"` // the latest text and its author
	By             string    `json:"by,omitempty"`
	At             time.Time `json:"at"`
	RaisedAt       time.Time `json:"raisedAt,omitzero"` // of the fault that the note is for
}

// Muted reports whether the fault is muted now.
func (n *Note) Muted(now time.Time) bool { return n != nil && now.Before(n.MutedUntil) }

// maxNotes limits the notes of a node; beyond it, notes on ended faults are dropped.
const maxNotes = 1000

// maxText limits the text of a note, in bytes.
const maxText = 2000

// OperatorEvent returns the event for a person's note on a fault.
func OperatorEvent(t event.Type, f NodeFault, action event.Operator, now time.Time) (journal.Event, error) {
	action.Check, action.Subject, action.RaisedAt = f.Check, f.Subject, f.RaisedAt
	if f.Detector != "" {
		action.Reason, action.Detector = f.Reason, f.Detector
	}
	switch {
	case t != event.OperatorAcknowledged && t != event.OperatorMuted && t != event.OperatorCommented:
		return journal.Event{}, fmt.Errorf("%q is nothing that a person says", t)
	case t == event.OperatorMuted && action.Until.Sub(now) > 31*24*time.Hour:
		return journal.Event{}, fmt.Errorf("muted until %s: a month is possible", action.Until.Format(time.DateOnly))
	}
	return said(t, Key{f.Cluster, f.Node}, f.Reason, action, now)
}

// said returns the event of what a person says of a check on a node.
func said(t event.Type, key Key, reason string, action event.Operator, now time.Time) (journal.Event, error) {
	if action.By == "" || len(action.Text) > maxText {
		return journal.Event{}, fmt.Errorf("%s by %q: %d bytes are said, %d are possible", t, action.By, len(action.Text), maxText)
	}
	action.Text = strings.ToValidUTF8(action.Text, "�")
	return Own{Cluster: key.Cluster, Node: key.Node, ID: "operator-" + rand.Text(), Type: t, Check: action.Check,
		Reason: reason, Subject: action.Subject, Time: now.UTC(), Data: action}.Event()
}

// MaintenanceEvent returns the event for a person's declaration of maintenance on a node for d from now; 0 ends it.
func MaintenanceEvent(key Key, action event.Operator, d time.Duration, now time.Time) (journal.Event, error) {
	if d < 0 || d > 31*24*time.Hour {
		return journal.Event{}, fmt.Errorf("maintenance for %s: 0 to a month is possible", d)
	}
	action.Until, action.Check, action.Subject = now.Add(d).UTC(), "maintenance", finding.Subject{Kind: "node", Name: key.Node}
	return said(event.OperatorMaintenance, key, "Declared", action, now)
}

// operator applies a person's event.
func (m *Model) operator(r journal.Record, known *Node) {
	var e struct{ Data event.Operator }
	if known == nil || known.Day == nil || !known.Day.Present || json.Unmarshal(r.JSON, &e) != nil {
		return
	}
	n := m.changing(r)
	if event.Type(r.Type) == event.OperatorMaintenance {
		n.Day.Maintenance = e.Data.Until
		return
	}
	key := event.Fault{Check: e.Data.Check, Subject: e.Data.Subject, Reason: e.Data.Reason, Detector: e.Data.Detector}.Key()
	note := n.note(key, e.Data.RaisedAt)
	note.By, note.At = e.Data.By, r.Received
	if e.Data.Text != "" {
		note.Text = e.Data.Text
	}
	switch event.Type(r.Type) {
	case event.OperatorAcknowledged:
		note.AcknowledgedBy = e.Data.By
		if o := n.Day.Open[key]; o != nil && o.RaisedAt.Equal(e.Data.RaisedAt) {
			o.Owner = e.Data.By
		}
	case event.OperatorMuted:
		note.MutedUntil, note.MutedBy = e.Data.Until, e.Data.By
	}
}

// note returns the note on a fault, a new one if the latest belongs to an earlier occurrence.
func (n *Node) note(key string, raised time.Time) *Note {
	last := n.Notes[key]
	if last != nil && last.RaisedAt.Equal(raised) {
		return last
	}
	fresh := &Note{RaisedAt: raised}
	if last != nil {
		fresh.MutedUntil, fresh.MutedBy = last.MutedUntil, last.MutedBy
	}
	if n.Notes == nil {
		n.Notes = map[string]*Note{}
	}
	if len(n.Notes) >= maxNotes {
		there := maps.Collect(n.active())
		maps.DeleteFunc(n.Notes, func(old string, _ *Note) bool { return there[old] == nil })
	}
	if len(n.Notes) < maxNotes {
		n.Notes[key] = fresh
	}
	return fresh
}

// noteOf returns the note on an active fault; nil: none.
func (n *Node) noteOf(key string, f event.Fault) *Note {
	last := n.Notes[key]
	if last == nil {
		return nil
	}
	note := *last
	if !last.RaisedAt.Equal(f.RaisedAt) { // of an earlier occurrence: only muting still applies
		note = Note{MutedUntil: last.MutedUntil, MutedBy: last.MutedBy, At: last.At}
	}
	return &note
}
