package eventcenter

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// write is data to append to a segment, with the entries that are in it.
type write struct {
	file    *segment
	data    []byte
	entries []*entry
	offsets []int64
	aside   int // how many of the pending
}

// unwritten returns what to write now: the events that were made before a moment, by severity. Events that the center
// has acknowledged meanwhile are never written.
func (o *outbox) unwritten(before time.Time) []write {
	var writes []write
	for _, severity := range slices.Backward(severities()) {
		var w write
		size := 0
		for _, e := range o.own.entries {
			if e.gone || e.file != nil || e.severity != severity || e.body == nil || e.at.After(before) {
				continue
			}
			if size > segmentSize {
				break
			}
			w.entries, size = append(w.entries, e), size+headSize+e.size
		}
		if len(w.entries) == 0 {
			continue
		}
		w.file, w.data = o.open(string(severity)), make([]byte, 0, size)
		for _, e := range w.entries {
			w.offsets = append(w.offsets, int64(len(w.data)))
			w.data = record{e.sequence, o.own.acknowledged, e.at, e.body}.append(w.data)
		}
		writes = append(writes, w)
	}
	if len(o.pending) > 0 {
		w := write{file: o.open(aside), aside: len(o.pending)}
		for _, r := range o.pending {
			w.data = r.append(w.data)
		}
		writes = append(writes, w)
	}
	return writes
}

// open returns the segment to append to, until wrote.
func (o *outbox) open(kind string) *segment {
	i := slices.IndexFunc(o.segments, func(s *segment) bool { return s.kind == kind && s.stream == o.own && !s.sealed })
	if i < 0 {
		o.files++
		i = len(o.segments)
		o.segments = append(o.segments, &segment{name: segmentName(o.own.id, kind, o.files), kind: kind, stream: o.own})
	}
	o.segments[i].busy = true
	return o.segments[i]
}

// wrote notes that data was appended, or, with an error, that it was not: then the end of the file is not known, and
// the next data goes to another.
func (o *outbox) wrote(w write, err error) {
	s := w.file
	s.busy = false
	if err != nil {
		s.sealed, s.torn = true, true
		o.collect()
		return
	}
	for i, e := range w.entries {
		if !e.gone {
			e.file, e.offset = s, s.size+w.offsets[i]
			s.live++
		}
	}
	s.size += int64(len(w.data))
	s.sealed = s.sealed || s.size >= segmentSize
	if s.kind == aside {
		o.pending = slices.Delete(o.pending, 0, min(w.aside, len(o.pending)))
		o.limitAside()
		return
	}
	o.disk += int64(len(w.data))
	o.collect()
	o.shrink()
}

// notes returns records for the files that stay: what they need not send again.
func (o *outbox) notes(now time.Time) []write {
	var writes []write
	for _, s := range slices.Backward(o.segments) {
		if s.kind != aside && !s.torn && s.stream.acknowledged > s.stream.noted {
			s.stream.noted, s.busy = s.stream.acknowledged, true
			data := record{acknowledged: s.stream.acknowledged, at: now}.append(nil)
			writes = append(writes, write{file: s, data: data})
		}
	}
	return writes
}

// setAside takes events out that the center will never take, and keeps them for people to look at.
func (o *outbox) setAside(e *entry, event []byte, why string) {
	body, err := json.Marshal(struct {
		Reason string          `json:"reason"`
		Event  json.RawMessage `json:"event"`
	}{why, event})
	if err == nil && len(body) <= maxBody {
		if len(o.pending) < maxAside/maxBody { // more, while the disk takes nothing, are counted only
			o.pending = append(o.pending, record{sequence: e.sequence, at: e.at, body: body})
		}
	}
	o.aside++
	o.miss(e.stream, e.sequence, e.sequence, "rejected")
	o.remove(e)
}

func (o *outbox) limitAside() {
	size := int64(0)
	for i, s := range slices.Backward(o.segments) {
		if s.kind != aside {
			continue
		}
		if size += s.size; size > maxAside {
			o.obsolete = append(o.obsolete, s.name)
			o.segments = slices.Delete(o.segments, i, i+1)
		}
	}
}

// loaded takes over a file of an earlier start. What cannot be read of it is lost.
func (o *outbox) loaded(name string, data []byte) {
	id, kind, ok := readSegmentName(name)
	if !ok || id == o.own.id {
		return // not ours, or known
	}
	i, found := slices.BinarySearchFunc(o.older, id, func(s *stream, id string) int { return cmp.Compare(s.id, id) })
	if !found {
		o.older = slices.Insert(o.older, i, &stream{id: id})
	}
	s := &segment{name: name, kind: kind, stream: o.older[i], size: int64(len(data)), sealed: true}
	o.segments = append(o.segments, s)
	if kind != aside {
		o.disk += s.size
	}
	for rest := data; len(rest) > 0; {
		r, after, err := readRecord(rest)
		if err != nil {
			s.torn = true
			break // the end of what was being written, or damage: sequences that are missing are told
		}
		if offset := int64(len(data) - len(rest)); len(r.body) == 0 {
			s.stream.acknowledged = max(s.stream.acknowledged, r.acknowledged)
		} else if kind == aside {
			o.aside++
		} else {
			s.stream.acknowledged = max(s.stream.acknowledged, r.acknowledged)
			s.stream.entries = append(s.stream.entries, &entry{stream: s.stream, sequence: r.sequence,
				severity: finding.Severity(kind), at: r.at, size: len(r.body), file: s, offset: offset})
		}
		rest = after
	}
}

// restored ends what loaded began: it orders streams, drops what the center has, and finds what is missing.
func (o *outbox) restored() {
	for _, s := range o.older {
		slices.SortFunc(s.entries, func(a, b *entry) int { return cmp.Compare(a.sequence, b.sequence) })
		s.entries = slices.CompactFunc(s.entries, func(a, b *entry) bool { return a.sequence == b.sequence })
		s.entries = slices.DeleteFunc(s.entries, func(e *entry) bool { return e.sequence <= s.acknowledged })
		next := s.acknowledged + 1
		for _, e := range s.entries {
			if e.sequence > next {
				o.miss(s, next, e.sequence-1, "lost")
			}
			next = e.sequence + 1
			e.file.live++
			o.waiting++
		}
		s.last = next - 1
	}
	o.older = slices.DeleteFunc(o.older, func(s *stream) bool { return len(s.entries) == 0 })
	o.limitAside()
	o.collect()
	o.shrink()
}

// checkRead verifies what was read for an entry and returns its event.
func checkRead(e *entry, data []byte) ([]byte, error) {
	r, _, err := readRecord(data)
	if err == nil && (r.sequence != e.sequence || len(r.body) != e.size) {
		err = fmt.Errorf("it holds sequence %d", r.sequence)
	}
	if err != nil {
		return nil, fmt.Errorf("%s at %d: %w", e.file.name, e.offset, err)
	}
	return bytes.Clone(r.body), nil
}

// adopt takes over what was loaded of earlier starts.
func (o *outbox) adopt(older *outbox) {
	older.restored()
	o.older, o.segments = older.older, append(older.segments, o.segments...)
	o.obsolete = append(o.obsolete, older.obsolete...)
	o.lost = append(o.lost, older.lost...)
	o.waiting += older.waiting
	o.disk += older.disk
	o.aside += older.aside
	for severity, n := range older.dropped {
		o.dropped[severity] += n
	}
}

// hasUnwritten reports whether something waits to be written.
func (o *outbox) hasUnwritten() bool {
	return len(o.pending) > 0 ||
		slices.ContainsFunc(o.own.entries, func(e *entry) bool { return !e.gone && e.file == nil })
}
