package netlink

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Attribute is one attribute of a netlink message (netlink(7), linux/netlink.h struct nlattr).
type Attribute struct {
	Type  uint16 // without the flags for nesting and byte order
	Value []byte
}

// AttributeList is the attributes of one message, or of one value that nests them.
type AttributeList []Attribute

// Get returns the value of the last attribute of a type, or nil if there is none.
func (l AttributeList) Get(kind uint16) []byte {
	for _, a := range slices.Backward(l) {
		if a.Type == kind {
			return a.Value
		}
	}
	return nil
}

// Attributes splits a message, or a value with nested attributes. Each begins at a multiple of four; the last may lack
// padding, on which the library's parser panics.
func Attributes(data []byte) (AttributeList, error) {
	const header, typeMask = 4, 0x3fff
	var found AttributeList
	for len(data) >= header {
		length := int(binary.NativeEndian.Uint16(data))
		if length < header || length > len(data) {
			return nil, fmt.Errorf("attribute of %d bytes in %d", length, len(data))
		}
		found = append(found, Attribute{binary.NativeEndian.Uint16(data[2:]) & typeMask, data[header:length]})
		data = data[min((length+3)&^3, len(data)):]
	}
	return found, nil
}
