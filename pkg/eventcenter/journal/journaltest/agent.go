package journaltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Encoded returns the event of an agent as the center stores it.
func Encoded(e event.Event) (journal.Event, error) {
	text, err := e.Encode()
	return journal.Event{Source: "/clusters/" + e.Cluster + "/nodes/" + e.Node, ID: e.ID(), Type: string(e.Type),
		Cluster: e.Cluster, Node: e.Node, Severity: string(e.Severity), Check: e.Subject.Check, Reason: e.Subject.Reason,
		Stream: e.Stream, Sequence: e.Sequence, JSON: text}, err
}

// Raised returns a fault that a node's agent finds, of another disk for each sequence.
func Raised(t testing.TB, node string, sequence uint64) journal.Event {
	t.Helper()
	f := event.Fault{ID: "x", Check: "disk", Subject: finding.Subject{Kind: "disk", Name: fmt.Sprint(sequence)},
		Severity: finding.Fatal, Reason: "Fails"}
	e, err := Encoded(event.Event{Type: event.FaultRaised, Cluster: "c", Node: node, Time: time.Unix(1, 0).UTC(),
		Severity: f.Severity, Stream: stream, Sequence: sequence, Data: f,
		Subject: event.Subject{Check: f.Check, Reason: f.Reason, Kind: f.Subject.Kind, Name: f.Subject.Name}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
