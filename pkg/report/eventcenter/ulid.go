package eventcenter

import (
	"crypto/rand"
	"math/big"
	"time"
)

// crockford is the alphabet of ULIDs.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newULID returns a ULID: 48 bits of milliseconds, 80 random bits, in 26 characters. A library for these lines would be
// one more module of the agent.
func newULID(now time.Time) string {
	var raw [16]byte
	_, _ = rand.Read(raw[6:]) // never fails
	for i, ms := 5, now.UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		raw[i] = byte(ms)
	}
	n := new(big.Int).SetBytes(raw[:])
	var text [26]byte
	for i := len(text) - 1; i >= 0; i-- {
		text[i] = crockford[new(big.Int).And(n, big.NewInt(31)).Int64()]
		n.Rsh(n, 5)
	}
	return string(text[:])
}
