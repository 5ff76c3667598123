package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// bonds reads /proc/net/bonding/BOND, one file for each bond of the namespace:
//
//	Bonding Mode: IEEE 802.3ad Dynamic link aggregation
//	MII Status: up
//	802.3ad info
//	Active Aggregator Info:
//		Aggregator ID: 1
//		Partner Mac Address: 00:23:04:ee:be:01
//
//	Slave Interface: eth0
//	MII Status: up                 (also: down, going down, going back)
//	Aggregator ID: 1
//
// https://docs.kernel.org/networking/bonding.html
//
// "going down" and "going back" are members within their configured delays; they count neither as up nor as down.

const maxBonds = 64 // to read

// Bonds finds bonds that lost links.
func Bonds() detect.Check {
	return detect.Check{
		ID: "bonds", Domain: "network",
		Summary: "a bond of network cards lost one of its links, or all",
		Advice: "List the members with `cat /proc/net/bonding/BOND`. Check the cable, the transceiver and the " +
			"switch port of each member that is down (`ethtool X`). Without an LACP partner, configure the switch " +
			"ports as one channel.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/bonding/*", "/sys/class/net/BOND/flags"},
			Why:   "A bond hides the loss of a link, and of its bandwidth, until the last link fails.",
			Faults: []detect.Fault{
				{Reason: "BondDown", Severity: finding.Fatal, When: "a bond that is up has no link for 5 s; fatal if " +
					"no other card of the node has a link, else a warning"},
				{Reason: "BondDegraded", Severity: finding.Warning, When: "a member is down for 5 s"},
				{Reason: "BondNoPartner", Severity: finding.Warning, When: "802.3ad: no switch answers LACP, so at " +
					"most one link is used"},
				{Reason: "BondSplit", Severity: finding.Warning, When: "802.3ad: a member is up, but in another " +
					"aggregator than the active one, and carries no traffic"},
			},
			FalseAlarms: "Bonds without members (the bond0 that the module creates) and bonds that are " +
				"administratively down are ignored. So is a member that was removed from its bond.",
		},
		Condition: detect.NetworkProblem(),
		Every:     30 * time.Second, Deadline: 8 * time.Second,
		Wakes: []detect.Wake{{Source: detect.WakeLinks}, checkkit.KernelWake()},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 5 * time.Second},
			Clear: finding.Hold{Runs: 2, For: 5 * time.Second}},
		Run: observeBonds,
	}
}

func observeBonds(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := checkkit.ListSorted(h.Files, "/proc/net/bonding")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, finding.NoneLeft("no bond of network cards")
	}
	if len(names) > maxBonds {
		return nil, fmt.Errorf("list /proc/net/bonding: more than %d bonds", maxBonds)
	}
	cards, err := networkCards(h.Files)
	if err != nil {
		return nil, err
	}
	var results checkkit.Results
	for _, name := range names {
		b, err := readBond(h.Files, name)
		subject := finding.Subject{Kind: kindNetDevice, Name: name}
		if results.Unread(subject, err) { // or removed meanwhile
			continue
		}
		f, ok := b.evaluate(anyWorks(cards))
		f.Subject = subject
		results.Add(f, ok)
	}
	return results.Done()
}

func readBond(files host.Files, name string) (bond, error) {
	b, err := checkkit.Parse(files, "/proc/net/bonding/"+name, parseBond)
	if err != nil {
		return bond{}, err
	}
	b.name = name
	device := networkCard{name: name, dir: sysClassNet + "/" + name}
	err = device.read(files)
	b.adminUp = device.adminUp
	return b, err
}

// bond is one bond; aggregators are 0 if the mode has none.
type bond struct {
	name       string
	mode       string
	status     string // MII Status
	aggregator int    // the active one
	partner    string // its MAC address; all zeros when no switch answered
	members    []bondMember
	adminUp    bool
}

type bondMember struct {
	name       string
	status     string
	aggregator int
}

// parseBond parses /proc/net/bonding/BOND. It skips unknown lines.
func parseBond(text string) (bond, error) {
	var b bond
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		last := len(b.members) - 1
		switch {
		case key == "Bonding Mode":
			b.mode = value
		case key == "Slave Interface":
			b.members = append(b.members, bondMember{name: checkkit.Sanitize(value, checkkit.MaxName)})
		case key == "MII Status" && last < 0:
			b.status = value
		case key == "MII Status":
			b.members[last].status = value
		case key == "Partner Mac Address" && last < 0:
			b.partner = value
		case key == "Aggregator ID" && value != "N/A":
			id, err := strconv.Atoi(value)
			if err != nil {
				return bond{}, checkkit.InLine(line, errors.New("bad number"))
			}
			if last < 0 {
				b.aggregator = id
			} else {
				b.members[last].aggregator = id
			}
		}
	}
	if b.mode == "" || b.status == "" {
		return bond{}, fmt.Errorf("%q: neither mode nor status of a bond", checkkit.Sanitize(text, checkkit.MaxName))
	}
	if i := slices.IndexFunc(b.members, func(m bondMember) bool { return m.status == "" }); i >= 0 {
		return bond{}, fmt.Errorf("member %q has no status", b.members[i].name)
	}
	return b, nil
}

// evaluate returns the most severe fault of a bond.
func (b bond) evaluate(othersWork bool) (finding.Finding, bool) {
	if !b.adminUp || len(b.members) == 0 {
		return finding.Finding{}, false
	}
	var down, apart []string
	up := 0
	for _, m := range b.members {
		switch {
		case m.status == "down":
			down = append(down, m.name)
		case m.status == "up":
			up++
			if b.aggregator != 0 && m.aggregator != b.aggregator {
				apart = append(apart, m.name)
			}
		}
	}
	facts := map[string]string{"mode": checkkit.Sanitize(b.mode, checkkit.MaxName),
		"members": strconv.Itoa(len(b.members)), "up": strconv.Itoa(up)}
	if len(down) > 0 {
		facts["down"] = finding.JoinFirst(down, 10)
	}
	f := finding.Finding{Severity: finding.Warning, Facts: facts}
	switch {
	case b.status == "down" || len(down) == len(b.members):
		f.Reason, f.Message = "BondDown", fmt.Sprintf("%s has no link: %d of %d members are down", b.name, len(down),
			len(b.members))
		if !othersWork {
			f.Severity = finding.Fatal
			f.Message += "; no card of the node has one"
		}
	case len(down) > 0:
		f.Reason, f.Message = "BondDegraded", fmt.Sprintf("%s has %d of %d links: %s is down", b.name, up,
			len(b.members), finding.JoinFirst(down, 5))
	case b.partner == "00:00:00:00:00:00":
		f.Reason, f.Message = "BondNoPartner", b.name+": no switch answers LACP"
	case len(apart) > 0:
		f.Reason, f.Message = "BondSplit", fmt.Sprintf("%s: %s is in another aggregator than the active one and "+
			"carries no traffic", b.name, finding.JoinFirst(apart, 5))
	default:
		return finding.Finding{}, false
	}
	return f, true
}
