package eventcenter

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A record of a segment is, in little-endian order: the length of its body (4 bytes), the CRC-32C of all that follows
// (4), the sequence (8), up to which sequence the center had everything of the stream when this was written (8), and
// the time in Unix seconds (8); then the body, one encoded event. A record without a body says only what the center
// has.
const (
	headSize = 4 + 4 + 8 + 8 + 8
	maxBody  = event.MaxSize + 4<<10 // what was set aside carries its reason
)

type record struct {
	sequence, acknowledged uint64
	at                     time.Time
	body                   []byte
}

func (r record) append(to []byte) []byte {
	start := len(to)
	to = binary.LittleEndian.AppendUint32(to, uint32(len(r.body)))
	to = append(to, 0, 0, 0, 0)
	to = binary.LittleEndian.AppendUint64(to, r.sequence)
	to = binary.LittleEndian.AppendUint64(to, r.acknowledged)
	to = binary.LittleEndian.AppendUint64(to, uint64(r.at.Unix()))
	to = append(to, r.body...)
	sum := crc32.Checksum(to[start+8:], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(to[start+4:], sum)
	return to
}

// readRecord returns the first record in data and what follows it. The body is not copied.
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

// severities are the ranks of events and their segments, the least severe first. What was set aside is the last to be
// kept and has a bound of its own.
func severities() []finding.Severity {
	return []finding.Severity{finding.Info, finding.Warning, finding.Fatal}
}

const aside = "aside"

// segmentName names a file: the stream comes first, so that names are in the order of streams.
func segmentName(stream, kind string, n int) string {
	return fmt.Sprintf("%s-%s-%06d", stream, kind, n)
}

// readSegmentName returns what segmentName was given; false for another name.
func readSegmentName(name string) (stream, kind string, ok bool) {
	parts := strings.Split(name, "-")
	if len(parts) != 3 || !isULID(parts[0]) {
		return "", "", false
	}
	if _, err := strconv.Atoi(parts[2]); err != nil {
		return "", "", false
	}
	return parts[0], parts[1], parts[1] == aside || slices.Contains(severities(), finding.Severity(parts[1]))
}
