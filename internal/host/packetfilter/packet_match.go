package packetfilter

import (
	"net/netip"
	"strings"
)

// prefix makes a prefix of an address and its mask; false where the mask is none.
func prefix(address, mask []byte) (netip.Prefix, bool) {
	ones := 0
	for _, b := range mask {
		for bit := 7; bit >= 0; bit-- {
			if b&(1<<bit) == 0 {
				continue
			}
			ones++
		}
	}
	for i := range mask { // all ones come first
		want := byte(0)
		for bit := range 8 {
			if i*8+bit < ones {
				want |= 0x80 >> bit
			}
		}
		if mask[i] != want {
			return netip.Prefix{}, false
		}
	}
	ip, ok := netip.AddrFromSlice(address)
	return netip.PrefixFrom(ip, ones), ok
}

// interfaceName reads the name of an interface: a NUL at its end stands for the whole name, none for its beginning.
func interfaceName(name []byte, whole bool) string {
	text := strings.TrimRight(string(name), "\x00")
	if text != "" && !whole {
		text = strings.TrimSuffix(text, "+") + "+"
	}
	return strings.ToValidUTF8(text, "?")
}
