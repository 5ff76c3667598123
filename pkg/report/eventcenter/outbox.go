package eventcenter

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// The bounds of the backlog, in memory and in the store.
const (
	maxBytes       = 8 << 20 // of events
	maxQuarantined = 1 << 20 // of those, quarantined
	maxAge         = 7 * 24 * time.Hour
	maxRanges      = 300  // of one agent.gap
	maxLost        = 1000 // events that no agent.gap names yet

	// writeAfter is how long an event may remain unacknowledged before it is stored.
	writeAfter = time.Second
	// loadWait is how long the first request waits for the store. It is well below the time limit of a fatal event.
	loadWait = 500 * time.Millisecond
)

// outbox holds the unacknowledged events: those of this start, whose stream is own, and those of earlier starts.
// Quarantined events are held.
type outbox struct {
	*report.Outbox
	own    string
	last   uint64        // sequence of the newest
	loaded chan struct{} // closed when the events of earlier starts are loaded
}

// newOutbox returns an outbox that calls wake when the events of earlier starts are loaded.
func newOutbox(own string, store report.Store, log *slog.Logger, wake func()) *outbox {
	o := &outbox{own: own, loaded: make(chan struct{})}
	o.Outbox = report.NewStreams(report.OutboxOptions{Bytes: maxBytes, Delay: writeAfter, Store: store, Log: log,
		Loaded: func() {
			close(o.loaded)
			wake()
		}})
	return o
}

// add adds the next event of the own stream.
func (o *outbox) add(t event.Type, severity finding.Severity, at time.Time, body []byte) {
	o.last++
	if t == event.AgentGap {
		severity = finding.Fatal // it names the dropped events, so it is dropped last
	}
	o.Add(report.Item{ID: o.own + "-" + event.Sequence(o.last), Seq: o.last, Key: o.own, Severity: severity, Count: 1,
		First: at, Last: at, Body: body})
}

func (o *outbox) delivered(batch []report.Item) {
	for _, e := range batch {
		o.Remove(e.ID)
	}
}

// quarantinedEvent is the body of an event that the center will never take.
type quarantinedEvent struct {
	Reason string          `json:"reason"`
	Event  json.RawMessage `json:"event"`
}

// quarantine keeps an event that the center will never take, for people to look at. The center is told that it is
// missing.
func (o *outbox) quarantine(e report.Item, why string) {
	quarantined := e
	quarantined.ID, quarantined.Held, quarantined.Severity, quarantined.Count = e.ID+"-aside", true, finding.Fatal, 0
	quarantined.Body, _ = json.Marshal(quarantinedEvent{why, e.Body}) // never fails: the event is valid JSON
	o.Add(quarantined)
	o.GiveUp(e.ID, "rejected")
	held, size := o.Held(), 0
	for i := len(held) - 1; i >= 0; i-- {
		if size += len(held[i].Body); size > maxQuarantined {
			o.Remove(held[i].ID)
		}
	}
}

// lost returns the ranges of dropped events that were not reported yet, as many as fit into one event, and their items.
func (o *outbox) lost() (ranges []event.Range, named []report.Item) {
	var last uint64
	for _, e := range o.Lost() {
		stream := e.Key
		if stream == o.own {
			stream = ""
		}
		n := len(ranges) - 1
		switch {
		case n >= 0 && ranges[n].Stream == stream && ranges[n].Reason == e.Lost && e.Seq == last+1:
			ranges[n].To = event.Sequence(e.Seq)
		case len(ranges) == maxRanges:
			return ranges, named
		default:
			ranges = append(ranges, event.Range{Stream: stream, From: event.Sequence(e.Seq), To: event.Sequence(e.Seq),
				Reason: e.Lost})
		}
		last, named = e.Seq, append(named, e)
	}
	return ranges, named
}
