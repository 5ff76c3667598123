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

// What the checks of the node's network know of devices. /sys/class/net holds a link for each device of the network
// namespace in which sysfs was mounted: to ../../devices/virtual/net/X for what is made by software (veth, bridges,
// tunnels, dummy, bonds, VLANs), otherwise to the card below its bus. One link is read for each device and nothing
// else of the virtual ones, of which a node has hundreds. What is read of a card is what the kernel answers from
// memory, without the RTNL lock: "carrier" and "speed" wait for it, or for the card.
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net

const (
	sysClassNet = "/sys/class/net"
	// maxCards bounds how many cards are looked at; a node has a few dozen at most.
	maxCards = 1024

	iffUp         = 0x1
	arphrdEther   = 1
	operUp        = "up"
	operUnknown   = "unknown" // the driver does not tell: taken for up, as the kernel does
	kindNetDevice = "network-device"
)

// networkCard is one network device that is not made by software.
type networkCard struct {
	name    string
	dir     string // below /sys/class/net
	target  string // where the link points to
	adminUp bool   // IFF_UP: somebody wants it
	oper    string // operstate
}

// works reports whether packets can go through.
func (c networkCard) works() bool { return c.adminUp && (c.oper == operUp || c.oper == operUnknown) }

// virtualFunction reports whether a device is a virtual function of a card, of which there can be hundreds, most of
// them idle: the card itself tells of the port.
func virtualFunction(files host.Files, dir string) bool {
	_, err := files.Link(dir + "/device/physfn")
	return err == nil
}

// networkCards lists the devices that are neither made by software nor virtual functions, by name.
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
			continue // bonding_masters is a file; or the device went
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
			continue // it went meanwhile: moved to a pod, or unplugged
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

// representor is how the drivers of switching cards name the ports that stand for a function behind the card.
var representor = regexp.MustCompile(`^(c\d+)?pf\d+(vf|sf)\d+$`)

// uplink reports whether a card is one that connects the node to a network: an Ethernet port, not what stands for a
// virtual function in a switching card, not a gadget on USB (the service processor of many servers shows itself as
// such), and not a child of another device (IPoIB).
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

// bonded returns the bond that a card is a member of.
func (c networkCard) bonded(files host.Files) (bond string, ok bool) {
	if _, err := files.Stat(c.dir + "/bonding_slave"); err != nil {
		return "", false
	}
	master, err := files.Link(c.dir + "/master")
	return master[strings.LastIndexByte(master, '/')+1:], err == nil
}

// anyWorks reports whether the node has any card left through which packets can go.
func anyWorks(cards []networkCard) bool { return slices.ContainsFunc(cards, networkCard.works) }
