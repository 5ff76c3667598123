package main

import (
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const clusterName = "bench"

func nodeName(i int) string { return fmt.Sprintf("node-%05d.example.internal", i) }

// streamOf returns a ULID without a real time.
func streamOf(i int) string { return fmt.Sprintf("01K%023d", i) }

// changeOf returns a change on a node: a fault on a disk is raised or cleared. The state is the resulting one.
func changeOf(disk string, severity finding.Severity, raised bool, now time.Time) (finding.State, finding.Update) {
	at := finding.Timestamp{Wall: now, Boot: "9be2f5c3-5c2b-4d8b-a1ad-0c6e3f2e5d77", SinceBoot: time.Hour}
	f := finding.Finding{Check: "disk-errors", Subject: finding.Subject{Kind: "disk", Name: disk}, Severity: severity,
		Reason: "DiskErrors", Message: "12 of the last 1,000 requests to " + disk + " failed: medium error at sector 1234567",
		Facts: map[string]string{"device": disk, "errors": "12", "model": "SAMSUNG MZQL23T8HCLS-00A07"}}
	u := finding.Update{ID: "disk-errors/" + disk, Kind: finding.Cleared, At: at, Check: f.Check, Finding: f, First: at,
		Since: at}
	state := finding.State{f.Check: &finding.CheckState{Status: finding.StatusHealthy}}
	if raised {
		u.Kind = finding.Raised
		state[f.Check].Subjects = map[string]*finding.Believed{disk: {Finding: f, ID: u.ID, First: at, Last: at, Raised: at}}
	}
	return state, u
}

// journaled returns a node's event in the journal's form.
func journaled(node int, sequence uint64, e event.Event) (journal.Event, error) {
	e.Cluster, e.Node, e.Stream, e.Sequence = clusterName, nodeName(node), streamOf(node), sequence
	if e.Severity == "" {
		e.Severity = finding.Info
	}
	text, err := e.Encode()
	return journal.Event{Source: "/clusters/" + e.Cluster + "/nodes/" + e.Node, ID: e.ID(), Type: string(e.Type),
		Cluster: e.Cluster, Node: e.Node, Severity: string(e.Severity), Check: e.Subject.Check, Reason: e.Subject.Reason,
		Stream: e.Stream, Sequence: sequence, JSON: text}, err
}

// changed returns a node's change in the journal's form.
func changed(node int, sequence uint64, raised bool, now time.Time) (journal.Event, error) {
	_, u := changeOf("sda", finding.Warning, raised, now)
	e, _ := event.OfUpdate(u)
	return journaled(node, sequence, e)
}

// snapshotOf returns a snapshot of a node with the given faults.
func snapshotOf(node int, sequence uint64, faults []event.Fault, now time.Time) (journal.Event, error) {
	pods := sequence
	return journaled(node, sequence, event.Event{Type: event.NodeSnapshot, Time: now, Data: event.Snapshot{
		AsOf: event.Sequence(sequence - 1), Of: streamOf(node), Part: 1, End: true, Faults: faults,
		Leftovers: []event.Activity{}, Unknown: []string{}, PodsEnded: &pods}})
}
