package host

import (
	"encoding/binary"
	"testing"
)

func FuzzParseLegacyTable(f *testing.F) {
	f.Add(make([]byte, iptInfoSize), make([]byte, 2*legacyIPv4().entry+2*xtHeader))
	info, data := make([]byte, iptInfoSize), make([]byte, legacyIPv4().entry+xtHeader+8)
	info[32] = 1 << 2
	binary.NativeEndian.PutUint16(data[88:], uint16(legacyIPv4().entry))
	binary.NativeEndian.PutUint16(data[90:], uint16(len(data)))
	f.Add(info, data)
	f.Fuzz(func(t *testing.T, info, data []byte) {
		for _, family := range []legacyFamily{legacyIPv4(), legacyIPv6()} {
			if chains, err := family.parseTable("filter", info, data); err != nil && chains != nil {
				t.Errorf("%s: %v in spite of %v", family.name, chains, err)
			}
		}
	})
}

func FuzzParseNFT(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x0b\x00\x01\x00filter\x00\x00\x0c\x00\x03\x00FORWARD\x00\x14\x00\x04\x00\x08\x00\x01\x00\x00\x00\x00\x02\x08\x00\x02\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x02\x00\x00\x00\x34\x00\x04\x00\x30\x00\x01\x00\x0e\x00\x01\x00immediate\x00\x00\x00\x1c\x00\x02\x00\x08\x00\x01\x00\x00\x00\x00\x00\x10\x00\x02\x00\x0c\x00\x02\x00\x08\x00\x01\x00\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, message []byte) {
		_, _, _ = parseNFTChain(message)
		elements, _ := parseNFTElements(message)
		rule, _, _ := parseNFTRule(message, func(string) (nftSet, error) { return nftSet{nftIntervals(elements)}, nil })
		_ = rule.String()
	})
}
