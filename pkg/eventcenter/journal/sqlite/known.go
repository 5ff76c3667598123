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

// generation is how many events the newer half of knownEvents has at most: of a storm of 15,000 a second, all that senders
// send again since no answer came in time.
const generation = 128 << 10

// knownEvents has what the newest events are known by, in memory. A center that is too slow is sent the same events again:
// if it took longer to find each of them than to store a new one, it would never be done. At most two generations are kept,
// some 12 MiB.
type knownEvents struct {
	seed         maphash.Seed // no sender knows it
	newer, older map[identity]uint64
}

// hash is by what the content of an event is known.
func (k *knownEvents) hash(event []byte) uint64 { return maphash.Bytes(k.seed, event) }

func (k *knownEvents) content(i identity) (hash uint64, known bool) {
	if hash, known = k.newer[i]; !known {
		hash, known = k.older[i]
	}
	return hash, known
}

func (k *knownEvents) add(contents map[identity]uint64) {
	if len(k.newer) >= generation {
		k.newer, k.older = nil, k.newer
	}
	if k.newer == nil {
		k.newer = make(map[identity]uint64, len(contents))
	}
	maps.Copy(k.newer, contents)
}
