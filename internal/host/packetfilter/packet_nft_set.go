package packetfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/netlink"
)

// Sets and maps that a rule looks something up in, "ct state { established, related }" or "tcp dport { 22, 443 }"
// (NFT_MSG_GETSET, NFT_MSG_GETSETELEM). Only those are read whose keys are understood: states, protocols and ports.
const (
	nftGetSet      = 10
	nftNewSet      = 9
	nftGetElements = 13
	nftNewElements = 12

	nftSetIntervals = 0x4 // NFT_SET_INTERVAL: each element begins or ends an interval
	maxSetElements  = 1024
)

// errSetTooLarge says that a set has more elements than are read, or there are more sets: what it limits is not known.
var errSetTooLarge = fmt.Errorf("more than %d elements, or %d sets", maxSetElements, maxPacketSets)

// nftElement is one element of a set: a key, and the verdict that a map has for it. In a set of intervals it is all
// keys from one to another, both inclusive.
type nftElement struct {
	from, to []byte
	end      bool // ends an interval; the key is the first that is outside
	verdict  []byte
}

// NftSet is what is known of a set.
type NftSet struct{ Elements []nftElement }

// ParseNFTElements parses one NFT_MSG_NEWSETELEM.
func ParseNFTElements(message []byte) ([]nftElement, error) {
	if len(message) < nfHeader {
		return nil, errors.New("short message")
	}
	attributes, err := nftAttributes(message[nfHeader:])
	if err != nil {
		return nil, err
	}
	list, err := netlink.NetlinkAttributes(attributes[3])
	if err != nil {
		return nil, err
	}
	var elements []nftElement
	for _, item := range list {
		fields, err := nftAttributes(item.Value)
		if err != nil {
			return nil, err
		}
		const end, catchAll = 1, 2
		if be32(fields[3])&catchAll != 0 || fields[10] != nil { // "*", or an interval of several keys at once
			return nil, errSetTooLarge
		}
		key := nested(fields[1], 1)
		elements = append(elements, nftElement{from: key, to: key, end: be32(fields[3])&end != 0,
			verdict: nested(fields[2], 2)})
	}
	return elements, nil
}

// NftIntervals makes intervals of their ends. One that is not ended goes up to the last key.
func NftIntervals(ends []nftElement) []nftElement {
	slices.SortFunc(ends, func(a, b nftElement) int {
		if order := bytes.Compare(a.from, b.from); order != 0 {
			return order
		}
		if a.end && !b.end { // one ends where the next begins
			return -1
		}
		return 1
	})
	var intervals []nftElement
	open := false
	for _, e := range ends {
		if last := len(intervals) - 1; open {
			intervals[last].to = before(e.from)
		}
		if open = !e.end; open {
			e.to = bytes.Repeat([]byte{0xff}, len(e.from))
			intervals = append(intervals, e)
		}
	}
	return intervals
}

// before returns the key before another one, which is not the first.
func before(key []byte) []byte {
	less := slices.Clone(key)
	for i := len(less) - 1; i >= 0; i-- {
		less[i]--
		if less[i] != 0xff {
			break
		}
	}
	return less
}

// nftLookup is one lookup of a rule in a set, or in a map of verdicts, which is read later.
type nftLookup struct {
	set      string
	load     nftLoad
	verdicts bool
}

// lookUp takes a lookup: attributes are set, source and destination register, and flags (1: inverted). A map with a
// verdict for each key may do anything, unless it is understood; so may a map whose value is compared later.
func (r *nftRule) lookUp(data map[uint16][]byte) {
	l := r.registers[be32(data[2])]
	inverted := be32(data[5])&1 != 0
	switch verdicts := data[3] != nil && be32(data[3]) == 0; {
	case verdicts && l.what == "state" && l.mask == nil && !inverted:
		r.lookups = append(r.lookups, nftLookup{cString(data[1]), l, true})
	case verdicts:
		r.unknown("nft map")
		r.rule.Verdict = "accept"
	case data[3] == nil && !inverted && l.mask == nil && slices.Contains([]string{"state", "protocol", "port"}, l.what):
		r.lookups = append(r.lookups, nftLookup{cString(data[1]), l, false})
	default:
		r.unknown("lookup")
		clear(r.registers)
	}
}

// resolve adds what the sets and maps say that the rule looks up in.
func (r *nftRule) resolve(read func(set string) (NftSet, error)) error {
	for _, l := range r.lookups {
		set, err := read(l.set)
		switch {
		case errors.Is(err, errSetTooLarge) || errors.Is(err, unix.ENOENT):
			r.limited(l)
			continue
		case err != nil:
			return err
		}
		if !slices.ContainsFunc(set.Elements, func(e nftElement) bool {
			return len(e.from) != l.load.size || len(e.to) != l.load.size
		}) {
			r.among(l, set)
		} else { // the key is made of several
			r.limited(l)
		}
	}
	return nil
}

// limited stands for a lookup that is not understood.
func (r *nftRule) limited(l nftLookup) {
	r.unknown("lookup")
	if l.verdicts {
		r.rule.Verdict = "accept"
	}
}

func (r *nftRule) among(l nftLookup, set NftSet) {
	switch l.load.what {
	case "state":
		r.amongStates(l, set)
	case "protocol":
		for _, e := range set.Elements {
			for p := int(e.from[0]); p <= int(e.to[0]); p++ {
				r.rule.Protocols = append(r.rule.Protocols, uint8(p)) //nolint:gosec // at most 255
			}
		}
		r.never(len(set.Elements) == 0)
	case "port":
		for _, e := range set.Elements {
			r.rule.Ports = append(r.rule.Ports, PortRange{binary.BigEndian.Uint16(e.from),
				binary.BigEndian.Uint16(e.to)})
		}
		r.never(len(set.Elements) == 0)
	}
}

// never stands for an empty set: a named one may be filled at any time.
func (r *nftRule) never(empty bool) {
	if empty {
		r.unknown("lookup")
	}
}

// amongStates takes a set or map of states, of which a packet has one only.
func (r *nftRule) amongStates(l nftLookup, set NftSet) {
	states := uint32(0)
	const fresh = 8
	for _, e := range set.Elements {
		state := binary.NativeEndian.Uint32(e.from)
		states |= state
		if l.verdicts && state == fresh {
			r.verdict(e.verdict)
		}
	}
	r.rule.matchStates(states)
}
