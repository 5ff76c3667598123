// Package journal defines the types of the event center's journal: events in the order of their offsets. The journal is
// the only part that must not lose data; the center derives everything else from it. Implementations are in packages of
// their own, so that programs link only the one that they use.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// Event is an event to append: the CloudEvent, and the attributes that reads filter by.
type Event struct {
	Source, ID string // the identity: an event with the same pair is a duplicate
	Type       string
	Cluster    string // unknown attributes are empty
	Node       string
	Severity   string
	Check      string
	Reason     string
	Stream     string // with Sequence: only for events of agents
	Sequence   uint64
	JSON       []byte // the CloudEvent in structured JSON, as written by the CloudEvents SDK

	// Decoded is the decoded JSON, if the caller of Append has it. It is not stored.
	Decoded *event.Event `json:"-"`
}

// Record is an event in the journal.
type Record struct {
	Offset   uint64
	Received time.Time // by the center's clock, in milliseconds
	Event
}

// Text returns the CloudEvent for consumers. Older centers stored texts that some parsers refuse: these become
// its data_base64.
func (r Record) Text() []byte {
	if utf8.Valid(r.JSON) && json.Valid(r.JSON) && !event.HasHalfPair(r.JSON) {
		return r.JSON
	}
	text, _ := json.Marshal(map[string]any{"specversion": "1.0", "id": r.ID, "source": r.Source, "type": r.Type,
		"data_base64": r.JSON}) // plain data: Marshal cannot fail
	return text
}

// Appended is the result of a batch. All of it is durable.
type Appended struct {
	Last       uint64 // the journal is durable up to this offset, including the batch
	New        int
	Duplicates int // already stored, not stored again
	Conflicts  int // duplicates whose content differs from the stored event; the stored one stays
}

// Field is an attribute that reads can filter by.
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

// Filter has the accepted values of each field. A field without an entry accepts any value.
type Filter map[Field][]string

// Query selects the records to read.
type Query struct {
	After    uint64 // records beyond this offset; backward: before it, 0 for the newest
	Limit    int    // maximum number of records
	Filter   Filter
	Backward bool   // newest first
	Stop     uint64 // backward: no record up to this offset is wanted; callers must skip those that come anyway
}

// Page is a part of the journal.
type Page struct {
	Records []Record
	Next    uint64 // where the next page begins, beyond filtered records
	Gaps    []Gap  // damaged or lost offsets between After and Next, forward only
	Bytes   int    // of the records' JSON
}

// Gap is an inclusive range of acknowledged offsets that cannot be read.
type Gap struct {
	From   uint64 `json:"from,string"`
	To     uint64 `json:"to,string"`
	Reason string `json:"reason"`
}

// Bounds describes the contents of the journal.
type Bounds struct {
	Journal string          // UUID; offsets of another journal are meaningless here
	Oldest  uint64          // the oldest kept; Newest+1 if empty
	Newest  uint64          // 0 if empty
	Changed <-chan struct{} // closed when a newer event is appended
}

// Limits say how much a journal keeps.
type Limits struct {
	Age   time.Duration // 0: any
	Bytes int64         // 0: any
}

// Health is a journal's state for operators.
type Health struct {
	FullSince  time.Time // zero: the disk is not full
	Gaps       []Gap
	Bytes      int64
	Partitions int
}

// Reader is a journal for those that only read.
type Reader interface {
	Read(ctx context.Context, q Query) (Page, error)
	Bounds() Bounds
}

// Journal is the part of a journal that most need. Append is durable when it returns, and stores a batch whole or not
// at all.
type Journal interface {
	Reader
	Append(ctx context.Context, events []Event) (Appended, error)
}

// ErrUnavailable means that too few replicas can be reached: writes fail, local reads still work.
var ErrUnavailable = errors.New("too few replicas of the journal can be reached")

// ErrAnew means that a replica was away for longer than events are kept: it shows old state until it is opened again,
// and then begins with the events that are kept.
var ErrAnew = errors.New("this replica was away for longer than events are kept; started again it begins with the oldest that is")

// ErrFull means that the disk of the journal is full: writes fail, reads still work.
var ErrFull = errors.New("the journal's disk is full")

// TrimmedError means that a read asks for offsets older than the oldest kept.
type TrimmedError struct{ After, Oldest uint64 }

func (e *TrimmedError) Error() string {
	return fmt.Sprintf("offset %d is older than what is kept: begin after %d", e.After, e.Oldest-1)
}
