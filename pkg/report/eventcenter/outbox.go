package eventcenter

import (
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The bounds of an outbox. What waits for a day takes at most maxDisk, maxAside and one segment of each kind on the
// disk.
const (
	maxMemory   = 2 << 20  // bytes of events in memory
	maxDisk     = 16 << 20 // bytes of segments
	maxAside    = 1 << 20  // bytes of events that were set aside
	segmentSize = 256 << 10
	maxAge      = 7 * 24 * time.Hour // under half of what a center keeps
	maxRanges   = 300                // of one agent.gap
)

// entry is one event that the center has not acknowledged.
type entry struct {
	stream   *stream
	sequence uint64
	severity finding.Severity
	at       time.Time // when it was made
	size     int       // bytes of the event
	body     []byte    // nil: on the disk only
	file     *segment  // nil: in memory only
	offset   int64     // of its record
	gone     bool      // acknowledged, set aside or dropped
}

// stream is the events of one start of an agent, in the order of their sequence.
type stream struct {
	id           string
	entries      []*entry // gone ones too, until they are at the front
	gone         int      // how many of them
	last         uint64   // sequence of the newest
	acknowledged uint64   // up to here the center has everything, or will never get it
	noted        uint64   // of that, what the files say
}

// segment is one file. All of its events have one severity.
type segment struct {
	name   string
	kind   string // a severity, or aside
	stream *stream
	size   int64
	live   int  // entries that are not gone
	sealed bool // no event is appended any more
	torn   bool // its end is not readable, nor what would be appended
	busy   bool // something is being appended
}

// outbox is what the center has not acknowledged. It is pure, and not safe for concurrent use.
type outbox struct {
	own      *stream
	older    []*stream // of starts before, the oldest first
	segments []*segment
	files    int // how many names were given
	obsolete []string

	waiting int
	memory  int   // bytes of bodies
	disk    int64 // bytes of segments but those of kind aside
	aside   int   // events that are set aside
	pending []record

	lost    []event.Range
	dropped map[finding.Severity]int
}

func newOutbox(id string) *outbox {
	return &outbox{own: &stream{id: id}, dropped: map[finding.Severity]int{}}
}

// add takes an event of the own stream, whose sequence is the next one.
func (o *outbox) add(severity finding.Severity, at time.Time, body []byte) *entry {
	o.own.last++
	e := &entry{stream: o.own, sequence: o.own.last, severity: severity, at: at, size: len(body), body: body}
	o.own.entries = append(o.own.entries, e)
	o.waiting++
	o.memory += e.size
	o.shrink()
	return e
}

// streams returns all, in the order in which they began.
func (o *outbox) streams() []*stream { return append(slices.Clone(o.older), o.own) }

// next returns what to send now, in the order of the sequence: at most count events of one stream and about size
// bytes. What earlier starts have left goes before what is new. Without the disk, events that are only there are passed
// over.
func (o *outbox) next(count, size int, withDisk bool) []*entry {
	for _, s := range o.streams() {
		var batch []*entry
		for _, e := range s.entries {
			if e.gone || e.body == nil && !withDisk {
				continue
			}
			if size -= e.size; len(batch) > 0 && (size < 0 || len(batch) == count) {
				break
			}
			batch = append(batch, e)
		}
		if len(batch) > 0 {
			return batch
		}
	}
	return nil
}

// remove takes events out: the center has them, or will never get them.
func (o *outbox) remove(entries ...*entry) {
	for _, e := range entries {
		if e.gone {
			continue
		}
		e.gone = true
		e.stream.gone++
		o.waiting--
		o.forget(e)
		if e.file != nil {
			e.file.live--
		}
		e.stream.trim()
	}
	o.older = slices.DeleteFunc(o.older, func(s *stream) bool { return len(s.entries) == 0 })
	o.collect()
}

func (o *outbox) forget(e *entry) {
	if e.body != nil {
		o.memory -= e.size
		e.body = nil
	}
}

func (s *stream) trim() {
	for len(s.entries) > 0 && s.entries[0].gone {
		s.acknowledged = s.entries[0].sequence
		s.entries[0] = nil
		s.entries = s.entries[1:]
		s.gone--
	}
	if s.gone > 100 && s.gone > len(s.entries)/2 {
		s.entries = slices.DeleteFunc(s.entries, func(e *entry) bool { return e.gone })
		s.gone = 0
	}
}

// collect makes the segments obsolete of which nothing is needed any more.
func (o *outbox) collect() {
	o.segments = slices.DeleteFunc(o.segments, func(s *segment) bool {
		if s.live > 0 || s.busy || s.kind == aside {
			return false
		}
		o.disk -= s.size
		o.obsolete = append(o.obsolete, s.name)
		return true
	})
}

// lose takes events out that will not be delivered, and remembers to say so.
func (o *outbox) lose(reason string, entries ...*entry) {
	for _, e := range entries {
		if e.gone {
			continue
		}
		o.dropped[e.severity]++
		o.miss(e.stream, e.sequence, e.sequence, reason)
	}
	o.remove(entries...)
}

// miss notes sequences that the center will not get.
func (o *outbox) miss(s *stream, from, to uint64, reason string) {
	id := s.id
	if s == o.own {
		id = ""
	}
	if n := len(o.lost) - 1; n >= 0 {
		if last := &o.lost[n]; last.Stream == id && last.Reason == reason && last.To == event.Sequence(from-1) {
			last.To = event.Sequence(to)
			return
		}
	}
	o.lost = append(o.lost, event.Range{Stream: id, From: event.Sequence(from), To: event.Sequence(to), Reason: reason})
}

// shrink keeps the outbox within its bounds: what is written leaves the memory, the oldest first; after that, and
// beyond the bound of the disk, the oldest of the least severe is lost. It makes some room at once, since it looks at
// everything.
func (o *outbox) shrink() {
	if o.memory > maxMemory {
		o.release(func(e *entry) bool { return e.file != nil }, func(e *entry) { o.forget(e) })
		for _, severity := range severities() {
			o.release(func(e *entry) bool { return e.severity == severity }, func(e *entry) { o.lose("dropped", e) })
		}
	}
	for o.disk > maxDisk {
		file := o.expendable()
		if file == nil {
			return
		}
		o.lose("dropped", o.of(file)...)
	}
}

// release does something to the oldest entries in memory of which is is true, until there is room.
func (o *outbox) release(is func(*entry) bool, do func(*entry)) {
	for _, s := range o.streams() {
		for _, e := range slices.Clone(s.entries) {
			if o.memory <= maxMemory*7/8 {
				return
			}
			if e.body != nil && is(e) {
				do(e)
			}
		}
	}
}

// expendable returns the oldest segment of the least severe.
func (o *outbox) expendable() *segment {
	for _, severity := range severities() {
		for _, s := range o.segments {
			if s.kind == string(severity) && !s.busy {
				return s
			}
		}
	}
	return nil
}

// of returns the entries of a segment.
func (o *outbox) of(file *segment) []*entry {
	var entries []*entry
	for _, e := range file.stream.entries {
		if !e.gone && e.file == file {
			entries = append(entries, e)
		}
	}
	return entries
}

// expire loses what is too old.
func (o *outbox) expire(now time.Time) {
	for _, s := range o.streams() {
		for _, e := range slices.Clone(s.entries) {
			if now.Sub(e.at) < maxAge {
				break // the later ones are younger
			}
			o.lose("expired", e)
		}
	}
}

// takeLost returns what was lost and not told yet, as much as one event holds.
func (o *outbox) takeLost() []event.Range {
	n := min(len(o.lost), maxRanges)
	ranges := slices.Clone(o.lost[:n])
	o.lost = slices.Delete(o.lost, 0, n)
	return ranges
}

// takeDropped returns how many were lost since the last call.
func (o *outbox) takeDropped() map[finding.Severity]int {
	dropped := o.dropped
	if len(dropped) == 0 {
		return nil
	}
	o.dropped = map[finding.Severity]int{}
	return dropped
}
