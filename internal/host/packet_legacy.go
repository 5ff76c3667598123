package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tables of iptables-legacy are one blob each, which the kernel gives through getsockopt(2) as it uses it
// (linux/netfilter_ipv4/ip_tables.h): entries one after the other, each struct ipt_entry, its matches, its target. A chain
// that users made begins with an entry whose target is ERROR with the chain's name; base chains begin where struct
// ipt_getinfo says, and end with the policy (underflow).
const (
	iptGetInfo     = 64
	iptGetEntries  = 65
	iptInfoSize    = 84
	iptEntrySize   = 112 // struct ipt_entry
	iptHeader      = 40  // struct ipt_get_entries before the entries
	xtHeader       = 32  // struct xt_entry_match and xt_entry_target before their data
	iptFlags       = 82  // of struct ipt_ip: 1 fragments only, 2 goto instead of jump
	iptInvertFlags = 83
)

// legacyHooks are the names of the hooks by their numbers, as far as they are looked at.
func legacyHooks() []string { return []string{"prerouting", "input", "forward", "output"} }

// legacyTables reads the tables that there are. To ask for another would make the kernel load it.
func (h *Host) legacyTables(filter *PacketFilter) error {
	names, err := h.Files.Read("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // never loaded
	}
	if err != nil {
		return err
	}
	for _, table := range strings.Fields(string(names)) {
		if table == "nat" || len(table) > 31 {
			continue
		}
		info, entries, err := legacyTable(table)
		if err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
		chains, err := parseLegacyTable(table, info, entries)
		if err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
		for _, chain := range chains {
			filter.countKube("legacy", chain.Name)
		}
		filter.Chains = append(filter.Chains, chains...)
	}
	return nil
}

// legacyTable gets a table. Between the two calls it may change in size, which the kernel answers with EAGAIN.
func legacyTable(table string) (info, entries []byte, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for range 3 {
		info = make([]byte, iptInfoSize)
		copy(info, table)
		if err := getsockopt(fd, iptGetInfo, info); err != nil {
			return nil, nil, err
		}
		size := binary.NativeEndian.Uint32(info[80:])
		if size > maxPacketTable {
			return nil, nil, fmt.Errorf("larger than %d bytes", maxPacketTable)
		}
		entries = make([]byte, iptHeader+size)
		copy(entries, table)
		binary.NativeEndian.PutUint32(entries[32:], size)
		if err = getsockopt(fd, iptGetEntries, entries); err == nil {
			return info, entries[iptHeader:], nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return nil, nil, err
}

// getsockopt reads an option of the IPv4 layer into data, whose beginning tells the kernel what is wanted.
func getsockopt(fd, option int, data []byte) error {
	length := uint32(len(data)) //nolint:gosec // bounded by maxPacketTable
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, uintptr(option),
		uintptr(unsafe.Pointer(&data[0])), uintptr(unsafe.Pointer(&length)), 0) //nolint:gosec // the kernel's interface
	if errno != 0 {
		return errno
	}
	return nil
}

// legacyEntry is one entry of a table with where it is.
type legacyEntry struct {
	offset uint32
	rule   PacketRule
	chain  string // that begins here; the entry is no rule then
	jump   int32  // offset of the chain that Verdict jump or goto leads to
}

// parseLegacyTable makes chains of the entries.
func parseLegacyTable(table string, info, data []byte) ([]PacketChain, error) {
	if len(info) < iptInfoSize {
		return nil, errors.New("short ipt_getinfo")
	}
	entries, err := parseLegacyEntries(data)
	if err != nil {
		return nil, err
	}
	names := map[uint32]string{} // of the chains by the offset of their first rule
	for i, e := range entries {
		if e.chain != "" && i+1 < len(entries) {
			names[entries[i+1].offset] = e.chain
		}
	}
	starts, ends := legacyBases(table, info)
	var chains []PacketChain
	var current *PacketChain
	finish := func() { // the kernel has a return at the end of each chain that users made
		if current != nil && current.Hook == "" && len(current.Rules) > 0 {
			current.Rules = current.Rules[:len(current.Rules)-1]
		}
		current = nil
	}
	for _, e := range entries {
		if start, ok := starts[e.offset]; ok {
			finish()
			chains = append(chains, start)
			current = &chains[len(chains)-1]
		} else if name := names[e.offset]; name != "" {
			finish()
			chains = append(chains, PacketChain{Backend: "legacy", Family: "ip", Table: table, Name: name})
			current = &chains[len(chains)-1]
		}
		switch {
		case current == nil:
		case e.chain != "":
			finish()
		case ends[e.offset]:
			current.Policy = e.rule.Verdict
			current = nil
		default:
			if e.rule.Verdict == "jump" || e.rule.Verdict == "goto" {
				e.rule.Target = names[uint32(e.jump)] //nolint:gosec // not negative
			}
			current.Rules = append(current.Rules, e.rule)
		}
	}
	return chains, nil
}

// legacyBases returns the base chains by the offset of their first entry, and the offsets of their policies.
func legacyBases(table string, info []byte) (starts map[uint32]PacketChain, ends map[uint32]bool) {
	starts, ends = map[uint32]PacketChain{}, map[uint32]bool{}
	valid := binary.NativeEndian.Uint32(info[32:])
	for number, hook := range legacyHooks() {
		if valid&(1<<number) != 0 {
			start := binary.NativeEndian.Uint32(info[36+4*number:])
			starts[start] = PacketChain{Backend: "legacy", Family: "ip", Table: table, Name: strings.ToUpper(hook), Hook: hook}
			ends[binary.NativeEndian.Uint32(info[56+4*number:])] = true
		}
	}
	return starts, ends
}

func parseLegacyEntries(data []byte) ([]legacyEntry, error) {
	var entries []legacyEntry
	for offset := 0; offset < len(data); {
		rest := data[offset:]
		if len(rest) < iptEntrySize {
			return nil, fmt.Errorf("entry at %d is cut short", offset)
		}
		target, next := int(binary.NativeEndian.Uint16(rest[88:])), int(binary.NativeEndian.Uint16(rest[90:]))
		if target < iptEntrySize || next < target+xtHeader || next > len(rest) {
			return nil, fmt.Errorf("entry at %d: target at %d, end at %d of %d bytes", offset, target, next, len(rest))
		}
		e := legacyEntry{offset: uint32(offset), rule: parseLegacyHead(rest)} //nolint:gosec // bounded by maxPacketTable
		for at := iptEntrySize; at < target; {
			size := int(binary.NativeEndian.Uint16(rest[at:]))
			if size < xtHeader || at+size > target {
				return nil, fmt.Errorf("entry at %d: match of %d bytes", offset, size)
			}
			e.rule.matchExtension(cString(rest[at+2:at+31]), rest[at+xtHeader:at+size])
			at += size
		}
		e.addTarget(rest[target:next], rest[iptFlags], offset+next)
		entries = append(entries, e)
		offset += next
	}
	return entries, nil
}

// parseLegacyHead reads struct ipt_ip and the counters of an entry.
func parseLegacyHead(entry []byte) PacketRule {
	var r PacketRule
	inverted := entry[iptInvertFlags]
	if p, ok := prefix(entry[0:4], entry[8:12]); ok && p.Bits() > 0 {
		r.Source = p
	}
	if p, ok := prefix(entry[4:8], entry[12:16]); ok && p.Bits() > 0 {
		r.Destination = p
	}
	r.In = interfaceName(entry[16:32], maskEnds(entry[16:32], entry[48:64]))
	r.Out = interfaceName(entry[32:48], maskEnds(entry[32:48], entry[64:80]))
	r.Protocol = uint8(min(binary.NativeEndian.Uint16(entry[80:]), 255)) //nolint:gosec // at most 255
	r.Packets = binary.NativeEndian.Uint64(entry[96:])
	if inverted != 0 || entry[iptFlags]&1 != 0 { // "! -s", or fragments only (IPT_F_FRAG)
		r.Matches = append(r.Matches, "inversion")
	}
	if mask := entry[8:16]; !isMask(mask[:4]) || !isMask(mask[4:]) {
		r.Matches = append(r.Matches, "mask")
	}
	return r
}

func isMask(mask []byte) bool {
	_, ok := prefix(netip.IPv4Unspecified().AsSlice(), mask)
	return ok
}

// maskEnds reports whether the mask of an interface's name covers the NUL behind it: then the whole name is meant.
func maskEnds(name, mask []byte) bool {
	length := bytes.IndexByte(name, 0)
	return length > 0 && length < len(mask) && mask[length] != 0
}

// addTarget reads the target: a verdict or a jump (the standard target, whose name is empty), the head of a chain (ERROR), or
// another one by its name. A jump to the entry behind is none: that entry has no target. Verdicts are -1 less one of NF_DROP 0,
// NF_ACCEPT 1, NF_QUEUE 3 and NF_REPEAT 4, which stands for return.
func (e *legacyEntry) addTarget(target []byte, flags byte, next int) {
	name, data := cString(target[2:31]), target[xtHeader:]
	switch {
	case name == "ERROR":
		e.chain = cString(data)
	case name == "REJECT":
		e.rule.Verdict = "reject"
	case name != "" || len(data) < 4:
		e.rule.Target = clip(name)
	default:
		switch verdict := int32(binary.NativeEndian.Uint32(data)); { //nolint:gosec // the kernel's int
		case verdict == -1:
			e.rule.Verdict = "drop"
		case verdict == -2:
			e.rule.Verdict = "accept"
		case verdict == -5:
			e.rule.Verdict = "return"
		case verdict < 0:
			e.rule.Target = "QUEUE"
		case int(verdict) != next && flags&2 != 0:
			e.rule.Verdict, e.jump = "goto", verdict
		case int(verdict) != next:
			e.rule.Verdict, e.jump = "jump", verdict
		}
	}
}

func cString(data []byte) string {
	text, _, _ := bytes.Cut(data, []byte{0})
	return strings.ToValidUTF8(string(text), "?")
}
