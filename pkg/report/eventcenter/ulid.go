package eventcenter

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"time"
)

// crockford is the alphabet of ULIDs.
var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ")

// newULID returns a ULID: 48 bits of milliseconds, 80 random bits, in 26 characters. A library for these lines would be
// one more module of the agent.
func newULID(now time.Time) string {
	var raw [20]byte // 160 bits are 32 characters, of which the first 6 are zeros
	binary.BigEndian.PutUint64(raw[2:], uint64(now.UnixMilli())&(1<<48-1))
	_, _ = rand.Read(raw[10:]) // never fails
	return crockford.EncodeToString(raw[:])[6:]
}
