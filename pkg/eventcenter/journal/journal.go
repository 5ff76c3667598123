// Package journal holds what a journal of the event center takes and gives: events in the order of their offsets. The
// journal is the one thing that must not lose anything; everything else that the center shows is derived from it. What
// implements it is in packages of their own, so that nothing else links them.
package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// Event is an event as it is appended: the CloudEvent, and the attributes that reads filter by.
type Event struct {
	Source, ID string // the identity: the same pair is the same event
	Type       string
	Cluster    string // what is not known is empty
	Node       string
	Severity   string
	Check      string
	Reason     string
	Stream     string // with Sequence: events of agents only
	Sequence   uint64
	JSON       []byte // the CloudEvent in structured JSON, in the one spelling of the CloudEvents SDK

	// After is an offset up to which the event is certainly not stored yet: that of what it follows from. 0 says nothing. It
	// is not stored with the event.
	After uint64 `json:",omitempty"`

	// Said is what JSON says, where who appends it has read it. It is not stored: what comes from the journal has none.
	Said *event.Event `json:"-"`
}

// Record is an event in the journal.
type Record struct {
	Offset   uint64
	Received time.Time // by the center's clock, to the millisecond
	Event
}

// Appended says what became of a batch. All of it is durable.
type Appended struct {
	Last       uint64 // the offset up to which the journal is durable, with all of the batch
	New        int
	Duplicates int // known already, not stored again
	Conflicts  int // of the duplicates, those whose content differs from what is stored: the first stays
}

// Field is an attribute that reads filter by.
type Field string

// The fields.
const (
	Cluster  Field = "cluster"
	Node     Field = "node"
	Type     Field = "type"
	Severity Field = "severity"
	Check    Field = "check"
	Reason   Field = "reason"
)

// Fields returns all fields.
func Fields() []Field { return []Field{Cluster, Node, Type, Severity, Check, Reason} }

// Filter has the values that a field may have. A field that is not in it may have any.
type Filter map[Field][]string

// Query is what to read.
type Query struct {
	After    uint64 // records beyond this offset; backward: before it, 0 from the newest
	Limit    int    // records at most
	Filter   Filter
	Backward bool   // newest first
	Stop     uint64 // backward: nothing up to this offset is wanted; who reads leaves out what comes all the same
}

// Page is a part of the journal.
type Page struct {
	Records []Record
	Next    uint64 // where the next page begins: past what the filter left out too
	Gaps    []Gap  // what is damaged or lost between After and Next, forward only
	Bytes   int    // of the records' JSON
}

// Gap is an inclusive range of offsets that were acknowledged and cannot be read.
type Gap struct {
	From   uint64 `json:"from,string"`
	To     uint64 `json:"to,string"`
	Reason string `json:"reason"`
}

// Bounds is what the journal holds.
type Bounds struct {
	Journal string          // UUID; offsets of another journal mean nothing here
	Oldest  uint64          // the oldest kept; Newest+1 where there is none
	Newest  uint64          // 0 where there is none
	Changed <-chan struct{} // closed when there is something newer
}

// Limits are what a journal keeps.
type Limits struct {
	Age   time.Duration // 0: any
	Bytes int64         // 0: any
}

// Health is what an operator must know of a journal.
type Health struct {
	FullSince  time.Time // zero: the disk is not full
	Gaps       []Gap
	Bytes      int64
	Partitions int
}

// ErrUnavailable means that too few replicas can be reached: nothing is taken, what is here is still answered.
var ErrUnavailable = errors.New("too few replicas of the journal can be reached")

// ErrAnew means that a replica was away for longer than events are kept: what it shows is of then, and stays so until it
// is opened again, and begins anew with what is kept.
var ErrAnew = errors.New("this replica was away for longer than events are kept; started again it begins with the oldest that is")

// ErrFull means that the disk of the journal is full: nothing is taken, everything is still answered.
var ErrFull = errors.New("the journal's disk is full")

// TrimmedError means that what a read asks for is older than what is kept.
type TrimmedError struct{ After, Oldest uint64 }

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("offset %d is older than what is kept: begin after %d", e.After, e.Oldest-1)
}
