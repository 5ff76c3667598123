package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// link-state reads for each card (see network_devices.go)
//
//	flags               0x1003      IFF_UP (1): administratively up
//	operstate           up, down, unknown, dormant …: RFC 2863, with IFF_UP "down" means that there is no carrier
//	carrier_up_count    2           since the device was created; Linux 4.16
//	carrier_down_count  1
//	speed, duplex       25000, full in Mbit/s; only when the carrier changed, since these ask the card under the RTNL lock
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net,
// https://docs.kernel.org/networking/operstates.html
//
// NetworkManager and systemd-networkd also set ports up that were never plugged in, so only ports that have had a
// carrier count: in this boot, or in the agent's saved history. Links go down and up while a machine starts: the first
// two minutes do not count as flaps.

// LinkStateSettings adjust link-state.
type LinkStateSettings struct {
	Flaps  int      `yaml:"flaps"`  // losses of carrier within ten minutes
	Ignore []string `yaml:"ignore"` // devices that may be without carrier
}

// DefaultLinkStateSettings returns the settings that are used unless the configuration says otherwise.
func DefaultLinkStateSettings() LinkStateSettings { return LinkStateSettings{Flaps: 3} }

const (
	// linksStarted is how long after boot links may still be coming up.
	linksStarted = 2 * time.Minute
	flapWindow   = 10 * time.Minute
	// speedEvery is how often speeds are read again although no carrier changed.
	speedEvery = 6 * time.Hour
)

// LinkState finds cards that lost their link. The store may be nil: then links that were up before the agent started
// are known only from this boot's counters.
func LinkState(s LinkStateSettings, store detect.StateStore) detect.Check {
	c := &linkCheck{settings: s, history: loadLinkHistory(store, "link-state/links"), speeds: map[string]linkSpeed{},
		flaps: counterWindow{Span: flapWindow}}
	return detect.Check{
		ID: "link-state", Domain: "network",
		Summary: "a network card lost its link, flaps, or is slower than it was",
		Advice: "Check `ip -s link show dev X` and `ethtool X`, then the cable, the transceiver (`ethtool -m X`) and " +
			"the switch port. Set a port that is not in use down with `ip link set X down`, or list it under ignore.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/net/X/{flags,operstate,type,carrier_up_count,carrier_down_count}",
				"/sys/class/net/X/{speed,duplex} after a change of carrier"},
			Why: "Without a link the node cannot be reached. A link that flaps loses packets each time, and a slow " +
				"one slows every transfer of its pods.",
			Faults: []detect.Fault{
				{Reason: "LinkDown", Severity: finding.Fatal, When: "a card that is up, and had a carrier before, " +
					"has none for 10 s; fatal if no card of the node has one, else a warning"},
				{Reason: "LinkFlapping", Severity: finding.Warning, When: "3 losses of carrier within 10 minutes; " +
					"the restart of a switch causes one or two"},
				{Reason: "LinkSpeedReduced", Severity: finding.Info, When: "the link is slower than it was: with a " +
					"bad cable or transceiver a lower speed is negotiated"},
				{Reason: "LinkHalfDuplex", Severity: finding.Info,
					When: "half duplex above 10 Mbit/s: autonegotiation failed"},
			},
			FalseAlarms: "Ports that never had a carrier, virtual devices and functions, IPoIB, and cards on USB " +
				"(service processors) are ignored. Members of a bond are covered by bonds. A cable that was removed " +
				"permanently is reported until its port is set down or listed under ignore.",
		},
		Condition: detect.NetworkProblem(),
		Every:     20 * time.Second, Deadline: 8 * time.Second,
		Wakes: []detect.Wake{{Source: detect.WakeLinks}, checkkit.KernelWake()},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 10 * time.Second},
			Clear: finding.Hold{Runs: 2, For: 10 * time.Second}},
		Run: c.observe,
	}
}

type linkCheck struct {
	settings LinkStateSettings

	history linkHistory
	speeds  map[string]linkSpeed
	flaps   counterWindow
}

// link is one uplink card.
type link struct {
	networkCard
	downs, ups uint64 // losses and gains of carrier since the device was created
	bond       string // the bond that it is a member of
}

func (c *linkCheck) observe(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	files, up := h.Files, h.Clock().SinceBoot
	cards, err := networkCards(files)
	if err != nil {
		return nil, err
	}
	var results checkkit.Results
	links := c.links(files, cards, &results)
	if len(links) == 0 && results.Empty() {
		return nil, finding.NotApplicable("no Ethernet port of a card")
	}
	c.count(links, up)
	for _, l := range links {
		if l.works() {
			c.history.add(l.name)
		}
		results.Add(c.evaluate(files, l, anyWorks(cards), up))
	}
	c.history.save()
	return results.Done()
}

// links reads the carrier counters of the cards that are uplinks.
func (c *linkCheck) links(files host.Files, cards []networkCard, results *checkkit.Results) (links []link) {
	for _, card := range cards {
		if !card.uplink(files) || slices.Contains(c.settings.Ignore, card.name) {
			continue
		}
		l := link{networkCard: card}
		l.bond, _ = card.bonded(files)
		if !results.Doubt(finding.Subject{Kind: kindNetDevice, Name: card.name}, l.readCounts(files)) {
			links = append(links, l)
		}
	}
	return links
}

// readCounts reads the changes of carrier; kernels before 4.16 only have the sum of losses and gains.
func (l *link) readCounts(files host.Files) (err error) {
	l.downs, err = checkkit.ReadCount(files, l.dir+"/carrier_down_count")
	if errors.Is(err, fs.ErrNotExist) {
		all, err := checkkit.ReadCount(files, l.dir+"/carrier_changes")
		l.downs, l.ups = all/2, all/2
		return err
	}
	if err != nil {
		return err
	}
	l.ups, err = checkkit.ReadCount(files, l.dir+"/carrier_up_count")
	return err
}

// count records the losses of carrier, once the machine has started.
func (c *linkCheck) count(links []link, up time.Duration) {
	if up < linksStarted {
		return
	}
	values := map[string]uint64{}
	for _, l := range links {
		values[l.name] = l.downs
	}
	c.flaps.Add(up, values)
}

// evaluate returns the most severe fault of one link.
func (c *linkCheck) evaluate(files host.Files, l link, othersWork bool, up time.Duration) (finding.Finding, bool) {
	f := finding.Finding{
		Subject: finding.Subject{Kind: kindNetDevice, Name: l.name}, Severity: finding.Warning,
		Facts: map[string]string{"operstate": l.oper, "carrierDownCount": fmt.Sprint(l.downs)},
	}
	losses, in, _ := c.flaps.Rise(l.name)
	switch known := l.ups > 0 || c.history.Links[l.name]; {
	case l.adminUp && l.oper == "down" && l.bond == "" && known:
		f.Reason, f.Message = "LinkDown", l.name+" has no carrier"
		if carriesDefault(files, l.name) {
			f.Message += ", and the default route goes through it"
			f.Facts["defaultRoute"] = "true"
		}
		if !othersWork {
			f.Severity = finding.Fatal
			f.Message += "; no other card of the node has a link"
		}
		return f, true
	case c.settings.Flaps > 0 && losses+1 >= uint64(c.settings.Flaps) && losses > 0:
		f.Reason, f.BelowRaise = "LinkFlapping", losses < uint64(c.settings.Flaps)
		f.Message = fmt.Sprintf("%s lost its carrier %d times within %s", l.name, losses, in.Round(time.Second))
		f.Facts["flaps"] = fmt.Sprint(losses)
		return f, true
	}
	return c.evaluateSpeed(files, l, f, up)
}

// carriesDefault reports whether a default route goes through a device. It is for the message only: the check
// default-route reports unreadable routes.
func carriesDefault(files host.Files, device string) bool {
	four, six, err := readDefaultRoutes(files)
	return err == nil && slices.ContainsFunc(slices.Concat(four, six), func(r defaultRoute) bool {
		return r.device == device
	})
}

// linkSpeed is the best and the present speed of a link. Zero is unknown.
type linkSpeed struct {
	best, now uint64 // Mbit/s
	half      bool
	changes   uint64        // of carrier, when the speed was read
	read      time.Duration // since boot
}

func (c *linkCheck) evaluateSpeed(files host.Files, l link, f finding.Finding, up time.Duration) (finding.Finding,
	bool) {
	speed, known := c.speeds[l.name]
	if changes := l.downs + l.ups; !known || speed.changes != changes || up-speed.read >= speedEvery {
		if !l.works() || len(c.speeds) >= maxCards && !known {
			return f, false
		}
		speed.now, speed.half = readSpeed(files, l.dir)
		speed.best, speed.changes, speed.read = max(speed.best, speed.now), changes, up
		c.speeds[l.name] = speed
	}
	f.Severity = finding.Info
	f.Facts["speed"] = fmt.Sprint(speed.now)
	switch {
	case speed.now > 0 && speed.now < speed.best:
		f.Reason = "LinkSpeedReduced"
		f.Message = fmt.Sprintf("%s runs at %d Mbit/s; it had %d", l.name, speed.now, speed.best)
	case speed.half && speed.now > 10:
		f.Reason = "LinkHalfDuplex"
		f.Message = fmt.Sprintf("%s runs at %d Mbit/s in half duplex", l.name, speed.now)
	default:
		return f, false
	}
	return f, true
}

// readSpeed returns 0 if the card does not report it: EINVAL without a link, -1 for virtual machines' cards.
func readSpeed(files host.Files, dir string) (speed uint64, half bool) {
	speed, err := checkkit.ReadCount(files, dir+"/speed")
	if err != nil {
		return 0, false
	}
	duplex, err := files.Text(dir + "/duplex")
	return speed, err == nil && strings.EqualFold(duplex, "half")
}
