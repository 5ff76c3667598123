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

// Sets and maps for lookups in a rule, "ct state { established, related }" or "tcp dport { 22, 443 }" (NFT_MSG_GETSET,
// NFT_MSG_GETSETELEM). Only those with known keys are read: states, protocols and ports.

const maxSetElements = 1024

// errSetTooLarge means too many elements in a set, or too many sets: the effect of the set is unknown.
var errSetTooLarge = fmt.Errorf("more than %d elements, or %d sets", maxSetElements, maxPacketSets)

// element is one element of a set: a key, and its verdict in a map. In a set of intervals it is all keys between two,
// both inclusive.
type element struct {
	from, to []byte
	end      bool // ends an interval; the key is the first one outside
	verdict  []byte
}

// readSet reads a set of the chain's table. ENOENT and errSetTooLarge mean that its content is unknown.
func (c *PacketChain) readSet(name string) ([]element, error) {
	family := familyNumber(c.Family)
	answers, err := request(unix.NFT_MSG_GETSET, 0, family, c.Table, name).Execute(unix.NETLINK_NETFILTER,
		unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSET)
	if err != nil || len(answers) != 1 {
		return nil, errors.Join(err, fmt.Errorf("set %s: %d answers", name, len(answers)))
	}
	set, err := body(answers[0])
	if err != nil {
		return nil, err
	}
	var elements []element
	failure, err := dump(request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, family, c.Table, name),
		unix.NFT_MSG_NEWSETELEM,
		func(message []byte) error {
			more, err := parseElements(message)
			elements = append(elements, more...)
			if err == nil && len(elements) > maxSetElements {
				err = errSetTooLarge
			}
			return err
		})
	if failure != nil || err != nil {
		return nil, fmt.Errorf("set %s: %w", name, errors.Join(failure, err))
	}
	if be32(set.Get(unix.NFTA_SET_FLAGS))&unix.NFT_SET_INTERVAL != 0 {
		elements = intervals(elements)
	}
	return elements, nil
}

// parseElements parses one NFT_MSG_NEWSETELEM.
func parseElements(message []byte) ([]element, error) {
	attributes, err := body(message)
	if err != nil {
		return nil, err
	}
	list, err := netlink.Attributes(attributes.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
	if err != nil {
		return nil, err
	}
	var elements []element
	for _, item := range list {
		fields, err := netlink.Attributes(item.Value)
		if err != nil {
			return nil, err
		}
		const catchAll, keyEnd = 2, 10 // NFT_SET_ELEM_CATCHALL, NFTA_SET_ELEM_KEY_END
		flags := be32(fields.Get(unix.NFTA_SET_ELEM_FLAGS))
		if flags&catchAll != 0 || fields.Get(keyEnd) != nil { // "*", or an interval of several keys at once
			return nil, errSetTooLarge
		}
		key := value(fields.Get(unix.NFTA_SET_ELEM_KEY))
		elements = append(elements, element{from: key, to: key, end: flags&unix.NFT_SET_ELEM_INTERVAL_END != 0,
			verdict: nested(fields.Get(unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)})
	}
	return elements, nil
}

// intervals pairs the ends of intervals. An interval without an end extends to the last key.
func intervals(ends []element) []element {
	slices.SortFunc(ends, func(a, b element) int {
		if order := bytes.Compare(a.from, b.from); order != 0 {
			return order
		}
		if a.end && !b.end { // one ends where the next begins
			return -1
		}
		return 1
	})
	var closed []element
	open := false
	for _, e := range ends {
		if last := len(closed) - 1; open {
			closed[last].to = before(e.from)
		}
		if open = !e.end; open {
			e.to = bytes.Repeat([]byte{0xff}, len(e.from))
			closed = append(closed, e)
		}
	}
	return closed
}

// before returns the key before another one. key must not be the first.
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

// lookup is one lookup of a rule in a set, or in a map of verdicts, to be read later.
type lookup struct {
	set      string
	load     loaded
	verdicts bool
}

// lookUp adds a lookup. Unless it is understood, a map with a verdict for each key may have any effect; so may a map
// whose value is compared later.
func (r *ruleParser) lookUp(data netlink.AttributeList) {
	l, set := r.register(data.Get(unix.NFTA_LOOKUP_SREG)), cString(data.Get(unix.NFTA_LOOKUP_SET))
	inverted := be32(data.Get(unix.NFTA_LOOKUP_FLAGS))&unix.NFT_LOOKUP_F_INV != 0
	destination := data.Get(unix.NFTA_LOOKUP_DREG)
	switch verdicts := destination != nil && be32(destination) == unix.NFT_REG_VERDICT; {
	case verdicts && l.what == "state" && l.mask == nil && !inverted:
		r.lookups = append(r.lookups, lookup{set, l, true})
	case verdicts:
		r.unknown("nft map")
		r.rule.Verdict = "accept"
	case destination == nil && !inverted && l.mask == nil && slices.Contains([]string{"state", "protocol", "port"},
		l.what):
		r.lookups = append(r.lookups, lookup{set, l, false})
	default:
		r.unknown("lookup")
		clear(r.registers)
	}
}

// resolve adds the content of its sets and maps to the rule.
func (r *ruleParser) resolve(read func(set string) ([]element, error)) error {
	for _, l := range r.lookups {
		set, err := read(l.set)
		switch {
		case errors.Is(err, errSetTooLarge) || errors.Is(err, unix.ENOENT):
			r.notUnderstood(l)
			continue
		case err != nil:
			return err
		}
		if !slices.ContainsFunc(set, func(e element) bool {
			return len(e.from) != l.load.size || len(e.to) != l.load.size
		}) {
			r.addKeys(l, set)
		} else { // a concatenated key
			r.notUnderstood(l)
		}
	}
	return nil
}

// notUnderstood restricts the rule in an unknown way.
func (r *ruleParser) notUnderstood(l lookup) {
	r.unknown("lookup")
	if l.verdicts {
		r.rule.Verdict = "accept"
	}
}

func (r *ruleParser) addKeys(l lookup, set []element) {
	switch l.load.what {
	case "state":
		r.addStates(l, set)
	case "protocol":
		for _, e := range set {
			for p := int(e.from[0]); p <= int(e.to[0]); p++ {
				r.rule.Protocols = append(r.rule.Protocols, uint8(p)) //nolint:gosec // at most 255
			}
		}
	case "port":
		for _, e := range set {
			r.rule.Ports = append(r.rule.Ports, PortRange{binary.BigEndian.Uint16(e.from),
				binary.BigEndian.Uint16(e.to)})
		}
	}
	if len(set) == 0 && l.load.what != "state" { // a named set may be filled at any time
		r.unknown("lookup")
	}
}

// addStates adds a set or map of states. A packet has only one state.
func (r *ruleParser) addStates(l lookup, set []element) {
	states := uint32(0)
	const newState = 8
	for _, e := range set {
		state := binary.NativeEndian.Uint32(e.from)
		states |= state
		if l.verdicts && state == newState {
			r.verdict(e.verdict)
		}
	}
	r.rule.matchStates(states)
}
