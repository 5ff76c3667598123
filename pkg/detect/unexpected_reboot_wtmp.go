package detect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// login is a record of /var/log/wtmp that tells of a boot or of a shutdown.
type login struct {
	at       time.Time
	shutdown bool
}

// wtmpLayout is struct utmp, which glibc made differently for each kind of machine. The type is at 0, 2 bytes; the user at
// 44, 32 bytes.
type wtmpLayout struct {
	size   int
	time   int // where the seconds are
	time64 bool
}

func wtmpLayouts() []wtmpLayout {
	return []wtmpLayout{
		{size: 384, time: 340},               // amd64, ppc64le: 32 bits, as on the machines of old
		{size: 400, time: 344, time64: true}, // arm64
	}
}

const (
	wtmpRunLevel = 1
	wtmpBoot     = 2
	wtmpMostType = 9
)

// parseLogins parses the end of a file of the given size. Of the two layouts that is taken which makes all records ones that
// exist.
func parseLogins(data []byte, size int64) ([]login, error) {
	for _, l := range wtmpLayouts() {
		if size%int64(l.size) != 0 {
			continue
		}
		whole := data[len(data)%l.size:] // the end is where a record ends
		if records, err := l.parse(whole); err == nil {
			return records, nil
		}
	}
	return nil, errors.New("not made of login records")
}

func (l wtmpLayout) parse(data []byte) ([]login, error) {
	var found []login
	for ; len(data) >= l.size; data = data[l.size:] {
		kind := binary.LittleEndian.Uint16(data)
		if kind > wtmpMostType {
			return nil, fmt.Errorf("no record is of type %d", kind)
		}
		user, _, _ := bytes.Cut(data[44:44+32], []byte{0})
		shutdown := kind == wtmpRunLevel && string(user) == "shutdown"
		if kind != wtmpBoot && !shutdown {
			continue
		}
		seconds := int64(binary.LittleEndian.Uint32(data[l.time:])) // good until 2106
		if l.time64 {
			seconds = int64(binary.LittleEndian.Uint64(data[l.time:])) //nolint:gosec // as the file has it
		}
		found = append(found, login{time.Unix(seconds, 0), shutdown})
	}
	return found, nil
}
