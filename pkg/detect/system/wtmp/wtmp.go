// Package wtmp reads /var/log/wtmp.
package wtmp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Login is a record of a boot or a shutdown in /var/log/wtmp.
type Login struct {
	At       time.Time
	Shutdown bool
}

// WtmpLayout is struct utmp, which differs between architectures. The type is at 0, 2 bytes; the
// user at 44, 32 bytes.
type WtmpLayout struct {
	Size   int
	Time   int // offset of the seconds
	Time64 bool
}

// WtmpLayouts are the layouts of struct utmp (utmp(5)) by architecture, the one of 64-bit x86 first.
func WtmpLayouts() []WtmpLayout {
	return []WtmpLayout{
		{Size: 384, Time: 340},               // amd64, ppc64le: 32 bits
		{Size: 400, Time: 344, Time64: true}, // arm64
	}
}

const (
	WtmpRunLevel = 1
	WtmpBoot     = 2
	wtmpMostType = 9
)

// ParseLogins parses the end of a file of the given size. It uses the layout with which all records are valid.
func ParseLogins(data []byte, size int64) ([]Login, error) {
	for _, l := range WtmpLayouts() {
		if size%int64(l.Size) != 0 {
			continue
		}
		whole := data[len(data)%l.Size:] // a record ends at the end of the file
		if records, err := l.parse(whole); err == nil {
			return records, nil
		}
	}
	return nil, errors.New("no login records")
}

func (l WtmpLayout) parse(data []byte) ([]Login, error) {
	var found []Login
	for ; len(data) >= l.Size; data = data[l.Size:] {
		kind := binary.LittleEndian.Uint16(data)
		if kind > wtmpMostType {
			return nil, fmt.Errorf("unknown record type %d", kind)
		}
		user, _, _ := bytes.Cut(data[44:44+32], []byte{0})
		shutdown := kind == WtmpRunLevel && string(user) == "shutdown"
		if kind != WtmpBoot && !shutdown {
			continue
		}
		seconds := int64(binary.LittleEndian.Uint32(data[l.Time:])) // good until 2106
		if l.Time64 {
			seconds = int64(binary.LittleEndian.Uint64(data[l.Time:])) //nolint:gosec // as the file has it
		}
		found = append(found, Login{time.Unix(seconds, 0), shutdown})
	}
	return found, nil
}
