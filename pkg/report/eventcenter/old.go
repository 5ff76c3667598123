package eventcenter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// OldFiles is the directory in which earlier agents kept their backlog. It is read once, and then removed.
type OldFiles struct {
	Read   func() (map[string][]byte, error)
	Remove func() error
}

// upgraded is a store that first takes over the old files.
type upgraded struct {
	report.Store
	old OldFiles
	log *slog.Logger
}

// ForEach implements report.Store.
func (u upgraded) ForEach(f func(key string, value []byte) error) error {
	files, err := u.old.Read()
	if len(files) > 0 {
		values := map[string][]byte{}
		for _, i := range readOld(files, u.log) {
			key, value := report.Stored(i)
			values[key] = value
		}
		if err = errors.Join(err, u.PutAll(values)); err == nil {
			err = u.old.Remove()
		}
	}
	if err != nil {
		u.log.Warn("read the old outbox failed, retrying at the next start", "err", err)
	}
	return u.Store.ForEach(f)
}

// readOld returns the backlog in old files, and the losses in it. A file is named STREAM-SEVERITY-NUMBER, or contains
// quarantined events.
func readOld(files map[string][]byte, log *slog.Logger) (items []report.Item) {
	streams := map[string]*oldStream{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		parts := strings.Split(name, "-")
		if len(parts) != 3 || !isULID(parts[0]) {
			continue // not ours
		}
		if streams[parts[0]] == nil {
			streams[parts[0]] = &oldStream{id: parts[0], waiting: map[uint64]report.Item{}}
		}
		for rest := files[name]; len(rest) > 0; {
			r, after, err := readRecord(rest)
			if err != nil {
				log.Warn("truncated stored file: its end is lost", "file", name, "err", err)
				break
			}
			streams[parts[0]].take(r, parts[1])
			rest = after
		}
	}
	for _, id := range slices.Sorted(maps.Keys(streams)) {
		items = append(items, streams[id].items()...)
	}
	return items
}

type oldStream struct {
	id           string
	acknowledged uint64
	waiting      map[uint64]report.Item
	aside        []report.Item
}

func (s *oldStream) take(r record, kind string) {
	body := slices.Clone(r.body)
	switch {
	case len(body) == 0: // it only has the progress of the center
		s.acknowledged = max(s.acknowledged, r.acknowledged)
	case kind == "aside":
		i := item(s.id, r.sequence, finding.Fatal, r.at, body)
		i.ID, i.Held, i.Count = i.ID+"-aside", true, 0
		s.aside = append(s.aside, i)
	default:
		s.acknowledged = max(s.acknowledged, r.acknowledged)
		s.waiting[r.sequence] = item(s.id, r.sequence, finding.Severity(kind), r.at, body)
	}
}

// items returns the events that the center does not have. Those missing in between are lost.
func (s *oldStream) items() []report.Item {
	all, next := s.aside, s.acknowledged+1
	for _, n := range slices.Sorted(maps.Keys(s.waiting)) {
		if n < next {
			continue
		}
		for ; next < n && n-next < maxOldGap; next++ {
			lost := item(s.id, next, finding.Warning, s.waiting[n].First, nil)
			lost.Lost = "lost"
			all = append(all, lost)
		}
		all, next = append(all, s.waiting[n]), n+1
	}
	return all
}

const (
	maxOldGap = 100_000 // events; a larger gap is damage
	headSize  = 4 + 4 + 8 + 8 + 8
	maxBody   = event.MaxSize + 4<<10 // a quarantined event carries its reason
)

// record is one of an old file, in little-endian order: the length of its body (4 bytes), the CRC-32C of all that
// follows (4), the sequence (8), the sequence up to which the center had the whole stream at that time (8), and the
// time in Unix seconds (8); then the body, one encoded event.
type record struct {
	sequence, acknowledged uint64
	at                     time.Time
	body                   []byte
}

// readRecord returns the first record in data and the rest. The body is not copied.
func readRecord(data []byte) (record, []byte, error) {
	if len(data) < headSize {
		return record{}, nil, fmt.Errorf("%d bytes are no record", len(data))
	}
	size := binary.LittleEndian.Uint32(data)
	if size > maxBody || int(size) > len(data)-headSize {
		return record{}, nil, fmt.Errorf("a record of %d bytes in %d", size, len(data))
	}
	all := data[8 : headSize+int(size)]
	if crc32.Checksum(all, crc32.MakeTable(crc32.Castagnoli)) != binary.LittleEndian.Uint32(data[4:]) {
		return record{}, nil, fmt.Errorf("checksum of a record does not match")
	}
	r := record{sequence: binary.LittleEndian.Uint64(data[8:]), acknowledged: binary.LittleEndian.Uint64(data[16:]),
		at: time.Unix(int64(binary.LittleEndian.Uint64(data[24:])), 0), body: all[headSize-8:]}
	return r, data[headSize+int(size):], nil
}
