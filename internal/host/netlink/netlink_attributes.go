package netlink

import (
	"encoding/binary"
	"fmt"
)

// netlinkAttribute is one attribute of a netlink message (netlink(7), linux/netlink.h struct nlattr).
type netlinkAttribute struct {
	Kind  uint16 // without the flags for nesting and byte order
	Value []byte
}

// NetlinkAttributes splits a message, or a value that nests attributes, into attributes; each begins at a multiple of
// four.
func NetlinkAttributes(data []byte) ([]netlinkAttribute, error) {
	const header = 4
	var found []netlinkAttribute
	for len(data) >= header {
		length := int(binary.NativeEndian.Uint16(data))
		if length < header || length > len(data) {
			return nil, fmt.Errorf("attribute of %d bytes in %d", length, len(data))
		}
		found = append(found, netlinkAttribute{binary.NativeEndian.Uint16(data[2:]) & 0x3fff, data[header:length]})
		data = data[min((length+3)&^3, len(data)):]
	}
	return found, nil
}
