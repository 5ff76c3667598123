// Package network finds faults of links, addresses, routes, and the kernel's network tables.
package network

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// The network devices of the node. /sys/class/net holds a link for each device of the network namespace in which sysfs
// was mounted: to ../../devices/virtual/net/X for virtual ones (veth, bridges, tunnels, dummy, bonds, VLANs), otherwise
// to the card below its bus. Of virtual devices, of which a node has hundreds, only the link is read; of a card only
// files that the kernel answers from memory, without the RTNL lock: "carrier" and "speed" wait for it, or for the card.
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net

const (
	sysClassNet = "/sys/class/net"
	// maxCards bounds how many cards are read; a node has a few dozen at most.
	maxCards = 1024

	iffUp         = 0x1
	arphrdEther   = 1
	operUp        = "up"
	operUnknown   = "unknown" // the driver does not report it: taken for up, as the kernel does
	kindNetDevice = "network-device"
)

// networkCard is a network device other than a virtual one.
type networkCard struct {
	name    string
	dir     string // below /sys/class/net
	target  string // of the link
	adminUp bool   // IFF_UP: administratively up
	oper    string // operstate
}

// works reports whether packets can pass.
func (c networkCard) works() bool { return c.adminUp && (c.oper == operUp || c.oper == operUnknown) }

// virtualFunction reports whether a device is a virtual function of a card. There can be hundreds of them, most of them
// idle: the card itself shows the state of the port.
func virtualFunction(files host.Files, dir string) bool {
	_, err := files.Link(dir + "/device/physfn")
	return err == nil
}

// networkCards lists the devices that are neither virtual nor virtual functions, by name.
func networkCards(files host.Files) ([]networkCard, error) {
	names, err := files.List(sysClassNet)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var cards []networkCard
	for _, name := range names {
		dir := sysClassNet + "/" + name
		target, err := files.Link(dir)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			continue // bonding_masters is a file; or the device has gone
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", dir, err)
		}
		if strings.Contains(target, "/virtual/") || virtualFunction(files, dir) {
			continue
		}
		if len(cards) >= maxCards {
			return nil, fmt.Errorf("list %s: more than %d cards", sysClassNet, maxCards)
		}
		card := networkCard{name: name, dir: dir, target: target}
		if err := card.read(files); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
			continue // it has gone meanwhile: moved to a pod, or unplugged
		} else if err != nil {
			return nil, err
		}
		cards = append(cards, card)
	}
	return cards, nil
}

func (c *networkCard) read(files host.Files) error {
	text, err := files.Text(c.dir + "/flags")
	if err != nil {
		return err
	}
	flags, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 32)
	if err != nil {
		return fmt.Errorf("read %s/flags: bad number %q", c.dir, checkkit.Sanitize(text, checkkit.MaxName))
	}
	c.adminUp = flags&iffUp != 0
	if c.oper, err = files.Text(c.dir + "/operstate"); err != nil {
		return err
	}
	if c.oper == "" {
		return fmt.Errorf("read %s/operstate: empty", c.dir)
	}
	return nil
}

// representor matches the names that drivers of switching cards give to ports that represent a function of the card.
var representor = regexp.MustCompile(`^(c\d+)?pf\d+(vf|sf)\d+$`)

// uplink reports whether a card connects the node to a network: an Ethernet port, not the representor of a virtual
// function, not a USB gadget (the service processor of many servers appears as one), and not a child of another device
// (IPoIB).
func (c networkCard) uplink(files host.Files) bool {
	kind, err := checkkit.ReadCount(files, c.dir+"/type")
	if err != nil || kind != arphrdEther || strings.Contains(c.target, "/usb") {
		return false
	}
	index, _ := files.Text(c.dir + "/ifindex")
	if link, err := files.Text(c.dir + "/iflink"); err == nil && index != "" && link != index {
		return false
	}
	port, err := files.Text(c.dir + "/phys_port_name") // EOPNOTSUPP for most
	return err != nil || !representor.MatchString(port)
}

// bonded returns the bond to which a card belongs.
func (c networkCard) bonded(files host.Files) (bond string, ok bool) {
	if _, err := files.Stat(c.dir + "/bonding_slave"); err != nil {
		return "", false
	}
	master, err := files.Link(c.dir + "/master")
	return master[strings.LastIndexByte(master, '/')+1:], err == nil
}

// anyWorks reports whether packets can pass through any card of the node.
func anyWorks(cards []networkCard) bool { return slices.ContainsFunc(cards, networkCard.works) }
