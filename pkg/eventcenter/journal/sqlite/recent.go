package sqlite

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"maps"
)

// identity is the start of the SHA-256 of an event's source and ID: nobody makes two events with the same one.
type identity [16]byte

func identityOf(source, id string) (i identity) {
	sum := sha256.Sum256([]byte(source + "\x00" + id))
	copy(i[:], sum[:])
	return i
}

// hash is what the index has of it.
func (i identity) hash() int64 { return int64(binary.BigEndian.Uint64(i[:])) }

// contents hashes what events say, by a seed that no sender knows.
type contents struct{ seed maphash.Seed }

func (c contents) of(event []byte) uint64 { return maphash.Bytes(c.seed, event) }

// recentEvents is how many events a generation of the newest ones has: of a storm of 15,000 a second, all that senders
// send again since no answer came in time.
const recentEvents = 128 << 10

// recent has what the newest events are known by, in memory. A center that is too slow is sent the same events again: if
// it took longer to find each of them than to store a new one, it would never be done. At most two generations are kept,
// some 12 MiB.
type recent struct{ newer, older map[identity]uint64 }

func (r *recent) content(i identity) (content uint64, known bool) {
	if content, known = r.newer[i]; !known {
		content, known = r.older[i]
	}
	return content, known
}

func (r *recent) add(events map[identity]uint64) {
	if len(r.newer) >= recentEvents {
		r.newer, r.older = nil, r.newer
	}
	if r.newer == nil {
		r.newer = make(map[identity]uint64, len(events))
	}
	maps.Copy(r.newer, events)
}
