package packetfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// LegacyTable is the reported table name for rules of iptables-legacy in the table nat.
const LegacyTable = "nat (legacy)"

// maxLegacy bounds the table: it can only be read as a whole, some 400 bytes a rule.
const maxLegacy = 16 << 20

// legacyFamily describes the kernel's tables of one family: linux/netfilter_ipv4/ip_tables.h, ip6_tables.h.
type legacyFamily struct {
	name          string
	domain, level int
	targetOffset  int // of target_offset in struct ipt_entry; next_offset follows it
	entry         int // size of struct ipt_entry
}

func legacyFamilies() []legacyFamily {
	return []legacyFamily{{"ip", unix.AF_INET, unix.SOL_IP, 88, 112}, {"ip6", unix.AF_INET6, unix.SOL_IPV6, 140, 168}}
}

// The requests of both families, and the sizes of struct ipt_getinfo and of the head of struct ipt_get_entries.
const (
	legacyGetInfo, legacyGetEntries   = 64, 65
	legacyInfoSize, legacyEntriesHead = 84, 40
)

// ReadLegacyPortMappings reads the rules of CNI's portmap plugin in the table nat of iptables-legacy. The table must
// exist: a request for a missing one would create it.
func ReadLegacyPortMappings(family string) ([]PortMapping, error) {
	for _, f := range legacyFamilies() {
		if f.name != family {
			continue
		}
		table, err := f.read()
		if err != nil {
			return nil, fmt.Errorf("table nat of iptables-legacy, %s: %w", family, err)
		}
		return f.mappings(table)
	}
	return nil, fmt.Errorf("no family %q", family)
}

// read returns the entries of the table nat.
func (f legacyFamily) read() ([]byte, error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range 5 { // the table may change between the two requests
		info := make([]byte, legacyInfoSize)
		copy(info, "nat")
		if err := getsockopt(fd, f.level, legacyGetInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[legacyInfoSize-4:])
		if size > maxLegacy {
			return nil, fmt.Errorf("it has %d bytes, and more than %d are not read", size, maxLegacy)
		}
		entries := make([]byte, legacyEntriesHead+int(size))
		copy(entries, "nat")
		binary.NativeEndian.PutUint32(entries[32:], size)
		err := getsockopt(fd, f.level, legacyGetEntries, entries)
		if !errors.Is(err, unix.EAGAIN) {
			return entries[legacyEntriesHead:], err
		}
	}
	return nil, errors.New("it changes too often to be read completely")
}

// getsockopt fills a buffer that also contains the request.
func getsockopt(fd, level, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // x/sys has no such call
	if errno != 0 {
		return errno
	}
	return nil
}

// legacyRule is one entry of a table.
type legacyRule struct {
	chain   string
	jump    int // offset of its target
	comment string
	matched PacketRule
}

// mappings finds the rules of the plugin in a table.
func (f legacyFamily) mappings(table []byte) ([]PortMapping, error) {
	var rules []legacyRule
	chains := make(map[int]string) // by the offset of their first rule
	chain := ""
	for at := 0; at < len(table); {
		rest := table[at:]
		if len(rest) < f.entry {
			return nil, fmt.Errorf("entry at %d: cut off", at)
		}
		target := int(binary.NativeEndian.Uint16(rest[f.targetOffset:]))
		next := int(binary.NativeEndian.Uint16(rest[f.targetOffset+2:]))
		if target < f.entry || next < target+extensionHead || next > len(rest) {
			return nil, fmt.Errorf("entry at %d: malformed", at)
		}
		at += next
		name, data := extension(rest[target:next])
		if name == "ERROR" { // the head of a chain, or the end of the table
			chain = cString(data)
			chains[at] = chain
			continue
		}
		if chain != "CNI-HOSTPORT-DNAT" {
			continue
		}
		if name != "" || len(data) < 4 || int32(binary.NativeEndian.Uint32(data)) <= 0 { //nolint:gosec // it is signed
			continue // not a jump, such as the RETURN at the end of each chain
		}
		rule := legacyRule{chain: chain, jump: int(binary.NativeEndian.Uint32(data))}
		if err := rule.match(rest[f.entry:target]); err != nil {
			return nil, fmt.Errorf("entry before %d: %w", at, err)
		}
		rules = append(rules, rule)
	}
	if len(rules) > maxMappings {
		return nil, fmt.Errorf("more than %d mappings of ports", maxMappings)
	}
	mappings := make([]PortMapping, 0, len(rules))
	for _, rule := range rules {
		m := PortMapping{Family: f.name, Table: LegacyTable, Chain: rule.chain, Target: hosterr.Clip(chains[rule.jump]),
			Comment: hosterr.Clip(rule.comment), Ports: rule.matched.Ports}
		m.Network, m.Container = containerOf(m.Comment)
		if (rule.matched.Port != PortRange{}) {
			m.Ports = append(m.Ports, rule.matched.Port)
		}
		mappings = append(mappings, m)
	}
	return mappings, nil
}

// extensionHead is the size of the head of struct xt_entry_match and of struct xt_entry_target.
const extensionHead = 32

// extension returns the name and the data of a match or target.
func extension(data []byte) (name string, rest []byte) {
	return cString(data[2:31]), data[extensionHead:]
}

// match reads the matches of a rule.
func (r *legacyRule) match(matches []byte) error {
	for len(matches) > 0 {
		if len(matches) < extensionHead {
			return errors.New("a match is cut off")
		}
		size := int(binary.NativeEndian.Uint16(matches))
		if size < extensionHead || size > len(matches) {
			return errors.New("a match is malformed")
		}
		name, data := extension(matches[:size])
		if name == "comment" {
			r.comment = cString(data)
		}
		r.matched.matchExtension(name, data)
		matches = matches[size:]
	}
	return nil
}
