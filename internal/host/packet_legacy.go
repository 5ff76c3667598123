package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tables of iptables-legacy are one blob each, which the kernel gives through getsockopt(2) as it uses it
// (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h): entries one after the other, each struct ipt_entry
// or ip6t_entry, its matches, its target. A chain that users made begins with an entry whose target is ERROR with the chain's
// name; base chains begin where struct ipt_getinfo says, and end with the policy (underflow).
const (
	iptGetInfo    = 64 // the same number for both families
	iptGetEntries = 65
	iptInfoSize   = 84
	iptHeader     = 40 // struct ipt_get_entries before the entries
	xtHeader      = 32 // struct xt_entry_match and xt_entry_target before their data
)

// legacyFamily is what differs between IPv4 and IPv6. An entry begins with struct ipt_ip or ip6t_ip6: source, destination,
// their masks, then names of interfaces and their masks (16 bytes each), protocol, flags, inversions.
type legacyFamily struct {
	name          string
	domain, level int    // of the socket that is asked
	names         string // the file that lists the tables
	address       int    // bytes of an address
	flags         int    // offset; the byte behind is for inversions
	fragment      byte   // flag: only fragments (IPT_F_FRAG)
	hasProtocol   byte   // flag: the protocol counts (IP6T_F_PROTO); 0: always
	jumpIsGoto    byte   // flag: IPT_F_GOTO, IP6T_F_GOTO
	target        int    // offset of the target's offset; behind is the next entry's
	packets       int    // offset of struct xt_counters
	entry         int    // bytes of an entry before its matches
}

func legacyIPv4() legacyFamily {
	return legacyFamily{
		name: "ip", domain: unix.AF_INET, level: unix.IPPROTO_IP, names: "/proc/thread-self/net/ip_tables_names",
		address: 4, flags: 82, fragment: 1, jumpIsGoto: 2, target: 88, packets: 96, entry: 112,
	}
}

func legacyIPv6() legacyFamily {
	return legacyFamily{
		name: "ip6", domain: unix.AF_INET6, level: unix.IPPROTO_IPV6, names: "/proc/thread-self/net/ip6_tables_names",
		address: 16, flags: 131, hasProtocol: 1, jumpIsGoto: 4, target: 140, packets: 152, entry: 168,
	}
}

// legacyHooks are the names of the hooks by their numbers, as far as they are looked at.
func legacyHooks() []string { return []string{"prerouting", "input", "forward", "output"} }

// legacyPriorities are those of the tables (enum nf_ip_hook_priorities); mangle has another one at output, before nat as well.
func legacyPriorities() map[string]int {
	return map[string]int{"raw": -300, "mangle": -150, "filter": 0, "security": 50}
}

// legacyTables reads the tables that there are. To ask for another would make the kernel load it.
func (h *Host) legacyTables(family legacyFamily, filter *PacketFilter) error {
	names, err := h.Files.Read(family.names)
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
		info, entries, err := family.get(table)
		if err != nil {
			return fmt.Errorf("table %s %s: %w", family.name, table, err)
		}
		chains, err := family.parseTable(table, info, entries)
		if err != nil {
			return fmt.Errorf("table %s %s: %w", family.name, table, err)
		}
		for _, chain := range chains {
			filter.countKube(chain)
		}
		filter.Chains = append(filter.Chains, chains...)
	}
	return nil
}

// get gets a table. Between the two calls it may change in size, which the kernel answers with EAGAIN.
func (f legacyFamily) get(table string) (info, entries []byte, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for range 3 {
		info = make([]byte, iptInfoSize)
		copy(info, table)
		if err := getsockopt(fd, f.level, iptGetInfo, info); err != nil {
			return nil, nil, err
		}
		size := binary.NativeEndian.Uint32(info[80:])
		if size > maxPacketTable {
			return nil, nil, fmt.Errorf("larger than %d bytes", maxPacketTable)
		}
		entries = make([]byte, iptHeader+size)
		copy(entries, table)
		binary.NativeEndian.PutUint32(entries[32:], size)
		if err = getsockopt(fd, f.level, iptGetEntries, entries); err == nil {
			return info, entries[iptHeader:], nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return nil, nil, err
}

// getsockopt reads an option into data, whose beginning tells the kernel what is wanted.
func getsockopt(fd, level, option int, data []byte) error {
	length := uint32(len(data)) //nolint:gosec // bounded by maxPacketTable
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
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

// parseTable makes chains of the entries.
func (f legacyFamily) parseTable(table string, info, data []byte) ([]PacketChain, error) {
	if len(info) < iptInfoSize {
		return nil, errors.New("short ipt_getinfo")
	}
	entries, err := f.parseEntries(data)
	if err != nil {
		return nil, err
	}
	names := map[uint32]string{} // of the chains by the offset of their first rule
	for i, e := range entries {
		if e.chain != "" && i+1 < len(entries) {
			names[entries[i+1].offset] = e.chain
		}
	}
	starts, ends := f.bases(table, info)
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
			chains = append(chains, PacketChain{Backend: "legacy", Family: f.name, Table: table, Name: name})
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

// bases returns the base chains by the offset of their first entry, and the offsets of their policies.
func (f legacyFamily) bases(table string, info []byte) (starts map[uint32]PacketChain, ends map[uint32]bool) {
	starts, ends = map[uint32]PacketChain{}, map[uint32]bool{}
	valid := binary.NativeEndian.Uint32(info[32:])
	for number, hook := range legacyHooks() {
		if valid&(1<<number) != 0 {
			start := binary.NativeEndian.Uint32(info[36+4*number:])
			starts[start] = PacketChain{
				Backend: "legacy", Family: f.name, Table: table, Name: strings.ToUpper(hook), Hook: hook, Priority: legacyPriorities()[table],
			}
			ends[binary.NativeEndian.Uint32(info[56+4*number:])] = true
		}
	}
	return starts, ends
}

func (f legacyFamily) parseEntries(data []byte) ([]legacyEntry, error) {
	var entries []legacyEntry
	for offset := 0; offset < len(data); {
		rest := data[offset:]
		if len(rest) < f.entry {
			return nil, fmt.Errorf("entry at %d is cut short", offset)
		}
		target, next := int(binary.NativeEndian.Uint16(rest[f.target:])), int(binary.NativeEndian.Uint16(rest[f.target+2:]))
		if target < f.entry || next < target+xtHeader || next > len(rest) {
			return nil, fmt.Errorf("entry at %d: target at %d, end at %d of %d bytes", offset, target, next, len(rest))
		}
		e := legacyEntry{offset: uint32(offset), rule: f.parseHead(rest)} //nolint:gosec // bounded by maxPacketTable
		for at := f.entry; at < target; {
			size := int(binary.NativeEndian.Uint16(rest[at:]))
			if size < xtHeader || at+size > target {
				return nil, fmt.Errorf("entry at %d: match of %d bytes", offset, size)
			}
			e.rule.matchExtension(cString(rest[at+2:at+31]), rest[at+xtHeader:at+size])
			at += size
		}
		e.addTarget(rest[target:next], rest[f.flags]&f.jumpIsGoto != 0, offset+next)
		entries = append(entries, e)
		offset += next
	}
	return entries, nil
}

// parseHead reads struct ipt_ip or ip6t_ip6 and the counters of an entry.
func (f legacyFamily) parseHead(entry []byte) PacketRule {
	var r PacketRule
	a := f.address
	source, from := prefix(entry[:a], entry[2*a:3*a])
	destination, to := prefix(entry[a:2*a], entry[3*a:4*a])
	if source.Bits() > 0 {
		r.Source = source
	}
	if destination.Bits() > 0 {
		r.Destination = destination
	}
	names := entry[4*a:]
	r.In = interfaceName(names[:16], maskEnds(names[:16], names[32:48]))
	r.Out = interfaceName(names[16:32], maskEnds(names[16:32], names[48:64]))
	if f.hasProtocol == 0 || entry[f.flags]&f.hasProtocol != 0 {
		r.Protocol = uint8(min(binary.NativeEndian.Uint16(names[64:]), 255)) //nolint:gosec // at most 255
	}
	r.Packets = binary.NativeEndian.Uint64(entry[f.packets:])
	if entry[f.flags+1] != 0 || entry[f.flags]&f.fragment != 0 { // "! -s", or fragments only
		r.Matches = append(r.Matches, "inversion")
	}
	if !from || !to {
		r.Matches = append(r.Matches, "mask")
	}
	return r
}

// maskEnds reports whether the mask of an interface's name covers the NUL behind it: then the whole name is meant.
func maskEnds(name, mask []byte) bool {
	length := bytes.IndexByte(name, 0)
	return length > 0 && length < len(mask) && mask[length] != 0
}

// addTarget reads the target: a verdict or a jump (the standard target, whose name is empty), the head of a chain (ERROR), or
// another one by its name. A jump to the entry behind is none: that entry has no target. Verdicts are -1 less one of NF_DROP 0,
// NF_ACCEPT 1, NF_QUEUE 3 and NF_REPEAT 4, which stands for return.
func (e *legacyEntry) addTarget(target []byte, isGoto bool, next int) {
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
		case int(verdict) != next && isGoto:
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
