package jetstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// A message of the stream is a line of JSON, the head, followed by the CloudEvents. It contains the offsets of its
// events, so that they are the same on every replica.

const messageVersion = 1

type head struct {
	Version  int    `json:"v"`
	First    uint64 `json:"first,string"`
	Received int64  `json:"received"`              // Unix milliseconds, by the clock of the sending replica
	Term     uint64 `json:"term,string,omitempty"` // of the worker that sent it
	Events   []line `json:"events"`
}

type line struct {
	Source   string `json:"source"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Cluster  string `json:"cluster,omitempty"`
	Node     string `json:"node,omitempty"`
	Severity string `json:"severity,omitempty"`
	Check    string `json:"check,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Stream   string `json:"stream,omitempty"`
	Sequence uint64 `json:"sequence,omitempty,string"`
	Size     int    `json:"size"`
	// Only for a journal that was taken over: the offset, if it is not the previous one plus one, and the time of
	// receipt, if it differs from the first event's.
	Offset   uint64 `json:"offset,omitempty,string"`
	Received int64  `json:"received,omitempty"`
}

// encode encodes records as a message. Without records it contains only the term.
func encode(records []journal.Record, next, term uint64) ([]byte, error) {
	h := head{Version: messageVersion, First: next, Term: term, Events: []line{}}
	size := 0
	for i, r := range records {
		if i == 0 {
			h.First, h.Received = r.Offset, r.Received.UnixMilli()
		}
		l := line{r.Source, r.ID, r.Type, r.Cluster, r.Node, r.Severity, r.Check, r.Reason, r.Stream, r.Sequence,
			len(r.JSON), 0, 0}
		if i > 0 && r.Offset != records[i-1].Offset+1 {
			l.Offset = r.Offset
		}
		if at := r.Received.UnixMilli(); at != h.Received {
			l.Received = at
		}
		h.Events, size = append(h.Events, l), size+len(r.JSON)
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(make([]byte, 0, len(text)+1+size))
	out.Write(text)
	out.WriteByte('\n')
	for _, r := range records {
		out.Write(r.JSON)
	}
	return out.Bytes(), nil
}

// decode returns the records of a message, and its worker's term, 0 if it has none.
func decode(data []byte) (records []journal.Record, term uint64, err error) {
	text, bodies, ok := bytes.Cut(data, []byte("\n"))
	var h head
	if !ok {
		return nil, 0, errors.New("no message of a journal")
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, 0, err
	}
	if h.Version != messageVersion {
		return nil, 0, fmt.Errorf("its format is %d, this program reads %d", h.Version, messageVersion)
	}
	next := h.First
	for i, l := range h.Events {
		if l.Offset != 0 {
			next = max(next, l.Offset)
		}
		if l.Size < 0 || l.Size > len(bodies) {
			return nil, 0, fmt.Errorf("event %d of %d: %d bytes of %d", i+1, len(h.Events), l.Size, len(bodies))
		}
		r := journal.Record{Offset: next, Received: time.UnixMilli(cmp.Or(l.Received, h.Received)).UTC(), Event: journal.Event{
			Source: l.Source, ID: l.ID, Type: l.Type, Cluster: l.Cluster, Node: l.Node, Severity: l.Severity,
			Check: l.Check, Reason: l.Reason, Stream: l.Stream, Sequence: l.Sequence, JSON: bytes.Clone(bodies[:l.Size])}}
		records, bodies, next = append(records, r), bodies[l.Size:], next+1
	}
	if len(bodies) > 0 {
		return nil, 0, fmt.Errorf("%d bytes too many", len(bodies))
	}
	return records, h.Term, nil
}
