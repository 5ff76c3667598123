package packetfilter

import (
	"encoding/binary"
	"slices"
	"testing"
)

func FuzzParseNFT(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x0b\x00\x01\x00filter\x00\x00\x0c\x00\x03\x00FORWARD\x00" +
		"\x14\x00\x04\x00\x08\x00\x01\x00\x00\x00\x00\x02\x08\x00\x02\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x02\x00\x00\x00\x34\x00\x04\x00\x30\x00\x01\x00\x0e\x00\x01\x00immediate\x00\x00\x00" +
		"\x1c\x00\x02\x00\x08\x00\x01\x00\x00\x00\x00\x00" +
		"\x10\x00\x02\x00\x0c\x00\x02\x00\x08\x00\x01\x00\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, message []byte) {
		_, _, _ = parseChain(message)
		elements, _ := parseElements(message)
		rule, _, _ := parseRule(message, func(string) ([]element, error) {
			return intervals(elements), nil
		})
		_ = rule.String()
		_, _, _ = PortMapping{}.parse(message)
	})
}

func FuzzLegacyTable(f *testing.F) {
	for i, family := range legacyFamilies() {
		entry := make([]byte, family.entry+2*extensionHead) // the head of the plugin's chain
		binary.NativeEndian.PutUint16(entry[family.targetOffset:], uint16(family.entry))
		binary.NativeEndian.PutUint16(entry[family.targetOffset+2:], uint16(len(entry)))
		copy(entry[family.entry+2:], "ERROR")
		copy(entry[family.entry+extensionHead:], "CNI-HOSTPORT-DNAT")
		rule := slices.Clone(entry)
		copy(rule[family.entry+2:], "\x00\x00\x00\x00\x00")
		f.Add(i == 0, append(entry, rule...))
	}
	f.Fuzz(func(t *testing.T, v4 bool, table []byte) {
		family := legacyFamilies()[1]
		if v4 {
			family = legacyFamilies()[0]
		}
		if mappings, err := family.mappings(table); err != nil && mappings != nil {
			t.Error("mappings and an error")
		}
	})
}
