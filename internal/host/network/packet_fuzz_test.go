package network

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
)

func FuzzParseNFT(f *testing.F) {
	f.Add(
		[]byte(
			"\x02\x00\x00\x00\x0b\x00\x01\x00filter\x00\x00\x0c\x00\x03\x00FORWARD\x00\x14\x00\x04\x00\x08\x00\x01\x00\x00\x00\x00\x02\x08\x00\x02\x00\x00\x00\x00\x00"))
	f.Add(
		[]byte(
			"\x02\x00\x00\x00\x34\x00\x04\x00\x30\x00\x01\x00\x0e\x00\x01\x00immediate\x00\x00\x00\x1c\x00\x02\x00\x08\x00\x01\x00\x00\x00\x00\x00\x10\x00\x02\x00\x0c\x00\x02\x00\x08\x00\x01\x00\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, message []byte) {
		_, _, _ = packetfilter.ParseNFTChain(message)
		elements, _ := packetfilter.ParseNFTElements(message)
		rule, _, _ := packetfilter.ParseNFTRule(message, func(string) (packetfilter.NftSet, error) {
			return packetfilter.NftSet{Elements: packetfilter.NftIntervals(elements)}, nil
		})
		_ = rule.String()
	})
}
